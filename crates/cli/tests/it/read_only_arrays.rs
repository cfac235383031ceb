//! Arrays that are assembled to be read only: not a byte of any member changes.

use std::fs;

use crate::support::Instance;
use crate::support::arrays::{array, array_volume, client, export, fill, holds, with};
use crate::support::looped::Looped;

/// Writes single sectors too, and kills the daemon with all of it in the journal.
fn kill_under_writes(instance: &Instance, seed: u8) {
    let mut nbd = client(instance);
    fill(&mut nbd, seed);
    for at in 0..500_u64 {
        nbd.write((16 << 20) + at * 4608, &[seed ^ at as u8; 4096]).unwrap();
    }
    instance.kill();
}

#[track_caller]
fn has_it_all(instance: &Instance, seed: u8) {
    let mut nbd = client(instance);
    holds(&mut nbd, seed);
    for at in 0..500_u64 {
        let found = nbd.read((16 << 20) + at * 4608 + 3584, 512).unwrap();
        assert_eq!(found, [seed ^ at as u8; 512], "{at}");
    }
}

fn contents(devices: &[String]) -> Vec<Vec<u8>> {
    devices.iter().map(|device| fs::read(device).unwrap()).collect()
}

#[track_caller]
fn refuses_changes(instance: &Instance, devices: &[String]) {
    let error = client(instance).write(0, &[9; 512]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(1), "what NBD has for read-only: {error}");
    let spare = instance.drive("spare", 32 << 20);
    let words = "the array a is assembled read-only; to use it as before: `voltier array stop a`";
    for ask in [
        &["array", "fail", "a", "0"][..],
        &["array", "replace", "a", "0", &spare],
        &["array", "add-spare", "a", &spare],
        &["array", "scrub", "a"],
        &["array", "rebuild", "a"],
        &["array", "set", "a", &format!("journal={spare}")],
        &["attach", "v", "-s", &spare],
    ] {
        instance.run(ask).refused(1, words);
    }
    let shown = array(instance);
    assert_eq!(shown["read_only"], true, "{shown}");
    assert_eq!(shown["members"].as_array().unwrap().len(), devices.len());
    for (ask, line) in [
        (&["array", "show", "a"][..], "state        running read-only"),
        (&["show", "v"], "state        running read-only"),
    ] {
        let text = instance.run(ask).ok().out;
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_crashed_array_is_read_with_what_its_journal_has_and_no_member_changes() {
    for (level, count) in [
        (&["5"][..], 3),
        (&["6"], 4),
        (&["1"], 2),
        (&["5", "--consistency", "bitmap"], 3),
        (&["6", "--integrity", "crc32c"], 4),
    ] {
        let (instance, devices) = array_volume(level, count);
        kill_under_writes(&instance, 1);
        let before = contents(&devices);
        let other = Instance::new();
        other.run(&with(&["assemble", "--read-only"], &devices)).ok();
        export(&other);
        has_it_all(&other, 1);
        refuses_changes(&other, &devices);
        assert!(contents(&devices) == before, "{level:?}: while it is served");
        // The next daemon reads it, too.
        other.kill();
        other.serve();
        has_it_all(&other, 1);
        refuses_changes(&other, &devices);
        other.stop();
        other.serve();
        other.run(&["delete", "v"]).ok();
        other.run(&["array", "stop", "a"]).ok();
        assert!(contents(&devices) == before, "{level:?}: after a stop");
        // As before, in the hands of its own daemon.
        other.stop();
        instance.serve();
        has_it_all(&instance, 1);
        fill(&mut client(&instance), 2);
        assert_eq!(array(&instance)["state"], "running");
    }
}

#[test]
fn without_a_member_the_others_tell_what_it_had_and_nothing_is_recorded_as_lost() {
    let (instance, devices) = array_volume(&["5"], 3);
    kill_under_writes(&instance, 7);
    let before = contents(&devices);
    let other = Instance::new();
    other.run(&with(&["assemble", "--read-only"], &devices[..2])).ok();
    export(&other);
    has_it_all(&other, 7);
    assert_eq!(array(&other)["state"], "degraded");
    other.stop();
    assert!(contents(&devices) == before);
    other.serve();
    other.run(&["array", "show", "a"]).ok();
    other.run(&["delete", "v"]).ok();
    other.run(&["array", "stop", "a"]).ok();
    // All of them, to be written again.
    other.run(&with(&["assemble"], &devices)).ok();
    let shown = array(&other);
    assert_eq!((&shown["state"], shown.get("read_only")), (&"running".into(), None), "{shown}");
    export(&other);
    has_it_all(&other, 7);
    fill(&mut client(&other), 8);
}

#[test]
fn a_recorded_array_is_assembled_read_only_when_it_is_stopped_and_as_before_after_that() {
    let (instance, devices) = array_volume(&["5"], 3);
    fill(&mut client(&instance), 3);
    instance.run(&with(&["assemble", "--read-only"], &devices)).refused(1, "is in use");
    let stop = |instance: &Instance| {
        instance.run(&["stop", "v"]).ok();
        instance.run(&["array", "stop", "a"]).ok();
    };
    stop(&instance);
    let before = contents(&devices);
    instance.run(&with(&["assemble", "--read-only"], &devices)).ok();
    instance.run(&["start", "v"]).ok();
    holds(&mut client(&instance), 3);
    refuses_changes(&instance, &devices);
    stop(&instance);
    instance.run(&["array", "start", "a"]).ok();
    instance.run(&["start", "v"]).ok();
    refuses_changes(&instance, &devices);
    stop(&instance);
    assert!(contents(&devices) == before);
    instance.run(&with(&["assemble"], &devices)).ok();
    instance.run(&["start", "v"]).ok();
    let mut nbd = client(&instance);
    holds(&mut nbd, 3);
    fill(&mut nbd, 4);
}

#[test]
fn members_that_are_read_only_devices_are_enough() {
    let (instance, devices) = array_volume(&["5"], 3);
    kill_under_writes(&instance, 5);
    let before = contents(&devices);
    let mut disks = Vec::new();
    for device in &devices {
        let Some(disk) = Looped::new(device) else { return };
        disk.protect(true);
        disks.push(disk);
    }
    let names: Vec<String> = disks.iter().map(|disk| disk.0.clone()).collect();
    let other = Instance::new();
    other.run(&with(&["assemble"], &names)).refused(1, "is write-protected");
    other.run(&with(&["assemble", "--read-only"], &names)).ok();
    export(&other);
    has_it_all(&other, 5);
    refuses_changes(&other, &devices);
    other.stop();
    other.serve();
    has_it_all(&other, 5);
    other.stop();
    drop(disks);
    assert!(contents(&devices) == before);
}
