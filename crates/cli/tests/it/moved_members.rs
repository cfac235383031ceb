//! Members of arrays under other paths at the next start, through the real binary. Files change their names
//! as drives do.

use std::fs;

use crate::support::Instance;
use crate::support::arrays::{self, MIB, array, client, drives, fill, holds};

/// Gives files other names, all at once.
fn rename(instance: &Instance, moves: &[(&str, &str)]) {
    let aside: Vec<String> = (0..moves.len()).map(|at| instance.aside(&at.to_string())).collect();
    for ((from, _), aside) in moves.iter().zip(&aside) {
        fs::rename(from, aside).unwrap();
    }
    for ((_, to), aside) in moves.iter().zip(&aside) {
        fs::rename(aside, to).unwrap();
    }
}

fn paths(instance: &Instance) -> Vec<String> {
    let shown = array(instance);
    let members = shown["members"].as_array().unwrap();
    members.iter().map(|member| member["path"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn is_whole(instance: &Instance) {
    let shown = array(instance);
    assert_eq!(shown["state"], "running", "{shown}");
    assert_eq!(shown["left_out"], serde_json::json!([]), "{shown}");
    assert_eq!(shown["rebuild"]["running"], false, "{shown}");
}

#[test]
fn a_raid_6_whose_members_changed_their_names_serves_whole_and_says_so_once() {
    let (instance, members) = arrays::array_volume(&["6"], 6);
    let spare = instance.drive("spare", 32 * MIB);
    instance.run(&["array", "add-spare", "a", &spare]).ok();
    fill(&mut client(&instance), 1);
    instance.stop();
    // Two pairs swap, and the last two, with the spare, shift beyond what is on record. A disk of somebody
    // else has the path of one of them.
    let beyond = instance.path("zz").display().to_string();
    let other = instance.drive("other", 32 * MIB);
    fs::write(&other, vec![7; 32 * MIB as usize]).unwrap();
    let m = |at: usize| &*members[at];
    let moves = [(m(0), m(1)), (m(1), m(0)), (m(2), m(3)), (m(3), m(2))];
    let shifts = [(m(4), m(5)), (m(5), &*spare), (&*spare, &*beyond), (&*other, m(4))];
    rename(&instance, &[moves, shifts].concat());
    instance.run(&["start"]).ok();
    is_whole(&instance);
    holds(&mut client(&instance), 1);
    assert_eq!(paths(&instance), [m(1), m(0), m(3), m(2), m(5), &*spare]);
    let shown = array(&instance);
    assert_eq!(shown["spares"], serde_json::json!([beyond]));
    assert_eq!(shown["moved"].as_array().unwrap().len(), 7, "{shown}");
    let line = format!("its member 5 was {} and is {spare} now", m(5));
    assert!(instance.run(&["array", "show", "a"]).ok().out.contains(&line));
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert_eq!(log.matches(&line).count(), 1, "{log}");
    assert!(fs::read(m(4)).unwrap().iter().all(|byte| *byte == 7), "the other disk was written");
    instance.stop();
    instance.run(&["start"]).ok();
    is_whole(&instance);
    assert_eq!(array(&instance)["moved"], serde_json::json!([]));
    holds(&mut client(&instance), 1);
}

#[test]
fn a_journal_device_is_found_under_another_name() {
    let instance = Instance::new();
    let members = drives(&instance, "d", 3);
    let journal = instance.drive("journal", 32 * MIB);
    let create = ["create", "a", "--level", "5", "--journal", &journal];
    instance.run(&arrays::with(&create, &members)).ok();
    instance.kill();
    let renamed = instance.path("renamed").display().to_string();
    rename(&instance, &[(&journal, &renamed)]);
    instance.run(&["start"]).ok();
    is_whole(&instance);
    let shown = array(&instance);
    assert_eq!(shown["journal_device"]["path"], renamed.as_str(), "{shown}");
    assert_eq!(shown["journal_device"]["state"], "online", "{shown}");
}

#[test]
fn a_copy_of_a_member_keeps_the_array_at_rest_until_the_copy_is_gone() {
    let (instance, members) = arrays::array_volume(&["5"], 3);
    fill(&mut client(&instance), 2);
    instance.stop();
    // Nothing has the recorded path, and two files in its folder say that they were there.
    let (one, two) = (instance.path("one"), instance.path("two"));
    fs::copy(&members[1], &two).unwrap();
    fs::rename(&members[1], &one).unwrap();
    let before = [&one, &two].map(|path| fs::read(path).unwrap());
    instance.run(&["start"]);
    let shown = array(&instance);
    assert_eq!(shown["state"], "failed", "{shown}");
    let error = shown["error"].as_str().unwrap();
    for words in [&*one.display().to_string(), &*two.display().to_string(), "member 1 of a"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    instance.run(&["array", "start", "a"]).refused(1, "one is a copy");
    instance.run(&["start", "v"]).refused(1, "one is a copy");
    assert!([&one, &two].map(|path| fs::read(path).unwrap()) == before, "a copy was written");
    fs::remove_file(&two).unwrap();
    instance.run(&["array", "start", "a"]).ok();
    is_whole(&instance);
    holds(&mut client(&instance), 2);
}
