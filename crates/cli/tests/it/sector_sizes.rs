//! Drives whose sectors are larger, or smaller, than they were: another adapter or enclosure does that.

use serde_json::Value;

use crate::support::Instance;
use crate::support::arrays::{MIB, after_start, array, client, drives, export, fill, holds, with};
use crate::support::looped::Looped;
use crate::support::nbd::NbdClient;

/// A loop device over a file with sectors of so many bytes.
fn sectors(bytes: u32, file: &str) -> Option<Looped> {
    Looped::with(&["--sector-size", &bytes.to_string(), file])
}

/// The same loop devices anew, with these sectors each.
fn anew(disks: &mut Vec<Looped>, files: &[String], bytes: &[u32]) {
    disks.clear();
    disks.extend(files.iter().zip(bytes).map(|(file, bytes)| sectors(*bytes, file).unwrap()));
}

/// An array `a` over loop devices with sectors of 512 bytes, and a volume `v` over it.
fn looped_array(level: &[&str]) -> Option<(Instance, Vec<String>, Vec<Looped>)> {
    let instance = Instance::new();
    let files = drives(&instance, "d", 3);
    let disks: Option<Vec<Looped>> = files.iter().map(|file| sectors(512, file)).collect();
    let disks = disks?;
    let names: Vec<String> = disks.iter().map(|disk| disk.0.clone()).collect();
    instance.run(&with(&[&["create", "a", "--level"], level].concat(), &names)).ok();
    export(&instance);
    Some((instance, files, disks))
}

#[track_caller]
fn is_whole(shown: &Value) {
    assert_eq!(shown["state"], "running", "{shown}");
    let left_out = shown["left_out"].as_array().is_none_or(Vec::is_empty);
    assert!(left_out, "{shown}");
}

/// Leaves single sectors in the journal, and kills the daemon.
fn kill_under_writes(instance: &Instance, seed: u8) {
    let mut nbd = client(instance);
    fill(&mut nbd, seed);
    for at in 0..500_u64 {
        nbd.write((16 << 20) + at * 4608, &[seed ^ at as u8; 512]).unwrap();
    }
    instance.kill();
}

fn has_it_all(instance: &Instance, seed: u8) {
    let mut nbd = after_start(instance);
    holds(&mut nbd, seed);
    for at in 0..500_u64 {
        let found = nbd.read((16 << 20) + at * 4608, 512).unwrap();
        assert_eq!(found, [seed ^ at as u8; 512], "{at}");
    }
}

#[test]
fn members_with_other_sectors_than_before_serve_after_a_crash_and_after_a_stop() {
    for level in [&["5"][..], &["5", "--consistency", "bitmap"], &["5", "--integrity", "crc32c"]] {
        let Some((instance, files, mut disks)) = looped_array(level) else { return };
        let all = [[4096, 512, 512], [4096; 3], [512, 4096, 512], [512; 3]];
        for (seed, bytes) in (1..).zip(all) {
            kill_under_writes(&instance, seed);
            anew(&mut disks, &files, &bytes);
            has_it_all(&instance, seed);
            let shown = array(&instance);
            assert_eq!((&shown["state"], &shown["may_lose"]), (&"running".into(), &1.into()));
        }
        for (seed, bytes) in (10..).zip([all[0], all[1], all[3]]) {
            fill(&mut client(&instance), seed);
            instance.stop();
            anew(&mut disks, &files, &bytes);
            holds(&mut after_start(&instance), seed);
            is_whole(&array(&instance));
        }
        instance.run(&["array", "scrub", "a", "--check"]).ok();
        assert_eq!(array(&instance)["scrub_found"]["mismatched_blocks"], 0);
        instance.stop();
    }
}

#[test]
fn a_drive_with_larger_sectors_takes_the_place_of_a_member_with_smaller_ones() {
    let Some((instance, files, mut disks)) = looped_array(&["5"]) else { return };
    fill(&mut client(&instance), 1);
    instance.run(&["array", "fail", "a", "0"]).ok();
    fill(&mut client(&instance), 2);
    // The member itself, behind another adapter, and a new drive.
    let new = instance.drive("new", 32 * MIB);
    drop(disks.remove(0));
    for file in [&files[0], &new] {
        let disk = sectors(4096, file).unwrap();
        instance.run(&["array", "replace", "a", "0", &disk.0]).ok();
        is_whole(&array(&instance));
        kill_under_writes(&instance, 3);
        has_it_all(&instance, 3);
        disks.push(disk);
    }
    let log = std::fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("has sectors of 4096 bytes, and the array has 512"), "{log}");
    instance.run(&["array", "fail", "a", "1"]).ok();
    has_it_all(&instance, 3);
    instance.stop();
}

#[test]
fn a_cache_whose_drives_have_other_sectors_than_before_serves_what_was_acknowledged() {
    let instance = Instance::new();
    let files = [instance.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB)];
    let mut disks: Vec<Looped> = Vec::new();
    for file in &files {
        let Some(disk) = sectors(512, file) else { return };
        disks.push(disk);
    }
    instance.run(&["create", "-s", &disks[0].0, "-p", &disks[1].0, "-t", "wb", "v"]).ok();
    instance.export("v");
    for (seed, bytes) in (1..).zip([[4096, 512], [4096, 4096], [512, 4096], [512, 512]]) {
        let mut nbd = client(&instance);
        for at in 0..500_u64 {
            nbd.write(at * 4608, &[seed ^ at as u8; 512]).unwrap();
        }
        if seed % 2 == 0 {
            instance.stop()
        } else {
            instance.kill()
        }
        anew(&mut disks, &files, &bytes);
        let mut nbd: NbdClient = after_start(&instance);
        for at in 0..500_u64 {
            assert_eq!(nbd.read(at * 4608, 512).unwrap(), [seed ^ at as u8; 512], "{at}");
        }
        instance.run(&["flush", "v"]).ok();
    }
    instance.stop();
}
