//! Drives that a user names for a volume that is not served, through the real binary: a clone of an SSD on a
//! larger one, and copies that are too old.

use std::fs::{self, File};

use crate::support::nbd::NbdClient;
use crate::support::{Answer, Instance, MIB, until};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// A client of an export, which may be on its way back.
fn client(instance: &Instance, name: &str) -> NbdClient {
    let connect = || NbdClient::connect(&instance.socket(name), name);
    until("the export is there", || connect().is_ok());
    connect().unwrap()
}

/// Writes and flushes one byte to all blocks.
fn write(instance: &Instance, byte: u8) {
    let mut nbd = client(instance, "v");
    (0..BLOCKS).for_each(|block| nbd.write(block * MIB / 2, &[byte; BLOCK]).unwrap());
    nbd.flush().unwrap();
}

#[track_caller]
fn has(instance: &Instance, byte: u8) {
    let mut nbd = client(instance, "v");
    for block in 0..BLOCKS {
        assert_eq!(nbd.read(block * MIB / 2, BLOCK).unwrap(), [byte; BLOCK], "block {block}");
    }
}

/// A write-back volume `v` with dirty lines of `byte`; its SSD and its disk.
fn volume(instance: &Instance, byte: u8) -> [String; 2] {
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.export("v");
    write(instance, byte);
    [ssd, hdd]
}

/// A copy of a drive on another one, which may be larger.
fn cloned(instance: &Instance, drive: &str, name: &str, bytes: u64) -> String {
    let path = instance.path(name);
    fs::copy(drive, &path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    path.display().to_string()
}

fn set(instance: &Instance, key: &str, drive: &str) -> Answer {
    instance.run(&["set", "v", &format!("{key}={drive}")])
}

fn error(instance: &Instance) -> String {
    instance.show("v")["error"].as_str().unwrap().to_owned()
}

fn contents(paths: &[&str]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn an_ssd_that_was_cloned_to_a_larger_one_while_the_volume_was_stopped_serves_all_its_lines() {
    let instance = Instance::new();
    let [ssd, _] = volume(&instance, 1);
    let larger = instance.path("larger").display().to_string();
    set(&instance, "ssd", &ssd).refused(1, "only while it is not served; `voltier stop v` first");
    instance.run(&["stop", "v"]).ok();
    cloned(&instance, &ssd, "larger", 128 * MIB);
    fs::remove_file(&ssd).unwrap();
    let answer = set(&instance, "ssd", "larger").ok();
    assert!(answer.out.contains(&larger), "{answer:?}");
    let shown = instance.show("v");
    assert_eq!(
        (&shown["state"], &shown["ssd"]["path"]),
        (&"stopped".into(), &larger.as_str().into())
    );
    instance.run(&["start", "v"]).ok();
    has(&instance, 1);
    instance.run(&["flush", "v"]).ok();
    instance.kill();
    assert_eq!(instance.show("v")["ssd"]["path"], larger.as_str());
    has(&instance, 1);
}

#[test]
fn a_clone_takes_the_place_of_an_ssd_that_is_gone_and_every_message_leads_there() {
    let instance = Instance::new();
    let [ssd, _] = volume(&instance, 2);
    instance.kill();
    let larger = cloned(&instance, &ssd, "larger", 64 * MIB);
    fs::remove_file(&ssd).unwrap();
    assert!(error(&instance).contains("`voltier set v ssd=DEV`"), "{}", error(&instance));
    let way_on = format!("`voltier set v ssd={larger}`");
    instance.run(&["import", &larger]).refused(1, &way_on);
    instance.run(&["start", "v"]).refused(1, "`voltier set v ssd=DEV`");
    set(&instance, "ssd", &larger).ok();
    let shown = instance.show("v");
    assert_eq!(
        (&shown["state"], &shown["ssd"]["path"]),
        (&"running".into(), &larger.as_str().into())
    );
    has(&instance, 2);
}

#[test]
fn both_drives_may_be_other_ones_whichever_is_named_first() {
    for keys in [["ssd", "hdd"], ["hdd", "ssd"]] {
        let instance = Instance::new();
        let drives = volume(&instance, 3);
        instance.kill();
        let clones = ["ssd", "hdd"].map(|name| {
            cloned(
                &instance,
                &instance.path(name).display().to_string(),
                &format!("new-{name}"),
                80 * MIB,
            )
        });
        drives.iter().for_each(|drive| fs::remove_file(drive).unwrap());
        for key in keys {
            set(&instance, key, &clones[usize::from(key == "hdd")]).ok();
        }
        assert_eq!(instance.show("v")["state"], "running", "{keys:?}");
        has(&instance, 3);
    }
}

#[test]
fn what_is_not_the_newest_state_of_the_cache_is_refused_by_name_and_nothing_changes() {
    let instance = Instance::new();
    let [ssd, hdd] = volume(&instance, 4);
    let (blank, busy) = (instance.drive("blank", 32 * MIB), instance.drive("busy", 32 * MIB));
    let (other, other_hdd) =
        (instance.drive("other", 32 * MIB), instance.drive("other-hdd", 64 * MIB));
    instance.run(&["create", "-s", &other, "-p", &other_hdd, "w"]).ok();
    instance.kill();
    let stale = cloned(&instance, &ssd, "stale", 32 * MIB);
    let foreign = cloned(&instance, &other, "foreign", 32 * MIB);
    instance.serve();
    instance.run(&["create", "-p", &busy, "x"]).ok();
    write(&instance, 5);
    instance.run(&["stop", "v"]).ok();
    let short = cloned(&instance, &ssd, "short", 16 * MIB);
    // Of the same life, and copied before its end.
    instance.run(&["start", "v"]).ok();
    instance.kill();
    let before_the_end = cloned(&instance, &ssd, "before-the-end", 32 * MIB);
    instance.serve();
    instance.run(&["stop", "v"]).ok();
    let right = instance.aside("right");
    fs::rename(&ssd, &right).unwrap();
    let drives = [&*right, &hdd, &blank, &stale, &foreign, &before_the_end];
    let before = contents(&drives);
    let record = || instance.show("v")["ssd"]["path"].clone();
    for is_stopped in [true, false] {
        if !is_stopped {
            instance.run(&["start", "v"]).refused(1, "this SSD may hold the newest data");
        }
        for (drive, words) in [
            (&*blank, "blank holds no Voltier cache"),
            (&*foreign, "holds another cache of the volume w"),
            (&*stale, "stale holds an older state of the cache of v (generation 1, expected "),
            (&*before_the_end, "holds an older state of the cache of v"),
            (&*busy, "part of volume x"),
            (&*other, "part of volume w"),
            (&*hdd, "the same device as the other side"),
            ("gone", "does not exist"),
            ("mem:32M", "empty at every start"),
        ] {
            set(&instance, "ssd", drive).refused(1, words);
            assert_eq!(record(), ssd.as_str(), "{drive}");
        }
    }
    set(&instance, "ssd", &short).refused(1, "older state");
    instance.run(&["set", "x", &format!("ssd={blank}")]).refused(1, "x has no cache");
    instance.run(&["set", "v", &format!("ssd={right}"), "mode=wt"]).refused(2, "goes alone");
    assert!(before == contents(&drives), "a refused drive was written");
    set(&instance, "ssd", &right).ok();
    has(&instance, 5);
}

#[test]
fn a_copy_that_is_older_than_the_ssd_on_record_is_refused_while_that_one_is_there() {
    let instance = Instance::new();
    let [ssd, _] = volume(&instance, 6);
    // A snapshot while the volume serves: of the same generation.
    let pid = instance.pid().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let copy = cloned(&instance, &ssd, "copy", 32 * MIB);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    write(&instance, 7);
    instance.run(&["stop", "v"]).ok();
    let answer = set(&instance, "ssd", &copy).refused(1, "copy is older than ");
    assert!(answer.err.contains(&ssd) && answer.err.contains("copy it again"), "{answer:?}");
    let copy = cloned(&instance, &ssd, "copy", 40 * MIB);
    set(&instance, "ssd", &copy).ok();
    instance.run(&["start", "v"]).ok();
    has(&instance, 7);
    // From then on the old one is the stale copy.
    instance.run(&["stop", "v"]).ok();
    set(&instance, "ssd", &ssd).refused(1, "older state of the cache of v");
}

/// Goal: after a stale copy was refused, the right SSD brings the volume back without a command.
/// Method: the right content comes back into the same file, under the same name in another file, and as a copy.
#[test]
fn after_a_stale_copy_was_refused_the_right_ssd_brings_the_volume_back_by_itself() {
    for way in ["content", "rename", "copy"] {
        let instance = Instance::new();
        let [ssd, hdd] = volume(&instance, 8);
        instance.kill();
        let stale = instance.aside("stale");
        fs::copy(&ssd, &stale).unwrap();
        instance.serve();
        write(&instance, 9);
        instance.kill();
        let right = instance.aside("right");
        match way {
            "content" => {
                fs::copy(&ssd, &right).unwrap();
                fs::copy(&stale, &ssd).unwrap();
            }
            _ => {
                fs::rename(&ssd, &right).unwrap();
                fs::copy(&stale, &ssd).unwrap();
            }
        }
        let shown = instance.show("v");
        assert_eq!(shown["state"], "failed", "{way}: {shown}");
        let problem = shown["error"].as_str().unwrap();
        for words in
            ["older state of this cache", "connect the SSD that was in use last", "ssd=DEV"]
        {
            assert!(problem.contains(words), "{way}: {words}: {problem}");
        }
        let before = fs::read(&hdd).unwrap();
        std::thread::park_timeout(std::time::Duration::from_secs(6));
        assert_eq!(instance.show("v")["state"], "failed", "{way}");
        assert!(before == fs::read(&hdd).unwrap(), "{way}: the disk was written");
        match way {
            "content" => drop(fs::copy(&right, &ssd).unwrap()),
            "rename" => fs::rename(&right, &ssd).unwrap(),
            _ => {
                fs::copy(&right, instance.aside("copy")).unwrap();
                fs::rename(instance.aside("copy"), &ssd).unwrap();
            }
        }
        until("served again", || instance.show("v")["state"] == "running");
        has(&instance, 9);
    }
}

#[test]
fn a_disk_is_named_for_a_stopped_volume_and_one_that_is_too_small_is_refused() {
    let instance = Instance::new();
    let [_, hdd] = volume(&instance, 10);
    let small = instance.drive("small", 32 * MIB);
    set(&instance, "hdd", &hdd).refused(1, "only while it is not served; `voltier stop v` first");
    instance.run(&["stop", "v"]).ok();
    let larger = cloned(&instance, &hdd, "larger", 128 * MIB);
    fs::remove_file(&hdd).unwrap();
    set(&instance, "hdd", &small).refused(1, "has 33554432 bytes and had 67108864");
    set(&instance, "hdd", &larger).ok();
    assert_eq!(instance.show("v")["state"], "stopped");
    instance.run(&["start", "v"]).ok();
    assert_eq!(instance.show("v")["hdd"]["path"], larger.as_str());
    has(&instance, 10);
}
