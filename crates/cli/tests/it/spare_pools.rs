//! Limits of members and pools of spares through the real binary.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;

use crate::support::arrays::{MIB, array_called, drives, with};
use crate::support::{Instance, sealed_registry, until};
use serde_json::Value;

fn make(instance: &Instance, name: &str) -> Vec<String> {
    let devices = drives(instance, name, 3);
    instance.run(&with(&["create", name, "--level", "5"], &devices)).ok();
    devices
}

fn until_whole(instance: &Instance, name: &str) -> Value {
    let mut shown = Value::Null;
    until("the array is whole", || {
        shown = array_called(instance, name);
        shown["state"] == "running"
    });
    shown
}

fn paths(shown: &Value) -> Vec<String> {
    let members = shown["members"].as_array().unwrap().iter();
    members.map(|member| member["path"].as_str().unwrap().to_owned()).collect()
}

fn waiting(instance: &Instance) -> Vec<String> {
    let pools = instance.run(&["array", "spare-pool", "show", "p", "--json"]).json();
    let spares = pools[0]["spares"].as_array().unwrap().iter();
    spares.map(|spare| spare.as_str().unwrap().to_owned()).collect()
}

/// Why the pool's first spare was not taken, as soon as the daemon has asked it.
fn until_left_out(instance: &Instance, pool: &str) -> String {
    loop {
        let shown = instance.run(&["array", "spare-pool", "show", pool, "--json"]).json();
        if let Some(why) = shown[0]["left_out"][0].as_str() {
            return why.to_owned();
        }
    }
}

fn fill(instance: &Instance, volume: &str, seed: u8) {
    let mut nbd = instance.connect(volume);
    for block in 0..64_u64 {
        nbd.write(block * 65536, &[seed ^ block as u8; 4096]).unwrap();
    }
    nbd.flush().unwrap();
}

fn holds(instance: &Instance, volume: &str, seed: u8) {
    let mut nbd = instance.connect(volume);
    for block in 0..64_u64 {
        assert_eq!(nbd.read(block * 65536, 4096).unwrap(), [seed ^ block as u8; 4096]);
    }
}

#[test]
fn the_first_array_of_a_pool_that_loses_a_member_takes_the_spare_that_fits_by_itself() {
    let instance = Instance::new();
    let (a, b) = (make(&instance, "a"), make(&instance, "b"));
    let (small, spare) = (instance.drive("small", 8 * MIB), instance.drive("spare", 32 * MIB));
    instance.run(&["array", "set", "a", "spare_pool=p"]).refused(1, "no spare pool `p`");
    instance.run(&["array", "spare-pool", "add", "p", &small]).ok();
    for name in ["a", "b"] {
        instance.run(&["array", "set", name, "spare_pool=p"]).ok();
    }
    instance.run(&["array", "spare-pool", "add", "p", &spare]).ok();
    instance.run(&["create", "-p", "array:b", "v"]).ok();
    instance.export("v");
    fill(&instance, "v", 5);
    let shown = array_called(&instance, "b");
    assert_eq!(
        (&shown["spare_pool"], shown["pool_spares"].as_array().unwrap().len()),
        (&"p".into(), 2)
    );
    instance.run(&["array", "fail", "b", &b[1]]).ok();
    let shown = until_whole(&instance, "b");
    assert_eq!(paths(&shown)[1], spare);
    assert_eq!(waiting(&instance), std::slice::from_ref(&small));
    // The next one finds none that is large enough, and says so; also after a kill.
    instance.run(&["array", "fail", "a", &a[0]]).ok();
    instance.kill();
    assert_eq!(array_called(&instance, "a")["state"], "degraded");
    assert_eq!(paths(&until_whole(&instance, "b"))[1], spare);
    assert_eq!(waiting(&instance), [small]);
    // The drive that b left behind is free, and serves a when the pool has it.
    instance.run(&["array", "spare-pool", "add", "p", &b[1]]).refused(1, "-f");
    instance.run(&["array", "spare-pool", "add", "-f", "p", &b[1]]).ok();
    assert_eq!(paths(&until_whole(&instance, "a"))[0], b[1]);
    holds(&instance, "v", 5);
}

#[test]
fn a_daemon_killed_while_a_spare_is_taken_gives_it_to_one_array_and_the_loss_is_made_good() {
    for round in 0..6 {
        let instance = Instance::new();
        let (a, b) = (make(&instance, "a"), make(&instance, "b"));
        let spares = drives(&instance, "s", 2);
        instance.run(&["array", "spare-pool", "add", "p", &spares[0], &spares[1]]).ok();
        for name in ["a", "b"] {
            instance.run(&["array", "set", name, "spare_pool=p"]).ok();
            instance.run(&["create", "-p", &format!("array:{name}"), name]).ok();
            instance.export(name);
            fill(&instance, name, name.as_bytes()[0]);
        }
        instance.run(&["array", "fail", "a", &a[round % 3]]).ok();
        instance.run(&["array", "fail", "b", &b[round % 2]]).ok();
        for _ in 0..round {
            array_called(&instance, "a");
        }
        instance.kill();
        let shown = ["a", "b"].map(|name| until_whole(&instance, name));
        let used: Vec<String> = shown.iter().flat_map(paths).collect();
        assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), 6, "nothing is used twice");
        assert!(spares.iter().all(|spare| used.contains(spare)), "{used:?}");
        assert!(waiting(&instance).is_empty());
        for name in ["a", "b"] {
            holds(&instance, name, name.as_bytes()[0]);
        }
    }
}

/// A daemon was killed when a spare was on record as a member, and before the spare had the label of one.
fn killed_before_the_label(is_old_there: bool) {
    let instance = Instance::new();
    let members = make(&instance, "a");
    instance.run(&["create", "-p", "array:a", "a"]).ok();
    instance.export("a");
    fill(&instance, "a", 3);
    let spare = instance.drive("s", 32 * MIB);
    instance.run(&["array", "add-spare", "a", &spare]).ok();
    instance.stop();
    let away = instance.aside("s");
    fs::rename(&spare, &away).unwrap();
    instance.serve();
    instance.run(&["array", "fail", "a", &members[1]]).ok();
    instance.kill();
    fs::rename(&away, &spare).unwrap();
    if !is_old_there {
        fs::remove_file(&members[1]).unwrap();
    }
    let path = instance.state().join("registry.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut body = serde_json::from_str::<Value>(&text).unwrap()["registry"].take();
    let record = &mut body["arrays"][0];
    assert_eq!(record["spares"][0], *spare);
    record["spares"].as_array_mut().unwrap().clear();
    record["members"][1] = spare.clone().into();
    record["events"] = (record["events"].as_u64().unwrap() + 1).into();
    let head = text.lines().next().unwrap();
    let body = serde_json::to_string_pretty(&body).unwrap();
    fs::write(&path, sealed_registry(&format!("{head}\n{body}\n}}\n"))).unwrap();
    let [first, _, last] = members.try_into().unwrap();
    assert_eq!(paths(&until_whole(&instance, "a")), [first, spare, last]);
    holds(&instance, "a", 3);
}

#[test]
fn a_spare_on_record_as_a_member_and_without_its_label_makes_the_loss_good_at_the_next_start() {
    for is_old_there in [true, false] {
        killed_before_the_label(is_old_there);
    }
}

#[test]
fn a_spare_of_an_array_is_taken_back_while_the_array_serves_and_its_drive_is_free() {
    let instance = Instance::new();
    let members = make(&instance, "a");
    let spares = drives(&instance, "s", 2);
    for spare in &spares {
        instance.run(&["array", "add-spare", "a", spare]).ok();
    }
    instance.run(&["array", "spare-pool", "add", "p", &spares[0]]).refused(1, "part of array a");
    let out = instance.run(&["array", "remove-spare", "a", &spares[0]]).ok().out;
    assert!(out.starts_with("a: spare removed (level 5, 3 members"), "{out}");
    let waiting = |instance: &Instance| array_called(instance, "a")["spares"].clone();
    assert_eq!(waiting(&instance), serde_json::json!([spares[1]]));
    instance
        .run(&["array", "remove-spare", "a", &spares[0]])
        .refused(1, "is not a spare of a; its spares");
    instance
        .run(&["array", "remove-spare", "a", &members[0]])
        .refused(1, "is member 0 of a and no spare");
    // Free for anything, also after a kill, and without -f.
    instance.kill();
    assert_eq!(waiting(&instance), serde_json::json!([spares[1]]));
    instance.run(&["array", "spare-pool", "add", "p", &spares[0]]).ok();
    instance.run(&["array", "fail", "a", &members[1]]).ok();
    assert_eq!(paths(&until_whole(&instance, "a"))[1], spares[1]);
    let refused = instance.run(&["array", "remove-spare", "a", &spares[1]]);
    refused.refused(1, "is member 1 of a");
}

#[test]
fn limits_are_shown_survive_restarts_and_what_they_cannot_be_is_refused() {
    let instance = Instance::new();
    make(&instance, "a");
    let limits = |instance: &Instance| array_called(instance, "a")["limits"].clone();
    let usual = serde_json::json!({
        "max_errors": 20, "error_window_s": 3600, "slow_factor": 5, "slow_window_s": 30,
        "slow_action": "show", "deadline_s": 75
    });
    assert_eq!(limits(&instance), usual);
    let set = ["max_errors=7", "error_window=15m", "slow_factor=9", "slow_window=2m"];
    let args = ["array", "set", "a", "slow_action=avoid", "deadline=off"].into_iter().chain(set);
    instance.run(&args.collect::<Vec<_>>()).ok();
    let chosen = serde_json::json!({
        "max_errors": 7, "error_window_s": 900, "slow_factor": 9, "slow_window_s": 120,
        "slow_action": "avoid", "deadline_s": 0
    });
    instance.kill();
    assert_eq!(limits(&instance), chosen);
    for (change, words) in [
        ("max_errors=some", "not a number"),
        ("error_window=0", "not a window"),
        ("slow_window=1y", "not a window"),
        ("slow_action=fall", "did you mean `fail`"),
        ("deadline=soon", "not a deadline"),
        ("slow_facter=2", "did you mean `slow_factor`"),
    ] {
        instance.run(&["array", "set", "a", change]).refused(2, words);
    }
    assert_eq!(limits(&instance), chosen);
    instance.run(&["array", "spare-pool", "show", "q"]).refused(1, "no spare pool `q`");
    let member = &array_called(&instance, "a")["members"][0];
    assert_eq!((&member["errors_read"], &member["slow"]), (&0.into(), &false.into()));
}

#[test]
fn a_slow_copy_is_found_and_the_other_one_is_read() {
    let instance = Instance::new();
    let fast = instance.drive("fast", 32 * MIB);
    let slow = format!("model:hdd-7200:{}", instance.drive("slow", 32 * MIB));
    instance.run(&["array", "create", "m", "--level", "1", &fast, &slow]).ok();
    instance.run(&["array", "set", "m", "slow_window=1s"]).ok();
    instance.run(&["create", "-p", "array:m", "v"]).ok();
    let mut nbd = instance.exported("v");
    for block in 0..16_u64 {
        nbd.write(block * MIB, &[block as u8; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    let shown = loop {
        for block in (0..16_u64).cycle().take(64) {
            assert_eq!(nbd.read(block * MIB, 4096).unwrap(), [block as u8; 4096]);
        }
        let shown = array_called(&instance, "m");
        if shown["members"][1]["slow"] == true {
            break shown;
        }
    };
    assert_eq!((&shown["state"], &shown["members"][0]["slow"]), (&"running".into(), &false.into()));
    let p50_us = |member: usize| shown["members"][member]["read_latency"]["p50_us"].as_u64();
    assert!(p50_us(1) > p50_us(0));
    let text = instance.run(&["array", "show", "m"]).ok().out;
    assert!(text.contains("is slower than the others"), "{text}");
}

/// A superblock of md, version 1.0, for a place on the drive in bytes: as much of it as `blkid` checks.
fn md_superblock(at: u64) -> [u8; 256] {
    let mut block = [0; 256];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &0xa92b_4efc_u32.to_le_bytes());
    put(4, &1_u32.to_le_bytes());
    put(16, &[7; 16]);
    put(144, &(at / 512).to_le_bytes());
    let words =
        block.chunks_exact(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())));
    let sum: u64 = words.sum();
    let sum = ((sum & 0xffff_ffff) + (sum >> 32)) as u32;
    block[216..220].copy_from_slice(&sum.to_le_bytes());
    block
}

#[test]
fn a_disk_that_takes_the_name_of_a_forced_spare_is_not_overwritten() {
    let instance = Instance::new();
    let members = make(&instance, "a");
    let spare = instance.drive("spare", 32 * MIB);
    let mut old = vec![0; 32 * MIB as usize];
    old[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(&spare, old).unwrap();
    instance.run(&["array", "spare-pool", "add", "p", &spare]).refused(1, "ext2/3/4");
    instance.run(&["array", "spare-pool", "add", "-f", "p", &spare]).ok();
    instance.run(&["array", "set", "a", "spare_pool=p"]).ok();
    instance.kill();
    // Data without a mark that anybody knows.
    fs::remove_file(&spare).unwrap();
    let other = vec![9; 32 * MIB as usize];
    fs::write(&spare, &other).unwrap();
    instance.run(&["array", "fail", "a", &members[1]]).ok();
    assert_eq!(array_called(&instance, "a")["state"], "degraded");
    let why = until_left_out(&instance, "p");
    assert!(why.contains(&spare) && why.contains("no valid spare label"), "{why}");
    let table = instance.run(&["array", "spare-pool", "show", "p"]).ok().out;
    assert!(table.contains("not taken by a: ") && table.contains(&why), "{table}");
    assert!(fs::read(&spare).unwrap() == other, "the other disk was written");
    // Something that leaves the label whole: the superblock of md 1.0 near the end of the drive.
    let spare2 = instance.drive("spare2", 32 * MIB);
    instance.run(&["array", "spare-pool", "add", "q", &spare2]).ok();
    let file = fs::File::options().write(true).open(&spare2).unwrap();
    let superblock = md_superblock(32 * MIB - 8192);
    file.write_all_at(&superblock, 32 * MIB - 8192).unwrap();
    instance.run(&["array", "set", "a", "spare_pool=q"]).ok();
    assert_eq!(array_called(&instance, "a")["state"], "degraded");
    let why = until_left_out(&instance, "q");
    assert!(why.contains("linux_raid_member"), "{why}");
    instance.run(&["array", "set", "a", "spare_pool=p"]).ok();
    // The user takes it, and says so.
    instance.run(&["array", "spare-pool", "remove", "p", &spare]).ok();
    assert!(fs::read(&spare).unwrap() == other, "the other disk was written");
    instance.run(&["array", "spare-pool", "add", "p", &spare]).ok();
    assert_eq!(paths(&until_whole(&instance, "a"))[1], spare);
}
