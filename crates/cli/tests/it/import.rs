//! A state folder that is lost, through the real binary: `voltier import` brings back what drives hold.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::slice::from_ref;

use crate::support::arrays::{drives, export, fill, holds, with};
use crate::support::{Instance, MIB, change_sealed};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

fn at(block: u64) -> u64 {
    block * MIB / 2
}

/// The SSD and the HDD of a write-back volume `v`. The first half is clean and has `byte`, the other half is
/// dirty and has `byte + 1`.
fn volume(instance: &Instance, byte: u8) -> [String; 2] {
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "-r", "fifo", "v"]).ok();
    let mut nbd = instance.exported("v");
    (0..BLOCKS / 2).for_each(|block| nbd.write(at(block), &[byte; BLOCK]).unwrap());
    nbd.flush().unwrap();
    instance.run(&["flush", "v"]).ok();
    (BLOCKS / 2..BLOCKS).for_each(|block| nbd.write(at(block), &[byte + 1; BLOCK]).unwrap());
    nbd.flush().unwrap();
    [ssd, hdd]
}

#[track_caller]
fn has_everything(instance: &Instance, name: &str, byte: u8) {
    let mut nbd = instance.exported(name);
    for block in 0..BLOCKS {
        let expected = if block < BLOCKS / 2 { byte } else { byte + 1 };
        assert_eq!(nbd.read(at(block), BLOCK).unwrap(), [expected; BLOCK], "block {block}");
    }
}

/// The daemon is killed, and nobody has the state folder any more. The kernel has let go of the drives.
fn lose_state(instance: &Instance, drives: &[String]) {
    instance.kill();
    fs::remove_dir_all(instance.state()).unwrap();
    for drive in drives {
        let file = File::open(drive).unwrap();
        while file.try_lock().is_err() {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }
}

/// The content of files: what refusals may not change.
fn contents(paths: &[String]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn a_write_back_volume_comes_back_with_its_dirty_lines() {
    let instance = Instance::new();
    let drives = volume(&instance, 1);
    let [ssd, hdd] = &drives;
    let had_mark = instance.show("v")["hdd"]["identity"] != "";
    lose_state(&instance, &drives);
    let other = instance.drive("other", 64 * MIB);
    let creates: [[&str; 6]; 2] =
        [["create", "-s", ssd, "-p", &other, "w"], ["create", "-s", &other, "-p", ssd, "w"]];
    for args in creates {
        let answer = instance.run(&args).refused(1, "a Voltier cache of volume v with ");
        assert!(answer.err.contains("dirty line"), "{answer:?}");
        assert!(answer.err.contains("`voltier import DEVICE`"), "{answer:?}");
    }
    let dry = instance.run(&["import", "--dry-run", hdd, ssd]).ok();
    assert!(dry.out.starts_with("v: would be imported ("), "{dry:?}");
    instance.run(&["show", "v"]).refused(1, "no volume `v`");
    if had_mark {
        // Nothing is written to a drive that was not named, but the answer names the one that is found.
        let way_on = format!("`voltier import {ssd} {hdd}`");
        instance.run(&["import", ssd]).refused(1, &way_on);
    }
    let answer = instance.run(&["import", ssd, hdd]).ok();
    assert!(
        answer.out.starts_with(&format!("v: imported ({hdd}, wb fifo on {ssd}, ")),
        "{answer:?}"
    );
    assert!(answer.err.contains("voltier export v"), "{answer:?}");
    has_everything(&instance, "v", 1);
    instance.run(&["import", ssd]).refused(1, "already belongs to volume v");
    instance.run(&["delete", "v"]).ok();
    let file = File::open(hdd).unwrap();
    let mut last = [0; BLOCK];
    file.read_exact_at(&mut last, at(BLOCKS - 1)).unwrap();
    assert_eq!(last, [2; BLOCK], "the plain HDD has all");
}

#[test]
fn an_import_is_on_record_like_any_volume() {
    let instance = Instance::new();
    let drives = volume(&instance, 3);
    let [ssd, hdd] = &drives;
    instance.stop();
    fs::remove_dir_all(instance.state()).unwrap();
    let report = instance.run(&["import", hdd, ssd, "--json", "--name", "w"]).json();
    assert_eq!(report["volumes"][0]["name"], "w");
    assert_eq!(report["dry_run"], false);
    assert_eq!(report["volumes"][0]["stopped_in_order"], true);
    has_everything(&instance, "w", 3);
    instance.kill();
    instance.serve();
    assert_eq!(instance.show("w")["state"], "running");
    // The SSD names it now by its new name.
    lose_state(&instance, &drives);
    let answer = instance.run(&["import", ssd, hdd]).ok();
    assert!(answer.out.starts_with("w: imported ("), "{answer:?}");
    has_everything(&instance, "w", 3);
}

#[test]
fn a_changed_origin_is_refused_and_taken_when_the_user_says_so() {
    let instance = Instance::new();
    let drives = volume(&instance, 5);
    let [ssd, hdd] = &drives;
    lose_state(&instance, &drives);
    let file = File::options().write(true).open(hdd).unwrap();
    (0..BLOCKS / 2).for_each(|block| file.write_all_at(&[77], at(block)).unwrap());
    let before = contents(&drives);
    let answer = instance.run(&["import", ssd, hdd]).refused(1, "sampled lines differ");
    assert!(answer.err.contains("--changed-origin"), "{answer:?}");
    instance.run(&["show", "v"]).refused(1, "no volume `v`");
    instance.kill();
    assert!(before == contents(&drives), "a refused import has written");
    instance.run(&["import", "--changed-origin", ssd, hdd]).ok();
    let mut nbd = instance.exported("v");
    assert_eq!(nbd.read(at(0), BLOCK).unwrap()[0], 77);
    assert_eq!(nbd.read(at(BLOCKS - 1), BLOCK).unwrap(), [6; BLOCK]);
}

/// Copies of drives, as a snapshot makes them.
fn copies(instance: &Instance, drives: &[String; 2]) -> [String; 2] {
    let copy = |drive: &String| {
        let path = instance
            .path(&format!("{}2", std::path::Path::new(drive).file_name().unwrap().display()));
        fs::copy(drive, &path).unwrap();
        path.display().to_string()
    };
    drives.each_ref().map(copy)
}

/// Goal: the copy of a disk that a user names is served and written, and never the disk itself.
/// Method: a snapshot of both drives; the volume goes on, is deleted, and the snapshot imported.
#[test]
fn a_snapshot_is_imported_onto_the_disk_that_is_named_and_never_onto_the_original() {
    let instance = Instance::new();
    let drives = volume(&instance, 1);
    let [_, hdd] = &drives;
    let has_mark = instance.show("v")["hdd"]["identity"] != "";
    instance.kill();
    let [ssd2, hdd2] = copies(&instance, &drives);
    instance.serve();
    let mut nbd = instance.connect("v");
    (BLOCKS / 2..BLOCKS).for_each(|block| nbd.write(at(block), &[9; BLOCK]).unwrap());
    nbd.flush().unwrap();
    drop(nbd);
    instance.run(&["unexport", "v", "--now"]).ok();
    instance.run(&["delete", "v"]).ok();
    let before = fs::read(hdd).unwrap();
    let small = instance.drive("small", MIB);
    let answer = instance.run(&["import", "--name", "snap", &ssd2, &small]);
    let answer = answer.refused(1, "small has 1048576 bytes");
    assert!(!answer.err.contains("leave it out"), "{answer:?}");
    assert_eq!(answer.err.contains("is not taken instead"), has_mark, "{answer:?}");
    let dry = instance.run(&["import", "--dry-run", "--name", "snap", &ssd2, &hdd2]).ok();
    assert!(dry.out.starts_with(&format!("snap: would be imported ({hdd2}, ")), "{dry:?}");
    let answer = instance.run(&["import", "--name", "snap", &ssd2, &hdd2]).ok();
    assert!(answer.out.starts_with(&format!("snap: imported ({hdd2}, ")), "{answer:?}");
    assert_eq!(answer.err.contains(&format!("{hdd}, which has that one, is left alone")), has_mark);
    has_everything(&instance, "snap", 1);
    instance.run(&["flush", "snap"]).ok();
    instance.run(&["import", "--name", "again", &ssd2]).refused(1, "belongs to volume snap");
    instance.stop();
    assert!(before == fs::read(hdd).unwrap(), "the original was written");
}

#[test]
fn a_larger_copy_of_the_disk_is_taken_when_the_user_says_that_it_is_another_drive() {
    let instance = Instance::new();
    let drives = volume(&instance, 3);
    lose_state(&instance, &drives);
    let [ssd2, hdd2] = copies(&instance, &drives);
    File::options().write(true).open(&hdd2).unwrap().set_len(96 * MIB).unwrap();
    let before = contents(&drives);
    instance.run(&["import", &ssd2, &hdd2]).refused(1, "hdd2 has 100663296 bytes");
    let answer = instance.run(&["import", "--changed-origin", &ssd2, &hdd2]).ok();
    assert!(answer.out.starts_with(&format!("v: imported ({hdd2}, ")), "{answer:?}");
    has_everything(&instance, "v", 3);
    instance.stop();
    assert!(before == contents(&drives), "a drive that was not named was written");
}

/// Nobody knows which of two copies of an SSD was in use last, so neither writes to a disk that was not named.
#[test]
fn the_disk_must_be_named_while_another_copy_of_the_ssd_is_there() {
    let instance = Instance::new();
    let drives = volume(&instance, 5);
    let [ssd, hdd] = &drives;
    if instance.show("v")["hdd"]["identity"] == "" {
        eprintln!("left out: this file system keeps no time of birth");
        return;
    }
    lose_state(&instance, &drives);
    let older = copies(&instance, &drives)[0].clone();
    fs::rename(&older, instance.path("older")).unwrap();
    let older = instance.path("older").display().to_string();
    instance.run(&["import", ssd, hdd]).ok();
    lose_state(&instance, &drives);
    // The original knows more than its copy.
    let before = contents(&drives);
    let answer = instance.run(&["import", &older]).refused(1, "hold the same cache");
    assert!(answer.err.contains(&format!("`voltier import {older} {hdd}`")), "{answer:?}");
    assert!(before == contents(&drives), "a refused import has written");
    instance.run(&["import", ssd]).refused(1, &format!("`voltier import {ssd} {hdd}`"));
    assert!(before == contents(&drives), "a refused import has written");
    instance.run(&["import", ssd, hdd]).ok();
    instance.run(&["flush", "v"]).ok();
    instance.run(&["set", "v", "mode=wt"]).ok();
    instance.stop();
    fs::remove_dir_all(instance.state()).unwrap();
    // Clean, it writes nothing: its disk is found, unless a copy that is as new is there.
    instance.run(&["import", ssd]).ok();
    has_everything(&instance, "v", 5);
}

#[test]
fn refusals_are_one_line_and_change_nothing() {
    let instance = Instance::new();
    let [ssd, hdd] = volume(&instance, 7);
    lose_state(&instance, &[ssd.clone(), hdd.clone()]);
    let (empty, small) = (instance.drive("empty", 64 * MIB), instance.drive("small", MIB));
    let drives = [ssd, hdd, empty, small];
    let [ssd, hdd, empty, small] = &drives;
    let before = contents(&drives);
    for (devices, words) in [
        (vec![empty], "holds nothing of Voltier"),
        (vec![ssd, hdd, small], "small holds nothing of Voltier"),
        (vec![ssd, ssd], "given twice"),
    ] {
        let devices = devices.into_iter().map(String::as_str);
        instance.run(&["import"].into_iter().chain(devices).collect::<Vec<_>>()).refused(1, words);
    }
    instance.run(&["import", "mem:1M"]).refused(2, "empty at every start");
    instance.run(&["import", "--name", "a/b", ssd]).refused(2, "not a volume name");
    fs::rename(hdd, instance.path("away")).unwrap();
    fs::create_dir(instance.path("elsewhere")).unwrap();
    fs::rename(instance.path("away"), instance.path("elsewhere/hdd")).unwrap();
    let answer = instance.run(&["import", ssd, small]).refused(1, "was not found");
    assert!(answer.err.contains(hdd.as_str()) && answer.err.contains("1048576"), "{answer:?}");
    instance.run(&["create", "-p", empty, "v"]).ok();
    let elsewhere = instance.path("elsewhere/hdd");
    let elsewhere = elsewhere.to_str().unwrap();
    instance.run(&["import", ssd, elsewhere]).refused(1, "--name NEW");
    instance.kill();
    fs::rename(elsewhere, hdd).unwrap();
    assert!(before == contents(&drives), "a refused import has written");
    instance.run(&["import", "--name", "w", ssd, hdd]).ok();
    has_everything(&instance, "w", 7);
}

/// A dirty cache, and one that is clean by the record: nobody knows what a newer program wrote to it.
#[test]
fn a_cache_that_a_newer_program_wrote_is_refused_by_name_and_nothing_is_written() {
    const COPIES: [u64; 2] = [0, 64 << 10];
    let bit = "feature bit 63 is unknown here; written by a newer Voltier: update this one";
    let version = "format version 9, and this Voltier reads version 1; written by a newer Voltier";
    for (mode, at, value, words) in
        [("wb", 39, 0x80, bit), ("wt", 39, 0x80, bit), ("wb", 8, 9, version)]
    {
        let instance = Instance::new();
        let drives = volume(&instance, 5);
        let [ssd, hdd] = &drives;
        instance.run(&["set", "v", &format!("mode={mode}")]).ok();
        if mode == "wt" {
            instance.run(&["flush", "v"]).ok();
        }
        instance.stop();
        // The older copy is as good a reason: the other program was stopped between the two.
        change_sealed(ssd, &COPIES[1..], |block| block[at] = value);
        let before = contents(&drives);
        let shown = instance.show("v");
        let error = shown["error"].as_str().unwrap();
        assert_eq!(shown["state"], "failed", "{shown}");
        assert!(error.contains(ssd.as_str()) && error.contains(words), "{error}");
        instance.run(&["start", "v"]).refused(1, words);
        instance.stop();
        let other = Instance::new();
        let empty = instance.drive("empty", 64 * MIB);
        let answer = other.run(&["import", ssd, hdd]).refused(1, words);
        assert!(answer.err.contains(ssd.as_str()), "{answer:?}");
        other.run(&["create", "-s", ssd, "-p", &empty, "w"]).refused(1, words);
        other.run(&["create", "-p", ssd, "w"]).refused(1, words);
        other.run(&["create", "-p", &empty, "w"]).ok();
        other.run(&["attach", "w", "-s", ssd]).refused(1, words);
        other.stop();
        assert!(before == contents(&drives), "something was written");
        other.run(&["attach", "w", "-s", ssd, "-f"]).ok();
    }
}

/// Another cache on the SSD is no reason to keep a clean volume from its clients, whoever can read it.
#[test]
fn another_cache_that_a_newer_program_wrote_is_left_alone_and_the_volume_is_served() {
    let instance = Instance::new();
    let drives = volume(&instance, 5);
    let [ssd, _] = &drives;
    instance.run(&["set", "v", "mode=wt"]).ok();
    instance.run(&["flush", "v"]).ok();
    instance.stop();
    // The identity of the cache, and a feature.
    change_sealed(ssd, &[0, 64 << 10], |block| {
        block[16] ^= 1;
        block[39] = 0x80;
    });
    let before = fs::read(ssd).unwrap();
    let shown = instance.show("v");
    assert_eq!(shown["state"], "degraded", "{shown}");
    let error = shown["error"].as_str().unwrap();
    assert!(error.contains("feature bit 63 is unknown here"), "{error}");
    instance.stop();
    assert!(before == fs::read(ssd).unwrap(), "something was written");
}

#[test]
fn an_array_with_a_cache_over_it_comes_back_whatever_the_order() {
    let instance = Instance::new();
    let (members, ssd) = (drives(&instance, "d", 4), instance.drive("ssd", 32 * MIB));
    instance.run(&with(&["create", "a", "--level", "6"], &members)).ok();
    instance.run(&["create", "-s", &ssd, "-p", "array:a", "-t", "wb", "v"]).ok();
    instance.export("v");
    fill(&mut instance.connect("v"), 9);
    lose_state(&instance, &[&members[..], from_ref(&ssd)].concat());
    let [d0, d1, d2, d3] = [0, 1, 2, 3].map(|number| members[number].as_str());
    instance.run(&["import", &ssd]).refused(1, "give the members of that array");
    instance.run(&["import", d3, &ssd]).refused(1, "it can do without 2");
    let dry = instance.run(&["import", "--dry-run", d1, &ssd, d3, d0, d2]).ok();
    assert!(dry.out.starts_with("array a: would be imported (level 6, 4 of 4 members)"), "{dry:?}");
    let answer = instance.run(&["import", d1, &ssd, d3, d0, d2]).ok();
    assert!(
        answer
            .out
            .starts_with("array a: imported (level 6, 4 of 4 members)\nv: imported (array:a,")
    );
    instance.export("v");
    holds(&mut instance.connect("v"), 9);
    instance.stop();
    instance.serve();
    holds(&mut instance.connect("v"), 9);
    instance.run(&["array", "scrub", "a"]).ok();
}

#[test]
fn a_cache_on_an_array_comes_back() {
    let instance = Instance::new();
    let (members, hdd) = (drives(&instance, "d", 2), instance.drive("hdd", 64 * MIB));
    instance.run(&with(&["create", "mirror", "--level", "1"], &members)).ok();
    instance.run(&["create", "-s", "array:mirror", "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.export("v");
    fill(&mut instance.connect("v"), 11);
    lose_state(&instance, &[&members[..], from_ref(&hdd)].concat());
    let answer = instance.run(&["import", &members[1], &hdd, &members[0]]).ok();
    assert!(answer.out.contains("wb lru on array:mirror"), "{answer:?}");
    instance.export("v");
    holds(&mut instance.connect("v"), 11);
}

#[test]
fn a_journal_device_and_a_spare_come_back_and_then_a_member_may_be_missing() {
    let instance = Instance::new();
    let members = drives(&instance, "d", 3);
    let (journal, spare) = (instance.drive("journal", 32 * MIB), instance.drive("spare", 32 * MIB));
    let level = ["create", "a", "--level", "5", "--journal", &journal, "--spare", &spare];
    instance.run(&with(&level, &members)).ok();
    export(&instance);
    fill(&mut instance.connect("v"), 17);
    let all = [&members[..], &[journal.clone(), spare.clone()]].concat();
    lose_state(&instance, &all);
    let [d0, d1, d2] = [0, 1, 2].map(|number| members[number].as_str());
    instance.run(&["import", &journal]).refused(1, "give its members as well");
    instance.run(&["import", &spare]).refused(1, "is a spare of a");
    instance.run(&["import", d0, d1, d2]).refused(1, "the journal device of the array");
    let answer = instance.run(&["import", &spare, d2, &journal, d0, d1]).ok();
    let expected =
        format!("array a: imported (level 5, 3 of 3 members, journal {journal}, 1 spare)\n");
    assert_eq!(answer.out, expected, "{answer:?}");
    export(&instance);
    holds(&mut instance.connect("v"), 17);
    lose_state(&instance, &all);
    let answer = instance.run(&["import", d2, &journal, d0]).ok();
    assert!(answer.out.contains("2 of 3 members"), "{answer:?}");
    export(&instance);
    holds(&mut instance.connect("v"), 17);
}

#[test]
fn arrays_alone_come_back_and_their_plain_volumes_are_made_again() {
    let instance = Instance::new();
    let members = drives(&instance, "d", 3);
    instance.run(&with(&["create", "a", "--level", "5"], &members)).ok();
    export(&instance);
    fill(&mut instance.connect("v"), 13);
    instance.stop();
    fs::remove_dir_all(instance.state()).unwrap();
    let args: Vec<&str> =
        ["import"].into_iter().chain(members.iter().map(String::as_str)).collect();
    let answer = instance.run(&args).ok();
    assert!(answer.err.contains("voltier create -p array:a NAME"), "{answer:?}");
    instance.run(&args).refused(1, "already belongs to array a");
    export(&instance);
    holds(&mut instance.connect("v"), 13);
}

/// Goal: a copy of a member that a user names is used instead of the member, and nothing else is written.
#[test]
fn a_copy_of_a_member_that_is_named_is_used_and_the_member_left_alone() {
    let instance = Instance::new();
    let members = drives(&instance, "d", 3);
    instance.run(&with(&["create", "a", "--level", "5"], &members)).ok();
    export(&instance);
    fill(&mut instance.connect("v"), 21);
    instance.stop();
    fs::remove_dir_all(instance.state()).unwrap();
    let copy = instance.path("copy").display().to_string();
    fs::copy(&members[1], &copy).unwrap();
    let before = fs::read(&members[1]).unwrap();
    instance.run(&["import", &members[0], &members[1], &copy, &members[2]]).refused(1, "copy");
    let answer = instance.run(&["import", &members[0], &copy, &members[2]]).ok();
    assert!(answer.out.contains("3 of 3 members"), "{answer:?}");
    export(&instance);
    fill(&mut instance.connect("v"), 22);
    // The next start stays with the copy: the member is older by now.
    for _ in 0..2 {
        instance.stop();
        instance.serve();
        let shown = crate::support::arrays::array(&instance);
        assert_eq!(shown["state"], "running", "{shown}");
        assert_eq!(shown["members"][1]["path"], copy.as_str(), "{shown}");
        holds(&mut instance.connect("v"), 22);
    }
    instance.stop();
    assert!(before == fs::read(&members[1]).unwrap(), "the member was written");
}
