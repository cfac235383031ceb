//! Members of arrays under other paths at the next start, through the real binary. Files change their names
//! as drives do.

use std::fs;

use crate::support::Instance;
use crate::support::arrays::{self, MIB, array, client, drives, fill, holds};
use crate::support::looped::Looped;

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

#[test]
fn of_two_copies_the_one_that_was_chosen_once_is_used_at_every_start_after_that() {
    let (instance, members) = arrays::array_volume(&["5"], 3);
    fill(&mut client(&instance), 1);
    instance.stop();
    let copy = instance.aside("copy");
    fs::copy(&members[0], &copy).unwrap();
    let Some(disk) = Looped::new(&copy) else { return };
    let shown = array(&instance);
    assert!(shown["error"].as_str().unwrap().contains("so one is a copy"), "{shown}");
    instance.run(&arrays::with(&["assemble"], &members)).ok();
    let older = format!("{} is an older copy of member 0: it is left alone", disk.0);
    let ends: [fn(&Instance); 3] = [Instance::stop, Instance::kill, Instance::stop];
    for (seed, end) in (2..).zip(ends) {
        fill(&mut client(&instance), seed);
        end(&instance);
        let shown = array(&instance);
        assert_eq!(shown["state"], "running", "{shown}");
        assert_eq!(shown["left_out"][0], older, "{shown}");
        holds(&mut client(&instance), seed);
    }
    instance.stop();
}

#[test]
fn a_member_that_was_too_old_at_the_start_is_no_problem_any_more_when_it_is_back() {
    let (instance, members) = arrays::array_volume(&["5"], 3);
    instance.run(&["array", "fail", "a", "1"]).ok();
    fill(&mut client(&instance), 1);
    instance.stop();
    let shown = array(&instance);
    let line = shown["left_out"][0].as_str().unwrap();
    assert!(line.contains("its data are old"), "{shown}");
    instance.run(&["array", "replace", "a", "1", &members[1]]).ok();
    is_whole(&instance);
    holds(&mut client(&instance), 1);
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

/// Goal: copies of a drive that was a member do not keep the array from its clients.
/// Method: two files say that they are the former member, and a member has another name, so that a start looks
/// at all files.
#[test]
fn copies_of_a_former_member_are_left_alone_by_name_and_the_array_serves() {
    let (instance, members) = arrays::array_volume(&["6"], 4);
    fill(&mut client(&instance), 3);
    let new = instance.drive("new", 32 * MIB);
    let before_it_went = instance.aside("before");
    fs::copy(&members[0], &before_it_went).unwrap();
    instance.run(&["array", "replace", "a", &members[0], &new]).ok();
    fill(&mut client(&instance), 4);
    instance.stop();
    // As it was in service, and as it was told that it is out.
    let copies = ["copy1", "copy2"].map(|name| instance.path(name).display().to_string());
    fs::copy(&before_it_went, &copies[0]).unwrap();
    fs::copy(&members[0], &copies[1]).unwrap();
    let renamed = instance.path("zz").display().to_string();
    rename(&instance, &[(&members[3], &renamed)]);
    let all = [&members[0], &copies[0], &copies[1]];
    let before = all.map(|path| fs::read(path).unwrap());
    instance.run(&["start"]).ok();
    let shown = array(&instance);
    assert_eq!(shown["state"], "running", "{shown}");
    assert_eq!(paths(&instance), [&*new, &members[1], &members[2], &renamed]);
    holds(&mut client(&instance), 4);
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    for device in all {
        assert!(
            log.contains(&format!("{device} was member 0 and has been replaced: it is left alone")),
            "{device}: {log}"
        );
    }
    instance.stop();
    assert!(before == all.map(|path| fs::read(path).unwrap()), "a former member was written");
}

/// Goal: a copy that is provably older than the member is left alone, wherever it lies.
/// Method: the user names one of two copies, and the array loses and takes back another member with that one. Then
/// the other copy has the path of a third member, so that a start looks at all files.
#[test]
fn a_copy_that_is_older_than_its_member_is_left_alone_by_name() {
    let (instance, members) = arrays::array_volume(&["5"], 3);
    fill(&mut client(&instance), 5);
    instance.stop();
    let (one, two) = (instance.path("one"), instance.path("two"));
    fs::copy(&members[1], &two).unwrap();
    fs::rename(&members[1], &one).unwrap();
    let (one, two) = (one.display().to_string(), two.display().to_string());
    instance.run(&["start"]);
    let command = format!("`voltier array assemble {two} {} {}`", members[0], members[2]);
    let error = array(&instance)["error"].as_str().unwrap().to_owned();
    assert!(error.contains(&command), "{command}: {error}");
    instance.run(&["array", "assemble", &two, &members[0], &members[2]]).ok();
    let mut nbd = arrays::after_start(&instance);
    instance.run(&["array", "fail", "a", &members[0]]).ok();
    fill(&mut nbd, 6);
    instance.run(&["array", "replace", "a", &members[0], &members[0]]).ok();
    drop(nbd);
    for _ in 0..2 {
        instance.stop();
        // A member that is to be looked for, so that all files are looked at.
        rename(&instance, &[(&members[2], &one), (&one, &members[2])]);
        instance.run(&["start"]).ok();
        let shown = array(&instance);
        assert_eq!(shown["state"], "running", "{shown}");
        assert_eq!(shown["members"][1]["path"], two.as_str(), "{shown}");
        assert!(shown["left_out"][0].as_str().unwrap().contains("is an older copy of member 1"));
        holds(&mut client(&instance), 6);
    }
}

/// A RAID 7.3 that grew by two parities, with the registry of before.
fn with_an_older_registry() -> (Instance, Vec<String>, [String; 2]) {
    let (instance, members) = arrays::array_volume(&["5"], 3);
    fill(&mut client(&instance), 7);
    let (registry, kept) = (instance.state().join("registry.json"), instance.aside("registry"));
    fs::copy(&registry, &kept).unwrap();
    let new = ["n1", "n2"].map(|name| instance.drive(name, 32 * MIB));
    for new in &new {
        instance.run(&["array", "grow", "a", "--parity", new]).ok();
    }
    fill(&mut client(&instance), 8);
    instance.stop();
    fs::copy(&kept, &registry).unwrap();
    (instance, members, new)
}

#[test]
fn members_that_an_older_registry_does_not_know_are_found_beside_the_others() {
    let (instance, members, new) = with_an_older_registry();
    instance.run(&["start"]).ok();
    is_whole(&instance);
    assert_eq!(paths(&instance), [&members[..], &new].concat());
    assert_eq!(array(&instance)["level"], "7.3");
    holds(&mut client(&instance), 8);
}

#[test]
fn members_that_nobody_finds_are_named_with_the_command_that_names_them() {
    let (instance, _members, new) = with_an_older_registry();
    let away = ["n1", "n2"].map(|name| instance.aside(name));
    rename(&instance, &[(&new[0], &away[0]), (&new[1], &away[1])]);
    instance.run(&["start"]).ok();
    let shown = array(&instance);
    assert_eq!(shown["state"], "degraded", "{shown}");
    let lines: Vec<&str> =
        shown["left_out"].as_array().unwrap().iter().filter_map(|line| line.as_str()).collect();
    for place in [3, 4] {
        let begin = format!("member {place} was not found under any path");
        let command = format!("`voltier array replace a {place} FILE`");
        let line = lines.iter().find(|line| line.starts_with(&begin));
        assert!(line.is_some_and(|line| line.contains(&command)), "{command}: {shown}");
    }
    holds(&mut client(&instance), 8);
    for (place, file) in ["3", "4"].into_iter().zip(&away) {
        instance.run(&["array", "replace", "a", place, file]).ok();
    }
    crate::support::until("whole again", || array(&instance)["state"] == "running");
    holds(&mut client(&instance), 8);
}
