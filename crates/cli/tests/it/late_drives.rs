//! Drives that come after the daemon's start, through the real binary: files that appear by a rename.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::support::arrays::{self, MIB, array, client, drives, fill, holds};
use crate::support::ledger::Ledger;
use crate::support::shelf::{Conduct, Shelf};
use crate::support::{Answer, Instance};
use serde_json::Value;

/// Looks of a test at a state that is to come: 60 s in all.
const LOOKS_MAX: u32 = 600;
const LOOK_STEP: Duration = Duration::from_millis(100);

/// Puts drives where no search beside their old places finds them.
fn take_away(instance: &Instance, paths: &[&str]) {
    fs::create_dir_all(instance.path("away")).unwrap();
    paths.iter().for_each(|path| fs::rename(path, away(instance, path)).unwrap());
}

fn bring_back(instance: &Instance, paths: &[&str]) {
    paths.iter().for_each(|path| fs::rename(away(instance, path), path).unwrap());
}

fn away(instance: &Instance, path: &str) -> std::path::PathBuf {
    instance.path("away").join(std::path::Path::new(path).file_name().unwrap())
}

/// Starts the daemon by a command; it waits so many seconds for what is missing.
fn start_waiting(instance: &Instance, seconds: u32) -> Answer {
    let mut command = instance.command(&["start"]);
    command.env("VOLTIER_DEVICE_WAIT", seconds.to_string()).output().unwrap();
    instance.run(&["show"])
}

#[track_caller]
fn until(mut look: impl FnMut() -> Value, state: &str) -> Value {
    for _ in 0..LOOKS_MAX {
        let found = look();
        if found["state"] == state {
            return found;
        }
        thread::park_timeout(LOOK_STEP);
    }
    panic!("not {state} in time: {}", look());
}

#[test]
fn two_members_and_the_ssd_that_come_after_the_daemon_cost_nothing() {
    let instance = Instance::new();
    let members = drives(&instance, "d", 4);
    let spare = instance.drive("spare", 32 * MIB);
    instance.run(&arrays::with(&["create", "a", "--level", "6"], &members)).ok();
    instance.run(&["array", "add-spare", "a", &spare]).ok();
    let ssd = instance.drive("ssd", 32 * MIB);
    instance.run(&["create", "-p", "array:a", "-s", &ssd, "-t", "wb", "v"]).ok();
    instance.export("v");
    fill(&mut client(&instance), 1);
    instance.kill();
    let late = [&*members[0], &members[2], &ssd];
    take_away(&instance, &late);
    let shown = start_waiting(&instance, 300).refused(1, "v has failed");
    assert!(shown.out.contains("waiting"), "{shown:?}");
    assert!(shown.out.contains("v: it waits for its backing disk array:a, its SSD "), "{shown:?}");
    let found = array(&instance);
    assert_eq!(found["state"], "waiting", "{found}");
    assert_eq!(found["waits_for"], serde_json::json!([members[0], members[2]]));
    assert!(found["waits_seconds"].as_u64().unwrap() > 300, "no redundancy would be left: {found}");
    instance.run(&["export", "v", "--nbd"]).refused(1, "it waits for its backing disk");
    instance.run(&["array", "scrub", "a"]).refused(1, "it waits for its member");
    let table = instance.run(&["array", "show", "a"]).refused(1, "the array a has failed");
    assert!(table.out.contains("s more at most"), "{table:?}");
    bring_back(&instance, &late);
    let shown = until(|| instance.show("v"), "running");
    assert_eq!(shown["ssd"]["state"], "online", "{shown}");
    let found = array(&instance);
    assert_eq!(found["state"], "running", "{found}");
    assert_eq!(found["spares"], serde_json::json!([spare]), "no spare is used");
    assert_eq!(found["rebuild"]["running"], false, "nothing was lost");
    // The export is open again by itself.
    holds(&mut client(&instance), 1);
}

#[test]
fn a_member_that_comes_after_the_hold_off_returns_with_what_it_missed() {
    let (instance, members) = arrays::array_volume(&["5"], 3);
    fill(&mut client(&instance), 1);
    instance.kill();
    take_away(&instance, &[&members[1]]);
    start_waiting(&instance, 1);
    let found = until(|| array(&instance), "degraded");
    assert_eq!(found["members"][1]["state"], "lost", "{found}");
    assert_eq!(found["waits_for"], serde_json::json!([members[1]]));
    until(|| instance.show("v"), "running");
    fill(&mut client(&instance), 2);
    // Another drive of that name is not touched.
    let other = vec![7; 32 * MIB as usize];
    fs::write(&members[1], &other).unwrap();
    thread::park_timeout(Duration::from_secs(6));
    assert!(fs::read(&members[1]).unwrap() == other, "the other drive was written");
    assert_eq!(array(&instance)["state"], "degraded");
    fs::remove_file(&members[1]).unwrap();
    thread::park_timeout(Duration::from_secs(6));
    bring_back(&instance, &[&members[1]]);
    let found = until(|| array(&instance), "running");
    assert_eq!(found["left_out"], serde_json::json!([]));
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("is back as member 1; only what changed since is rebuilt"), "{log}");
    // The member has what it missed: the array serves without another one.
    instance.run(&["array", "fail", "a", &members[0]]).ok();
    holds(&mut client(&instance), 2);
}

#[test]
fn a_volume_whose_dirty_ssd_comes_after_the_hold_off_is_served_without_a_restart() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.export("v");
    fill(&mut client(&instance), 3);
    instance.kill();
    take_away(&instance, &[&ssd]);
    start_waiting(&instance, 1);
    let shown = until(|| instance.show("v"), "failed");
    assert!(shown["error"].as_str().unwrap().contains("may hold the newest data"), "{shown}");
    instance.run(&["start", "v"]).refused(1, "may hold the newest data");
    bring_back(&instance, &[&ssd]);
    until(|| instance.show("v"), "running");
    holds(&mut client(&instance), 3);
}

#[test]
fn a_user_opens_what_waits_at_once() {
    let (instance, members) = arrays::array_volume(&["1"], 2);
    fill(&mut client(&instance), 4);
    instance.stop();
    take_away(&instance, &[&members[0]]);
    start_waiting(&instance, 300);
    let started = instance.run(&["start", "v"]).ok();
    assert!(started.out.starts_with("v: started"), "{started:?}");
    assert_eq!(array(&instance)["state"], "degraded");
    holds(&mut client(&instance), 4);
    instance.run(&["array", "start", "a"]).ok();
    instance.run(&["daemon", "--device-wait", "soon"]).refused(2, "device-wait");
}

/// One half dies under load, the power goes a moment later, and only this half comes back.
#[test]
fn the_half_of_a_mirror_that_the_other_half_went_on_without_is_not_served_alone() {
    let instance = Instance::new();
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let members = shelf.drives("d", 2);
    instance.run(&arrays::with(&["create", "a", "--level", "1"], &members)).ok();
    arrays::export(&instance);
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(16, &mut nbd);
    shelf.tell(&members[0], Conduct::Gone);
    ledger.write(&mut nbd, 7).expect("the other half takes it");
    instance.kill();
    drop(nbd);
    shelf.tell(&members[1], Conduct::Gone);
    shelf.tell(&members[0], Conduct::Serves);
    start_waiting(&instance, 1);
    let found = until(|| array(&instance), "failed");
    assert!(found["error"].as_str().unwrap().contains("array assemble -f"), "{found}");
    instance.kill();
    shelf.tell(&members[1], Conduct::Serves);
    start_waiting(&instance, 60);
    until(|| array(&instance), "degraded");
    ledger.check(&instance, "v");
}
