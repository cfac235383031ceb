//! Drives that change their names between two starts, through the real binary: known by their marks.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::support::{Instance, MIB};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// A write-back volume with dirty lines, each block of which is `byte`.
fn with_dirty_lines(instance: &Instance, name: &str, byte: u8) -> String {
    let ssd = instance.drive(&format!("{name}.ssd"), 32 * MIB);
    let hdd = instance.drive(&format!("{name}.hdd"), 64 * MIB);
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", name]).ok();
    let mut nbd = instance.exported(name);
    for block in 0..BLOCKS {
        nbd.write(block * MIB / 2, &[byte; BLOCK]).unwrap();
    }
    nbd.flush().unwrap();
    hdd
}

/// The first bytes of the blocks of a file.
fn blocks_of(path: &str) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let first = |block: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, block * MIB / 2).unwrap();
        byte[0]
    };
    (0..BLOCKS).map(first).collect()
}

fn swap(one: &str, other: &str) {
    let aside = format!("{one}.aside");
    fs::rename(one, &aside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&aside, other).unwrap();
}

#[test]
fn two_disks_that_change_names_get_each_its_own_dirty_lines() {
    let instance = Instance::new();
    let a = with_dirty_lines(&instance, "a", 1);
    let b = with_dirty_lines(&instance, "b", 2);
    instance.kill();
    swap(&a, &b);
    for (name, byte, now) in [("a", 1, &b), ("b", 2, &a)] {
        let shown = instance.show(name);
        assert_eq!(shown["hdd"]["path"], **now, "{shown}");
        assert!(!shown["hdd"]["identity"].as_str().unwrap().is_empty(), "{shown}");
        assert_eq!(instance.connect(name).read(0, BLOCK).unwrap(), [byte; BLOCK]);
        instance.run(&["flush", name]).ok();
        assert_eq!(blocks_of(now), [byte; BLOCKS as usize]);
    }
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("its backing disk file:"), "{log}");
    // The record has the new names: nothing is looked for at the next start.
    instance.stop();
    assert_eq!(instance.show("a")["hdd"]["path"], *b);
}

#[test]
fn another_disk_under_the_name_is_neither_served_nor_written() {
    let instance = Instance::new();
    let hdd = with_dirty_lines(&instance, "v", 1);
    instance.kill();
    let away = tempfile::tempdir().unwrap();
    let kept = away.path().join("hdd");
    fs::rename(&hdd, &kept).unwrap();
    let other = vec![9; 64 * MIB as usize];
    fs::write(&hdd, &other).unwrap();
    let shown = instance.show("v");
    assert_eq!(shown["state"], "failed", "{shown}");
    let problem = shown["error"].as_str().unwrap();
    for words in ["another drive", &hdd, "may hold the newest data", "set v hdd="] {
        assert!(problem.contains(words), "{words}: {problem}");
    }
    instance.run(&["export", "v", "--nbd"]).refused(1, "another drive");
    instance.stop();
    assert!(fs::read(&hdd).unwrap() == other, "the other disk was written");
    // The right one comes back, and has everything after a flush.
    fs::rename(&kept, &hdd).unwrap();
    instance.run(&["flush", "v"]).ok();
    assert_eq!(blocks_of(&hdd), [1; BLOCKS as usize]);
}

#[test]
fn a_plain_volume_is_not_served_from_another_disk_either() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 16 * MIB);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    instance.kill();
    fs::remove_file(&hdd).unwrap();
    instance.drive("hdd", 16 * MIB);
    let shown = instance.show("v");
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(shown["error"].as_str().unwrap().contains("another drive"), "{shown}");
    instance.run(&["set", "v", &format!("hdd={hdd}")]).ok();
    assert_eq!(instance.show("v")["state"], "running");
    instance.run(&["set", "v", &format!("hdd={hdd}")]).refused(1, "only while it is not served");
}

#[test]
fn a_copy_of_the_disk_takes_its_place_when_the_user_says_so_and_gets_the_dirty_lines() {
    let instance = Instance::new();
    let hdd = with_dirty_lines(&instance, "v", 3);
    let busy = instance.drive("busy", 64 * MIB);
    instance.run(&["create", "-p", &busy, "w"]).ok();
    instance.kill();
    fs::copy(&hdd, instance.path("copy")).unwrap();
    fs::remove_file(&hdd).unwrap();
    fs::copy(instance.path("copy"), &hdd).unwrap();
    instance.run(&["export", "v", "--nbd"]).refused(1, "another drive");
    let small = instance.drive("small", MIB);
    for (device, words) in [(&busy, "part of volume w"), (&small, "has 1048576 bytes and had")] {
        instance.run(&["set", "v", &format!("hdd={device}")]).refused(1, words);
    }
    instance.run(&["set", "v", &format!("hdd={hdd}"), "mode=wt"]).refused(2, "hdd");
    instance.run(&["set", "v", "hdd=copy"]).ok();
    instance.run(&["flush", "v"]).ok();
    let copy = instance.path("copy");
    assert_eq!(blocks_of(copy.to_str().unwrap()), [3; BLOCKS as usize]);
}

/// Exchanges what two files hold, as two disks without marks that have changed names.
fn swap_contents(one: &str, other: &str) {
    let (first, second) = (fs::read(one).unwrap(), fs::read(other).unwrap());
    fs::write(one, second).unwrap();
    fs::write(other, first).unwrap();
}

/// A volume whose cache has clean lines by which it knows its origin, and dirty ones of `byte`.
fn with_clean_and_dirty_lines(instance: &Instance, name: &str, byte: u8) -> String {
    let hdd = with_dirty_lines(instance, name, byte + 100);
    instance.run(&["flush", name]).ok();
    let mut nbd = instance.connect(name);
    for block in BLOCKS / 2..BLOCKS {
        nbd.write(block * MIB / 2, &[byte; BLOCK]).unwrap();
    }
    nbd.flush().unwrap();
    hdd
}

/// The first bytes of the blocks then: half of them as flushed, the others as written last.
fn newest(byte: u8) -> Vec<u8> {
    let half = BLOCKS as usize / 2;
    [[byte + 100].repeat(half), [byte].repeat(half)].concat()
}

#[test]
fn disks_without_marks_that_change_names_after_a_power_cut_are_refused_and_nothing_is_written() {
    let instance = Instance::new();
    let a = with_clean_and_dirty_lines(&instance, "a", 1);
    let b = with_clean_and_dirty_lines(&instance, "b", 2);
    instance.kill();
    swap_contents(&a, &b);
    let before = [fs::read(&a).unwrap(), fs::read(&b).unwrap()];
    for (name, hdd) in [("a", &a), ("b", &b)] {
        let shown = instance.show(name);
        assert_eq!(shown["state"], "failed", "{shown}");
        let problem = shown["error"].as_str().unwrap();
        let way_on = format!("`voltier set {name} hdd={hdd}`");
        for words in ["32 of 32 sampled lines differ", "32 dirty lines", &way_on, "--no-flush"] {
            assert!(problem.contains(words), "{words}: {problem}");
        }
        instance.run(&["flush", name]).refused(1, "sampled lines differ");
    }
    instance.stop();
    assert!(before == [fs::read(&a).unwrap(), fs::read(&b).unwrap()], "a wrong disk was written");
    // Each is where it was again, and has everything after a flush.
    swap_contents(&a, &b);
    for (name, byte, hdd) in [("a", 1, &a), ("b", 2, &b)] {
        instance.run(&["flush", name]).ok();
        assert_eq!(blocks_of(hdd), newest(byte));
    }
}

#[test]
fn what_a_changed_disk_holds_counts_when_the_user_says_so_once() {
    let instance = Instance::new();
    let hdd = with_clean_and_dirty_lines(&instance, "v", 1);
    instance.kill();
    // Somebody restores an older copy of the disk: its first half is other data now.
    let change = |byte: u8| {
        let file = File::options().write(true).open(&hdd).unwrap();
        (0..BLOCKS / 2).for_each(|block| file.write_all_at(&[byte], block * MIB / 2).unwrap());
    };
    change(77);
    instance.run(&["export", "v", "--nbd"]).refused(1, "or was changed");
    instance.run(&["set", "v", &format!("hdd={hdd}")]).ok();
    assert_eq!(instance.show("v")["state"], "running");
    assert_eq!(instance.connect("v").read(0, BLOCK).unwrap()[0], 77, "no old copy is served");
    instance.run(&["flush", "v"]).ok();
    let half = BLOCKS as usize / 2;
    assert_eq!(blocks_of(&hdd), [[77].repeat(half), [1].repeat(half)].concat());
    // The word was about that content: the next change is refused again.
    instance.connect("v").write(40 * MIB, &[9; BLOCK]).unwrap();
    instance.connect("v").flush().unwrap();
    instance.kill();
    let file = File::options().write(true).open(&hdd).unwrap();
    (BLOCKS / 2..BLOCKS).for_each(|block| file.write_all_at(&[5], block * MIB / 2).unwrap());
    instance.run(&["export", "v", "--nbd"]).refused(1, "or was changed");
}
