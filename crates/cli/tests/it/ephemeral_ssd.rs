//! Volumes whose SSD may be empty, another one or missing at any start.

use std::fs;

use serde_json::Value;

use crate::support::{Instance, MIB, until};

const WORDS_OF_NEW: &str = "was made anew and begins empty";

/// A volume `v` that says that its SSD does not last, with everything on the disk read once.
fn volume(instance: &Instance) -> String {
    let (ssd, disk) = (instance.drive("ssd", 32 * MIB), instance.drive("disk", 16 * MIB));
    instance.run(&["create", "v", "-s", &ssd, "-p", &disk, "--ephemeral-ssd"]).ok();
    put(instance, 1);
    ssd
}

/// Fills the volume with a byte and reads it back through the cache.
#[track_caller]
fn put(instance: &Instance, byte: u8) {
    let mut client = instance.exported("v");
    for mib in 0..16 {
        client.write(mib * MIB, &vec![byte; MIB as usize]).unwrap();
    }
    client.flush().unwrap();
    holds(instance, byte);
}

#[track_caller]
fn holds(instance: &Instance, byte: u8) {
    let mut client = instance.connect("v");
    for mib in 0..16 {
        let read = client.read(mib * MIB, MIB as usize).unwrap();
        assert!(read.iter().all(|found| *found == byte), "MiB {mib}: {}", read[0]);
    }
}

fn text<'a>(shown: &'a Value, key: &str) -> &'a str {
    shown[key].as_str().unwrap_or_default()
}

#[track_caller]
fn begins_empty(instance: &Instance) {
    let shown = instance.show("v");
    assert_eq!(shown["state"], "running", "{shown}");
    assert!(text(&shown, "note").contains(WORDS_OF_NEW), "{shown}");
    assert_eq!(shown["lines"]["used"], 0, "{shown}");
    assert_eq!(shown["tunables"]["ephemeral_ssd"], true, "{shown}");
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains(WORDS_OF_NEW), "{log}");
}

#[track_caller]
fn serves_without(instance: &Instance, words: &str) {
    let shown = instance.show("v");
    assert_eq!((text(&shown, "state"), text(&shown["ssd"], "state")), ("degraded", "failed"));
    let error = text(&shown, "error");
    assert!(error.contains(words) && error.contains("serves without a cache"), "{error}");
}

/// A boot of a machine that has another SSD, or none, under the path.
fn boot(instance: &Instance, is_killed: bool, change: impl FnOnce()) {
    if is_killed {
        instance.kill()
    } else {
        instance.stop()
    }
    change();
    instance.serve();
}

#[test]
fn an_old_ssd_that_comes_back_after_an_empty_one_serves_nothing_of_what_it_has() {
    for is_killed in [false, true] {
        let instance = Instance::new();
        let ssd = volume(&instance);
        let first = instance.aside("first");
        boot(&instance, is_killed, || {
            fs::rename(&ssd, &first).unwrap();
            // Of another size.
            instance.drive("ssd", 48 * MIB);
        });
        begins_empty(&instance);
        holds(&instance, 1);
        put(&instance, 2);
        boot(&instance, is_killed, || {});
        let shown = instance.show("v");
        // A kill leaves the places of the last writes in doubt, and that is all of it.
        assert!(is_killed || shown["lines"]["used"].as_u64() > Some(0), "it is warm: {shown}");
        assert_eq!(text(&shown, "note"), "", "{shown}");
        boot(&instance, is_killed, || fs::rename(&first, &ssd).unwrap());
        begins_empty(&instance);
        holds(&instance, 2);
        instance.run(&["delete", "v"]).ok();
    }
}

#[test]
fn a_missing_ssd_is_done_without_and_taken_when_it_comes() {
    let instance = Instance::new();
    let ssd = volume(&instance);
    let first = instance.aside("first");
    boot(&instance, false, || fs::rename(&ssd, &first).unwrap());
    serves_without(&instance, "does not exist");
    put(&instance, 2);
    boot(&instance, true, || {});
    serves_without(&instance, "does not exist");
    fs::rename(&first, &ssd).unwrap();
    until("the SSD is taken", || text(&instance.show("v"), "note").contains(WORDS_OF_NEW));
    begins_empty(&instance);
    holds(&instance, 2);
    put(&instance, 3);
    boot(&instance, true, || {});
    holds(&instance, 3);
    instance.run(&["detach", "v"]).ok();
    holds(&instance, 3);
}

#[test]
fn what_is_not_the_volumes_own_is_never_overwritten() {
    let (instance, other) = (Instance::new(), Instance::new());
    let ssd = volume(&instance);
    // A volume of another machine, killed in write-back.
    let (theirs, disk) = (other.drive("ssd", 32 * MIB), other.drive("disk", 16 * MIB));
    other.run(&["create", "w", "-s", &theirs, "-p", &disk, "-t", "wb"]).ok();
    other.exported("w").write(0, &[9; 4096]).unwrap();
    other.kill();
    let mut file_system = vec![0; (8 * MIB) as usize];
    file_system[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let mut of_member = vec![0; (8 * MIB) as usize];
    of_member[4096..4100].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9]);
    for (bytes, words) in [
        (file_system, "holds an ext2/3/4 file system and is left alone"),
        (of_member, "holds a member of an md array and is left alone"),
        (fs::read(&theirs).unwrap(), "holds a Voltier cache of volume w"),
    ] {
        boot(&instance, false, || fs::write(&ssd, &bytes).unwrap());
        serves_without(&instance, words);
        put(&instance, 4);
        assert!(fs::read(&ssd).unwrap() == bytes, "{words}");
    }
    let again = ["attach", "v", "-s", &ssd, "--ephemeral-ssd", "-f"];
    instance.run(&["detach", "v"]).ok();
    instance.run(&again).ok();
    holds(&instance, 4);
    // A volume that does not say it stays as it was, and its error names the way.
    instance.run(&["set", "v", "ephemeral_ssd=off"]).ok();
    boot(&instance, false, || fs::write(&ssd, vec![0; (32 * MIB) as usize]).unwrap());
    let shown = instance.show("v");
    assert!(text(&shown, "error").contains("--ephemeral-ssd"), "{shown}");
    assert_eq!(shown["state"], "degraded");
}

#[test]
fn modes_that_keep_the_only_copy_on_the_ssd_are_refused() {
    let instance = Instance::new();
    let (ssd, disk) = (instance.drive("ssd", 32 * MIB), instance.drive("disk", 16 * MIB));
    let create = ["create", "v", "-s", &ssd, "-p", &disk];
    for mode in ["wb", "wo"] {
        let why = format!("mode={mode} keeps the only copy");
        instance.run(&[&create[..], &["-t", mode, "--ephemeral-ssd"]].concat()).refused(2, &why);
    }
    instance.run(&["create", "v", "-p", &disk, "--ephemeral-ssd"]).refused(2, "add -s SSD");
    instance.run(&[&create[..], &["-t", "wb"]].concat()).ok();
    let set = |change: &[&str]| instance.run(&[&["set", "v"], change].concat());
    set(&["ephemeral_ssd=on"]).refused(2, "keeps the only copy");
    instance.exported("v").write(0, &[1; 4096]).unwrap();
    set(&["mode=wt", "ephemeral_ssd=on"]).refused(1, "`voltier flush v` first");
    set(&["mode=wt"]).ok();
    instance.run(&["flush", "v"]).ok();
    set(&["ephemeral_ssd=on"]).ok();
    set(&["mode=wb"]).refused(2, "keeps the only copy");
    set(&["ephemeral_ssd=off", "mode=wb"]).ok();
    instance.run(&["delete", "v"]).ok();
}
