//! The journal of an array on a device of its own, through the real binary.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::support::arrays::{MIB, after_start, array, client, drives, export, fill, holds, with};
use crate::support::{Answer, Instance, fio_is_content};

/// A RAID 6 `a` of five members with its journal on `journal`, and a volume `v` over it, exported.
fn journalled() -> (Instance, Vec<String>, String) {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 5);
    let journal = instance.drive("journal", 24 * MIB);
    let args = ["create", "a", "--level", "6", "--journal", &journal];
    instance.run(&with(&args, &devices)).ok();
    export(&instance);
    (instance, devices, journal)
}

/// Where the journal is, and what is said of it.
fn journal_of(instance: &Instance) -> (String, String) {
    let shown = array(instance);
    let text = |key: &str| shown["journal_device"][key].as_str().unwrap_or_default().to_owned();
    (text("path"), text("state"))
}

fn is_on(instance: &Instance, device: &str) {
    assert_eq!(journal_of(instance), (device.to_owned(), "online".to_owned()));
}

fn set(instance: &Instance, args: &[&str]) -> Answer {
    instance.run(&[&["array", "set", "a"], args].concat())
}

fn assemble(instance: &Instance, args: &[&str], devices: &[String]) -> Answer {
    instance.run(&with(&[&["assemble"], args].concat(), devices))
}

#[test]
fn a_kill_under_load_is_replayed_from_the_device_also_with_members_lost() {
    let (instance, devices, journal) = journalled();
    is_on(&instance, &journal);
    let shown = instance.run(&["array", "show", "a"]).ok();
    assert!(shown.out.contains("journal      ") && shown.out.contains("(online)"), "{shown:?}");
    for seed in 1..4 {
        fill(&mut client(&instance), seed);
        instance.kill();
        holds(&mut after_start(&instance), seed);
        is_on(&instance, &journal);
    }
    fill(&mut client(&instance), 4);
    instance.kill();
    for (at, device) in devices[1..3].iter().enumerate() {
        fs::rename(device, instance.aside(&at.to_string())).unwrap();
    }
    holds(&mut after_start(&instance), 4);
    assert_eq!(array(&instance)["state"], "degraded");
    is_on(&instance, &journal);
}

#[test]
fn the_journal_moves_while_fio_verifies() {
    let (instance, _, journal) = journalled();
    let uri = instance.show("v")["exports"][0]["uri"].as_str().unwrap().to_owned();
    let fio = instance.fio_verified(&uri, &["--bsrange=512-128k", "--size=48M", "--io_size=128M"]);
    let second = instance.drive("second", 16 * MIB);
    for place in [&second, "members", &journal, &second] {
        set(&instance, &[&format!("journal={place}")]).ok();
        if place == "members" {
            assert!(array(&instance)["journal_device"].is_null());
        } else {
            is_on(&instance, place);
        }
    }
    fio_is_content(fio);
    fill(&mut client(&instance), 5);
    instance.kill();
    holds(&mut after_start(&instance), 5);
    is_on(&instance, &second);
    // The one before is a plain device again.
    instance.run(&["create", "-p", &journal, "w"]).ok();
}

#[test]
fn a_missing_device_is_missed_after_a_crash_and_not_after_a_stop() {
    let (instance, devices, journal) = journalled();
    let away = instance.aside("journal");
    fill(&mut client(&instance), 6);
    instance.stop();
    fs::rename(&journal, &away).unwrap();
    holds(&mut after_start(&instance), 6);
    let (path, state) = journal_of(&instance);
    assert_eq!((path.as_str(), state.as_str()), (journal.as_str(), "lost"));
    let said = array(&instance)["left_out"].to_string();
    assert!(said.contains("the journal is on the members now"), "{said}");
    let shown = instance.run(&["array", "show", "a"]).refused(1, "the array a is degraded");
    assert!(shown.out.contains("was given up"), "{shown:?}");
    fill(&mut client(&instance), 7);
    instance.kill();
    // Back, and old by now.
    fs::rename(&away, &journal).unwrap();
    holds(&mut after_start(&instance), 7);
    assert_eq!(journal_of(&instance).1, "lost");
    let said = array(&instance)["left_out"].to_string();
    assert!(said.contains("had the journal, and the array went on without it"), "{said}");
    set(&instance, &[&format!("journal={journal}")]).ok();
    is_on(&instance, &journal);
    fill(&mut client(&instance), 8);
    instance.kill();
    fs::rename(&journal, &away).unwrap();
    assert_eq!(instance.show("v")["state"], "failed");
    let error = array(&instance)["error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("its journal device is not there")
            && error.contains(&format!("last seen as {journal}"))
            && error.contains("voltier array assemble -f"),
        "{error}"
    );
    assemble(&instance, &[], &devices).refused(1, "its journal device is not there");
    // Connected again, under another name.
    let mut all = devices.clone();
    all.insert(2, away.clone());
    assemble(&instance, &[], &all).ok();
    holds(&mut client(&instance), 8);
    is_on(&instance, &away);
    instance.kill();
    fs::create_dir(instance.path("gone")).unwrap();
    fs::rename(&away, instance.path("gone/journal")).unwrap();
    instance.show("v");
    assemble(&instance, &["-f"], &devices).ok();
    assert_eq!(journal_of(&instance).1, "lost");
    let forced = array(&instance)["left_out"].to_string();
    assert!(forced.contains("recomputed in the background"), "{forced}");
}

#[test]
fn devices_that_cannot_have_the_journal_are_refused_and_nothing_changes() {
    let (instance, devices, journal) = journalled();
    fill(&mut client(&instance), 9);
    let small = instance.drive("small", MIB);
    let full = instance.drive("full", 16 * MIB);
    File::options().write(true).open(&full).unwrap().write_all_at(&[0x53, 0xef], 1080).unwrap();
    let refusals: [(&str, i32, &str); 7] = [
        (&small, 1, "a journal of this array needs"),
        (&full, 1, "ext2/3/4"),
        (&devices[0], 1, "already part of array a"),
        (&journal, 1, "already; name another device"),
        ("array:a", 2, "arrays cannot be nested"),
        ("/dev/nonesuch", 1, "does not exist"),
        ("mem:64Q", 2, ""),
    ];
    for (device, code, words) in refusals {
        set(&instance, &[&format!("journal={device}")]).refused(code, words);
        is_on(&instance, &journal);
    }
    set(&instance, &["journal=members", "journal=members"]).refused(2, "given twice");
    set(&instance, &["-f", "scrub_floor=1M"]).refused(2, "-f goes with journal=DEV");
    set(&instance, &["jurnal=members"]).refused(2, "did you mean `journal`");
    set(&instance, &["scrub_floor=1M", "-f", &format!("journal={full}")]).ok();
    is_on(&instance, &full);
    assert_eq!(array(&instance)["scrub"]["pace"]["floor_bytes_per_second"], MIB);
    let others: Vec<String> =
        (0..4).map(|number| instance.drive(&format!("e{number}"), 16 * MIB)).collect();
    let create = |options: &[&str]| {
        let args = ["array", "create", "b"].into_iter().chain(options.iter().copied());
        instance.run(&args.chain(others[..3].iter().map(String::as_str)).collect::<Vec<_>>())
    };
    let with = ["--level", "5", "--journal", &others[3], "--consistency", "bitmap"];
    create(&with).refused(2, "--journal goes with --consistency journal");
    create(&["--level", "0", "--journal", &others[3]]).refused(2, "--journal goes with");
    create(&["--level", "5", "--journal", &others[0]]).refused(1, "given twice");
    create(&["--level", "5", "--journal", &full]).refused(1, "already part of array a");
    holds(&mut client(&instance), 9);
}

#[test]
fn it_is_told_from_members_foreign_arrays_and_taken_apart_with_its_own() {
    let (instance, devices, journal) = journalled();
    fill(&mut client(&instance), 10);
    instance.run(&["delete", "v"]).ok();
    let others: Vec<String> =
        (0..4).map(|number| instance.drive(&format!("e{number}"), 16 * MIB)).collect();
    let args = ["array", "create", "b", "--level", "5", "--journal", &others[3]];
    let members = others[..3].iter().map(String::as_str);
    instance.run(&args.into_iter().chain(members).collect::<Vec<_>>()).ok();
    instance.run(&["array", "delete", "a"]).ok();
    instance.run(&["array", "delete", "b"]).ok();
    instance.run(&["create", "-p", &journal, "w"]).refused(1, "the journal of a Voltier array");
    assemble(&instance, &[], std::slice::from_ref(&journal)).refused(1, "name its members as well");
    let foreign = [&devices[..], &others[3..]].concat();
    assemble(&instance, &[], &foreign).refused(1, "the journal of another array, b");
    let all = [std::slice::from_ref(&journal), &devices[..]].concat();
    assemble(&instance, &[], &all).ok();
    is_on(&instance, &journal);
    export(&instance);
    holds(&mut client(&instance), 10);
    instance.run(&["delete", "v"]).ok();
    instance.run(&["array", "delete", "a", "--erase"]).ok();
    instance.run(&["create", "-p", &journal, "w"]).ok();
}

#[test]
fn a_label_that_is_damaged_or_of_the_future_is_refused_by_name() {
    let (instance, devices, journal) = journalled();
    fill(&mut client(&instance), 11);
    instance.kill();
    let file = File::options().read(true).write(true).open(&journal).unwrap();
    let copies = [0, 24 * MIB - 4096];
    let mut before = Vec::new();
    for at in copies {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, at).unwrap();
        before.push(block);
        file.write_all_at(&[0xff], at + 100).unwrap();
    }
    assert_eq!(instance.show("v")["state"], "failed");
    let error = array(&instance)["error"].as_str().unwrap().to_owned();
    assert!(error.contains("both copies of its superblock are damaged"), "{error}");
    // One good copy is enough.
    instance.stop();
    file.write_all_at(&before[1], copies[1]).unwrap();
    holds(&mut after_start(&instance), 11);
    is_on(&instance, &journal);
    instance.kill();
    // A shorter one is not the one it was.
    file.set_len(20 * MIB).unwrap();
    assert_eq!(instance.show("v")["state"], "failed");
    let error = array(&instance)["error"].as_str().unwrap().to_owned();
    assert!(error.contains("and now has"), "{error}");
    assemble(&instance, &["-f"], &devices).ok();
}

#[test]
fn a_cache_on_one_such_array_before_another_keeps_both_journals() {
    let instance = Instance::new();
    let drive = |name: String| instance.drive(&name, 48 * MIB);
    for (array, level, count) in [("r", "5", 3), ("m", "1", 2)] {
        let devices: Vec<String> =
            (0..count).map(|number| drive(format!("{array}{number}"))).collect();
        let args = ["array", "create", array, "--level", level];
        instance
            .run(&args.into_iter().chain(devices.iter().map(String::as_str)).collect::<Vec<_>>())
            .ok();
        let journal = drive(format!("{array}-journal"));
        instance.run(&["array", "set", array, &format!("journal={journal}")]).ok();
    }
    let is_online = |array: &str| {
        let shown = instance.run(&["array", "show", array, "--json"]).json();
        assert_eq!(shown["journal_device"]["state"], "online", "{shown}");
        assert_eq!(shown["left_out"].as_array().unwrap().len(), 0, "{shown}");
    };
    // An array moves to the core of its volume, with its journal, from any core.
    instance.run(&["create", "-p", "array:r", "-s", "array:m", "-t", "wb", "v"]).ok();
    ["r", "m"].into_iter().for_each(is_online);
    instance.export("v");
    fill(&mut client(&instance), 12);
    instance.kill();
    holds(&mut after_start(&instance), 12);
    ["r", "m"].into_iter().for_each(is_online);
}
