//! Arrays through the real binary: made, used, failed, taken apart and put together again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::support::arrays::{
    MIB, after_start, array, array_volume, client, drives, export, fill, holds, with,
};
use crate::support::looped::Looped;
use crate::support::{Instance, change_sealed, fio_is_content};

#[test]
fn every_level_serves_and_comes_back_after_a_stop_and_a_kill() {
    let levels: [(&[&str], usize, u64); 11] = [
        (&["0"], 2, 0),
        (&["1"], 3, 2),
        (&["10"], 4, 1),
        (&["5"], 3, 1),
        (&["6"], 5, 2),
        (&["7.3"], 6, 3),
        (&["50"], 6, 1),
        (&["60", "--group", "4"], 8, 2),
        (&["70", "--group", "5", "--chunk", "64K"], 10, 3),
        (&["4+2"], 6, 2),
        (&["3+4", "--chunk", "4K"], 7, 4),
    ];
    for (level, count, may_lose) in levels {
        let (instance, _) = array_volume(level, count);
        let shown = array(&instance);
        assert_eq!((&shown["state"], &shown["used_by"]), (&"running".into(), &"v".into()));
        assert_eq!((&shown["level"], &shown["may_lose"]), (&level[0].into(), &may_lose.into()));
        assert_eq!(shown["members"].as_array().unwrap().len(), count);
        assert_eq!(shown["size_bytes"], instance.show("v")["size_bytes"]);
        fill(&mut client(&instance), 1);
        instance.stop();
        holds(&mut after_start(&instance), 1);
        fill(&mut client(&instance), 2);
        instance.kill();
        holds(&mut after_start(&instance), 2);
        assert_eq!(array(&instance)["state"], "running", "{level:?}");
    }
}

#[test]
fn fio_verifies_while_members_fail_one_after_the_other() {
    let (instance, devices) = array_volume(&["6"], 6);
    let uri = instance.show("v")["exports"][0]["uri"].as_str().unwrap().to_owned();
    let mut fio =
        instance.fio_verified(&uri, &["--bsrange=512-128k", "--size=48M", "--io_size=192M"]);
    for member in &devices[1..3] {
        let before = array(&instance)["counts"]["writes"].as_u64().unwrap();
        let goes_on = |fio: &mut Option<std::process::Child>| {
            fio.as_mut().is_some_and(|fio| fio.try_wait().unwrap().is_none())
        };
        while goes_on(&mut fio)
            && array(&instance)["counts"]["writes"].as_u64().unwrap() < before + 200
        {}
        let shown = instance.run(&["array", "fail", "a", member, "--json"]).json();
        assert_eq!(shown["state"], "degraded");
    }
    instance.run(&["array", "fail", "a", &devices[0]]).refused(1, "2");
    fio_is_content(fio);
    let shown = array(&instance);
    assert_eq!(shown["may_lose"], 0);
    assert_eq!(instance.show("v")["hdd"]["state"], "degraded");
    assert_eq!(instance.show("v")["state"], "running");
    fill(&mut client(&instance), 3);
    instance.kill();
    let mut nbd = after_start(&instance);
    holds(&mut nbd, 3);
    let shown = array(&instance);
    assert_eq!(shown["state"], "degraded");
    let left_out = shown["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 2, "members that were given up stay out: {shown}");
}

#[test]
fn a_cache_stands_on_one_array_in_front_of_another() {
    let instance = Instance::new();
    let (slow, fast) = (drives(&instance, "d", 6), ["m0", "m1"]);
    let fast = fast.map(|name| instance.drive(name, 48 * MIB));
    instance.run(&with(&["create", "r6", "--level", "6"], &slow)).ok();
    instance.run(&with(&["create", "m1", "--level", "1"], &fast)).ok();
    instance.run(&["create", "-p", "array:r6", "-s", "array:r6", "v"]).refused(1, "same device");
    instance.run(&["create", "-p", "array:r6", "-s", "array:m1", "-t", "wb", "v"]).ok();
    let uri = instance.export("v");
    let fio = instance.fio_verified(&uri, &["--bsrange=512-64k", "--size=48M", "--io_size=128M"]);
    instance.run(&["array", "fail", "m1", &fast[0]]).ok();
    instance.run(&["array", "fail", "r6", &slow[5]]).ok();
    fio_is_content(fio);
    fill(&mut client(&instance), 4);
    instance.kill();
    holds(&mut after_start(&instance), 4);
    let shown = instance.show("v");
    assert_eq!(
        (&shown["ssd"]["path"], &shown["ssd"]["state"]),
        (&"array:m1".into(), &"degraded".into())
    );
    for name in ["r6", "m1"] {
        instance.run(&["array", "delete", name]).refused(1, "in use by volume v");
    }
    instance.run(&["detach", "v"]).ok();
    instance.run(&["array", "delete", "m1"]).ok();
    holds(&mut client(&instance), 4);
    let fast = ["n0", "n1"].map(|name| instance.drive(name, 48 * MIB));
    instance.run(&with(&["create", "m2", "--level", "1"], &fast)).ok();
    instance.run(&["attach", "v", "-s", "array:m2", "-t", "wb"]).ok();
    holds(&mut client(&instance), 4);
}

#[test]
fn a_missing_member_degrades_and_a_stale_one_is_refused_when_it_returns() {
    let (instance, devices) = array_volume(&["5"], 4);
    fill(&mut client(&instance), 5);
    instance.stop();
    let away = instance.aside("away");
    fs::rename(&devices[2], &away).unwrap();
    let mut nbd = after_start(&instance);
    holds(&mut nbd, 5);
    fill(&mut nbd, 6);
    drop(nbd);
    let shown = array(&instance);
    assert_eq!((&shown["state"], &shown["may_lose"]), (&"degraded".into(), &0.into()));
    assert!(shown["left_out"][0].as_str().unwrap().contains("does not exist"), "{shown}");
    let shown = instance.run(&["array", "show"]).refused(1, "the array a is degraded");
    assert!(shown.out.contains("3 of 4"), "{shown:?}");
    instance.stop();
    fs::rename(&away, &devices[2]).unwrap();
    holds(&mut after_start(&instance), 6);
    let shown = array(&instance);
    assert_eq!(shown["state"], "degraded", "{shown}");
    let said = shown["left_out"][0].as_str().unwrap();
    assert!(said.contains(&devices[2]), "{said}");
    // One more, and the volume waits for it.
    instance.stop();
    fs::rename(&devices[0], &away).unwrap();
    let shown = instance.show("v");
    assert_eq!(shown["state"], "failed");
    assert!(shown["error"].as_str().unwrap().contains("the array a is not assembled"), "{shown}");
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("array a: ") && log.contains("does not exist"), "{log}");
    let found = [&devices[1], &devices[3], &away].map(Clone::clone);
    instance.run(&with(&["assemble"], &found)).ok();
    holds(&mut client(&instance), 6);
}

#[test]
fn a_deleted_array_is_put_together_from_its_members_in_any_order_unless_erased() {
    let (instance, devices) = array_volume(&["6"], 5);
    fill(&mut client(&instance), 7);
    instance.run(&["array", "delete", "a"]).refused(1, "in use by volume v");
    instance.run(&["delete", "v"]).ok();
    instance.run(&["array", "delete", "a"]).ok();
    instance.run(&["array", "show", "a"]).refused(1, "no array `a`");
    for device in &devices {
        instance.run(&["create", "-p", device, "w"]).refused(1, "a member of a Voltier array");
    }
    instance
        .run(&with(&["create", "b", "--level", "6"], &devices))
        .refused(1, "a member of a Voltier array, which would be lost; use -f");
    let mut mixed = devices.clone();
    mixed.reverse();
    mixed.swap(0, 2);
    instance.run(&with(&["assemble"], &mixed)).ok();
    export(&instance);
    holds(&mut client(&instance), 7);
    instance.run(&["delete", "v"]).ok();
    instance.run(&["array", "delete", "a", "--erase"]).ok();
    instance.run(&with(&["assemble"], &devices)).refused(1, "not a member of an array");
    instance.run(&with(&["create", "b", "--level", "5"], &devices)).ok();
}

#[test]
fn an_array_is_assembled_once_however_many_daemons_there_are() {
    let (instance, devices) = array_volume(&["5"], 3);
    let other = Instance::new();
    other.run(&with(&["assemble"], &devices)).refused(1, "is in use by another program");
    other.run(&with(&["create", "-f", "b", "--level", "5"], &devices)).refused(1, "in use");
    instance.stop();
    other.run(&with(&["assemble"], &devices)).ok();
    let shown = instance.show("v");
    assert_eq!(shown["state"], "failed", "{shown}");
}

#[test]
fn wrong_usage_of_arrays_is_one_line_with_exit_code_two_and_starts_nothing() {
    let instance = Instance::new();
    let cases: [(&str, &str); 24] = [
        ("array", "voltier array --help"),
        ("array creat", "create"),
        ("array create", "voltier array create --help"),
        ("array create a --level 6", "<DEV>"),
        ("array create a d0 d1 d2", "--level"),
        ("array create ../a --level 5 d0 d1 d2", "not an array name"),
        ("array create a --level 4 d0 d1 d2", "not a level"),
        ("array create a --level 6 d0 d1 d2", "4 or more"),
        ("array create a --level 5 d0 d1", "3 or more"),
        ("array create a --level 7.3 d0 d1 d2 d3", "5 or more"),
        ("array create a --level 1 d0", "2 to 9"),
        ("array create a --level 10 d0 d1 d2", "an even number"),
        ("array create a --level 0 d0", "2 or more"),
        ("array create a --level 4+2 d0 d1 d2 d3 d4", "is not possible"),
        ("array create a --level 2+9 d0 d1 d2 d3 d4 d5 d6 d7 d8 d9 d10", "give 1 to 8"),
        ("array create a --level 50 --group 3 d0 d1 d2 d3", "groups of 3"),
        ("array create a --level 50 d0 d1 d2", "--group N"),
        ("array create a --level 5 --group 3 d0 d1 d2", "no groups"),
        ("array create a --level 5 --chunk 12K d0 d1 d2", "power of two from 4K to 1M"),
        ("array create a --level 5 --chunk 2M d0 d1 d2", "power of two from 4K to 1M"),
        ("array create a --level 5 --consistency journl d0 d1 d2", "did you mean `journal`"),
        ("array grow a", "--parity"),
        ("array grow a --parity d0 --member d1", "cannot be used with"),
        ("array create a --level 5 --forse d0 d1 d2", "did you mean `--force`"),
    ];
    for (line, words) in cases {
        instance.run(&line.split(' ').collect::<Vec<_>>()).refused(2, words);
    }
    let many: Vec<String> = (0..65).map(|number| format!("d{number}")).collect();
    instance.run(&with(&["create", "a", "--level", "6"], &many)).refused(2, "at most 64");
    assert!(!instance.state().exists(), "wrong usage starts nothing");
}

#[test]
fn members_that_cannot_be_are_refused_and_nothing_is_changed() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 4);
    let create = ["create", "a", "--level", "5"];
    let (one, two) = (&devices[0], &devices[1]);
    let three = |third: &str| {
        with(&create, &devices[..2])
            .into_iter()
            .map(str::to_owned)
            .chain([third.to_owned()])
            .collect::<Vec<String>>()
    };
    let refused = |third: &str, code: i32, words: &str| {
        let args = three(third);
        instance.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).refused(code, words);
    };
    refused("/no/such/disk", 1, "does not exist");
    refused("/dev/null", 1, "neither a regular file nor a block device");
    refused(one, 1, "given twice");
    std::os::unix::fs::symlink(two, instance.path("link")).unwrap();
    refused("link", 1, "given twice");
    refused("array:a", 2, "arrays cannot be nested");
    let tiny = instance.drive("tiny", MIB);
    refused(&tiny, 1, "the smallest member has 1024 KiB");
    let content = instance.drive("content", 32 * MIB);
    File::options().write(true).open(&content).unwrap().write_all_at(&[0x53, 0xef], 1080).unwrap();
    refused(&content, 1, "ext2/3/4");
    let busy = File::open(&devices[3]).unwrap();
    rustix::fs::flock(&busy, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    refused(&devices[3], 1, "in use by another program");
    drop(busy);
    assert_eq!(instance.run(&["array", "show", "--json"]).json(), serde_json::json!([]));
    for device in &devices {
        let bytes = fs::read(device).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{device} was written");
    }
    let large = instance.drive("large", 64 * MIB);
    let args = three(&large);
    let made = instance.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    assert!(made.err.contains("large has 64M and is used like the smallest member"), "{made:?}");
    instance.run(&["array", "fail", "a", &devices[3]]).refused(1, "not a member of a");
    instance.run(&["array", "fail", "b", one]).refused(1, "no array `b`; known: a");
    instance.run(&["create", "-p", one, "v"]).refused(1, "already part of array a");
    instance.run(&["create", "-p", "array:b", "v"]).refused(1, "no array `b`");
    instance.run(&["array", "fail", "a", one]).ok();
    instance.run(&["array", "fail", "a", one]).refused(1, "out of service in a already");
    instance.run(&["array", "fail", "a", two]).refused(1, "2 members of group 0 are lost");
}

#[test]
fn half_of_a_mirror_starts_where_it_was_used_last_and_elsewhere_by_choice_only() {
    let (instance, devices) = array_volume(&["1"], 2);
    fill(&mut client(&instance), 9);
    instance.stop();
    let away = instance.aside("away");
    fs::rename(&devices[1], &away).unwrap();
    let mut nbd = after_start(&instance);
    fill(&mut nbd, 10);
    drop(nbd);
    assert_eq!(array(&instance)["state"], "degraded");
    // The other half alone is the old one, here and elsewhere.
    instance.stop();
    let newer = instance.aside("newer");
    fs::rename(&devices[0], &newer).unwrap();
    fs::rename(&away, &devices[1]).unwrap();
    let error = instance.show("v")["error"].as_str().unwrap().to_owned();
    assert!(error.contains("may have been used without"), "{error}");
    instance.run(&["array", "delete", "a"]).refused(1, "in use");
    instance.stop();
    let other = Instance::new();
    let refused = other.run(&["array", "assemble", &newer]);
    refused.ok();
    other.stop();
    let third = Instance::new();
    third.run(&["array", "assemble", &devices[1]]).refused(1, "`voltier array assemble -f DEV...`");
    third.run(&["array", "assemble", "-f", &devices[1]]).ok();
    assert_eq!(array(&third)["state"], "degraded");
}

#[test]
fn an_array_without_a_journal_that_crashed_and_lost_a_member_starts_by_choice_only() {
    let (instance, devices) = array_volume(&["5", "--consistency", "bitmap"], 4);
    fill(&mut client(&instance), 11);
    instance.kill();
    fs::remove_file(&devices[3]).unwrap();
    let shown = instance.show("v");
    assert_eq!(shown["state"], "failed");
    let error = array(&instance)["error"].as_str().unwrap().to_owned();
    for words in ["not stopped cleanly", "regions need a resync", &devices[3], "array assemble -f"]
    {
        assert!(error.contains(words), "{words}: {error}");
    }
    let rest = &devices[..3];
    instance.run(&with(&["assemble"], rest)).refused(1, "not stopped cleanly");
    instance.run(&with(&["assemble", "-f"], rest)).ok();
    holds(&mut client(&instance), 11);
    assert_eq!(array(&instance)["consistency"], "bitmap");
}

#[test]
fn damaged_superblocks_are_left_out_and_the_rest_serves() {
    let (instance, devices) = array_volume(&["6"], 5);
    fill(&mut client(&instance), 8);
    instance.stop();
    // One copy wiped is nothing: the other is there.
    let file = File::options().write(true).open(&devices[0]).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    holds(&mut after_start(&instance), 8);
    assert_eq!(array(&instance)["state"], "running");
    instance.stop();
    // Flipped bits in both copies of two: they may be lost.
    for device in &devices[1..3] {
        let file = File::options().write(true).open(device).unwrap();
        for at in COPIES {
            file.write_all_at(&[0x55; 32], at + 100).unwrap();
        }
    }
    holds(&mut after_start(&instance), 8);
    let shown = array(&instance);
    assert_eq!((&shown["state"], &shown["may_lose"]), (&"degraded".into(), &0.into()));
    assert!(devices[1..3].iter().all(|device| is_left_out(&shown, device, "damaged")), "{shown}");
    // A truncated one is one too many.
    instance.stop();
    File::options().write(true).open(&devices[3]).unwrap().set_len(16 * MIB).unwrap();
    let shown = instance.show("v");
    assert_eq!(shown["state"], "failed", "{shown}");
    let error = array(&instance)["error"].as_str().unwrap().to_owned();
    assert!(!error.is_empty() && !error.contains('\n'), "{error}");
}

/// Where members of 32 MiB have the copies of their superblock.
const COPIES: [u64; 2] = [0, 32 * MIB - 4096];

/// Whether `array show` says with these words that a device is left out.
fn is_left_out(shown: &serde_json::Value, device: &str, words: &str) -> bool {
    let lines = shown["left_out"].as_array().unwrap();
    let mut lines = lines.iter().filter_map(|line| line.as_str());
    lines.any(|line| line.contains(device) && line.contains(words))
}

#[test]
fn an_array_that_a_newer_program_wrote_is_refused_by_name_and_no_member_is_written() {
    let contents = |devices: &[String]| -> Vec<Vec<u8>> {
        devices.iter().map(|device| fs::read(device).unwrap()).collect()
    };
    for (at, value, words) in [
        (37, 2, "feature bit 41 is unknown here; written by a newer Voltier: update this one"),
        (8, 77, "format version 77, and this Voltier reads version 1; written by a newer Voltier"),
    ] {
        let (instance, devices) = array_volume(&["6"], 5);
        fill(&mut client(&instance), 8);
        instance.stop();
        // One of five: the level could do without it, and the others may not be what the array is now.
        change_sealed(&devices[1], &COPIES, |block| block[at] = value);
        let before = contents(&devices);
        assert_eq!(instance.show("v")["state"], "failed");
        let error = array(&instance)["error"].as_str().unwrap().to_owned();
        assert!(error.contains(&devices[1]) && error.contains(words), "{error}");
        assert!(!error.contains('\n'), "{error}");
        // Nobody takes the member for anything else.
        let (spare, empty) = (&devices[1], instance.drive("empty", 32 * MIB));
        let other = Instance::new();
        instance.stop();
        let names = devices.iter().map(String::as_str);
        other.run(&["import"].into_iter().chain(names).collect::<Vec<_>>()).refused(1, words);
        other.run(&with(&["assemble"], &devices)).refused(1, words);
        other.run(&["create", "-p", &empty, "-s", spare, "w"]).refused(1, words);
        other.run(&["create", "-p", spare, "w"]).refused(1, "a member of a Voltier array");
        other.run(&["array", "create", "m", "--level", "1", spare, &empty]).refused(1, words);
        other.run(&["array", "spare-pool", "add", "pool", spare]).refused(1, words);
        other.stop();
        assert!(before == contents(&devices), "something was written");
        // Whoever wants to go on without the member does not give it.
        let others = [&devices[..1], &devices[2..]].concat();
        other.run(&with(&["assemble", "-f"], &others)).ok();
        let shown = other.run(&["array", "show", "a", "--json"]).shown();
        assert_eq!(shown["state"], "degraded");
        other.stop();
        assert!(before[1] == fs::read(spare).unwrap(), "the member was written");
    }
}

#[test]
fn a_lost_member_is_replaced_under_load_and_the_array_survives_the_next_losses() {
    let (instance, devices) = array_volume(&["6"], 5);
    let uri = instance.show("v")["exports"][0]["uri"].as_str().unwrap().to_owned();
    let fio = instance.fio_verified(&uri, &["--bsrange=512-128k", "--size=48M", "--io_size=128M"]);
    instance.run(&["array", "fail", "a", &devices[1]]).ok();
    let fresh = instance.drive("fresh", 32 * MIB);
    instance.run(&["array", "replace", "a", "7", &fresh]).refused(1, "7 is not a member of a");
    let own = instance.run(&["array", "replace", "a", "1", &devices[0]]);
    own.refused(1, "is member 0 of a, and in service; name another device");
    let small = instance.drive("small", 16 * MIB);
    instance.run(&["array", "replace", "a", "1", &small]).refused(1, "take a larger one");
    let shown = instance.run(&["array", "replace", "a", &devices[1], &fresh, "--json"]).json();
    assert_eq!(shown["state"], "running", "{shown}");
    fio_is_content(fio);
    fill(&mut client(&instance), 12);
    for lost in [0, 4] {
        instance.run(&["array", "fail", "a", &lost.to_string()]).ok();
    }
    holds(&mut client(&instance), 12);
    instance.kill();
    holds(&mut after_start(&instance), 12);
    assert_eq!(array(&instance)["members"][1]["path"], fresh.as_str());
    // A member that was lost comes back as it is.
    let back = instance.run(&["array", "replace", "a", "4", &devices[4]]).ok();
    assert!(back.err.contains("is member 4 again"), "{back:?}");
    instance.run(&["array", "rebuild", "a"]).refused(1, "nothing is to be rebuilt");
}

#[test]
fn a_member_in_service_is_replaced_by_its_copy() {
    let (instance, devices) = array_volume(&["5"], 3);
    fill(&mut client(&instance), 13);
    let fresh = instance.drive("fresh", 32 * MIB);
    let said = instance.run(&["array", "replace", "a", &devices[2], &fresh]).ok();
    assert!(said.err.contains("serves until that is done"), "{said:?}");
    while array(&instance)["members"][2]["path"] != fresh.as_str() {}
    instance.run(&["array", "fail", "a", &devices[0]]).ok();
    holds(&mut client(&instance), 13);
    instance.kill();
    holds(&mut after_start(&instance), 13);
    instance.run(&["create", "-p", &devices[2], "w"]).refused(1, "a member of a Voltier array");
}

#[test]
fn a_replaced_drive_that_a_power_cut_kept_from_knowing_is_told_at_the_next_start() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 3);
    instance.run(&with(&["create", "a", "--level", "1"], &devices[..2])).ok();
    instance.stop();
    let before: Vec<Vec<u8>> = devices[..2].iter().map(|it| std::fs::read(it).unwrap()).collect();
    instance.run(&["array", "replace", "a", &devices[0], &devices[2]]).ok();
    while array(&instance)["members"][0]["path"] != devices[2].as_str() {}
    instance.run(&["array", "fail", "a", "1"]).ok();
    instance.run(&["array", "delete", "a"]).ok();
    for (device, content) in devices.iter().zip(before) {
        std::fs::write(device, content).unwrap();
    }
    // Two of three look like the whole array, of an earlier time.
    instance.run(&with(&["assemble"], &devices)).ok();
    let left_out = array(&instance)["left_out"].to_string();
    assert!(left_out.contains(&format!("{} was member 0 and has been replaced", devices[0])));
    instance.run(&["array", "delete", "a"]).ok();
    instance.run(&with(&["assemble"], &devices[..2])).refused(1, "used without them");
}

#[test]
fn a_spare_takes_the_place_of_a_lost_member_also_after_a_restart() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 5);
    let args = ["create", "a", "--level", "5", "--spare", &devices[4]];
    instance.run(&with(&args, &devices[..3])).ok();
    export(&instance);
    instance.run(&["array", "add-spare", "a", &devices[3]]).ok();
    instance.run(&["array", "add-spare", "a", &devices[3]]).refused(1, "already part of array a");
    fill(&mut client(&instance), 14);
    instance.stop();
    let mut nbd = after_start(&instance);
    assert_eq!(array(&instance)["spares"].as_array().unwrap().len(), 2);
    for lost in &devices[..2] {
        instance.run(&["array", "fail", "a", lost]).ok();
        while array(&instance)["state"] != "running" {}
        holds(&mut nbd, 14);
    }
    drop(nbd);
    assert!(array(&instance)["spares"].as_array().unwrap().is_empty());
    instance.kill();
    holds(&mut after_start(&instance), 14);
    assert_eq!(array(&instance)["state"], "running");
}

#[test]
fn a_scrub_finds_the_wrong_member_and_repairs_it() {
    let (instance, devices) = array_volume(&["6"], 5);
    fill(&mut client(&instance), 15);
    let file = File::options().read(true).write(true).open(&devices[2]).unwrap();
    client(&instance).write(16 * MIB, &[0x77; 1 << 20]).unwrap();
    let mut chunk = vec![0; 16 << 10];
    let mut places = (0..32 * 64).map(|chunk| chunk * (16 << 10));
    let at = places.find(|at| {
        file.read_exact_at(&mut chunk, *at).unwrap();
        *at >= 2 * MIB && chunk.iter().all(|byte| *byte == 0x77)
    });
    let at = at.expect("a chunk of data on this member");
    file.write_all_at(&[0xee; 4096], at).unwrap();
    let found = |args: &[&str]| {
        let shown = instance.run(&[&["array", "scrub", "a", "--json"], args].concat()).json();
        let found = &shown["scrub_found"];
        ["mismatched_blocks", "located_blocks", "repaired_blocks"]
            .map(|key| found[key].as_u64().unwrap())
    };
    let checked = found(&["--check"]);
    assert!(checked[0] > 0 && checked[0] == checked[1] && checked[2] == 0, "{checked:?}");
    // The region was written, and nobody knows whether it matched since: the block is left.
    assert_eq!(found(&[]), [checked[0], checked[0], 0]);
    let shown = array(&instance);
    assert_eq!(shown["scrub_found"]["left_blocks"], checked[0]);
    let text = instance.run(&["array", "show", "a"]).ok().out;
    assert!(text.contains("left (written since they last matched)"), "{text}");
    assert_eq!(found(&["--rewrite-data"]), [checked[0]; 3]);
    assert_eq!(found(&[]), [0; 3]);
    // Now it matched, and nobody wrote.
    file.write_all_at(&[0xee; 4096], at).unwrap();
    assert_eq!(found(&[]), [checked[0]; 3]);
    holds(&mut client(&instance), 15);
    instance.run(&["array", "set", "a", "scrub_priority=high", "rebuild_floor=64M"]).ok();
    instance.kill();
    let shown = array(&instance);
    assert_eq!(shown["scrub"]["pace"]["priority"], "high");
    assert_eq!(shown["rebuild"]["pace"]["floor_bytes_per_second"], 64 << 20);
    instance
        .run(&["array", "set", "a", "scrub_priorty=high"])
        .refused(2, "did you mean `scrub_priority`");
}

#[test]
fn two_parts_of_one_file_are_not_two_drives() {
    let instance = Instance::new();
    let (file, other) = (instance.drive("file", 128 * MIB), instance.drive("other", 64 * MIB));
    let half = (64 * MIB).to_string();
    let Some(first) = Looped::with(&["--sizelimit", &half, &file]) else { return };
    let Some(second) = Looped::with(&["--offset", &half, &file]) else { return };
    let words = "are parts of one disk or one file: the array would lose both at once";
    let mirror = |members: &[&str]| {
        instance.run(&[&["array", "create", "-f", "m", "--level", "1"], members].concat())
    };
    mirror(&[&first.0, &second.0]).refused(1, words);
    mirror(&[&second.0, &file]).refused(1, "given twice, or lies on another member");
    mirror(&[&first.0, &other]).ok();
    instance.run(&["array", "add-spare", "m", &second.0]).refused(1, words);
    instance.run(&["array", "replace", "m", "1", &second.0]).refused(1, words);
    // Another part of the file may hold something else; the same part may not.
    let Some(same) = Looped::with(&["--offset", "4096", &file]) else { return };
    instance.run(&["create", "-p", &same.0, "v"]).refused(1, "already part of array m");
    instance.run(&["create", "-p", &second.0, "v"]).ok();
    instance.run(&["delete", "v"]).ok();
    instance.run(&["array", "delete", "m"]).ok();
    instance.stop();
}
