//! Accelerated volumes through the real binary: created, used, changed under load, taken apart.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::nbd::NbdClient;
use crate::support::{Answer, Instance, MIB, fio_is_content};

/// An instance with a 64 MiB HDD and a 32 MiB SSD, both files, and a volume `v` over them.
fn accelerated(mode: &str) -> (Instance, String, String) {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", mode, "v"]).ok();
    (instance, ssd, hdd)
}

fn number(instance: &Instance, pointer: &str) -> u64 {
    let shown = instance.show("v");
    shown.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("{shown}"))
}

#[test]
fn write_back_is_dirty_until_flushed_and_delete_leaves_a_plain_hdd() {
    let (instance, ssd, hdd) = accelerated("wb");
    let mut nbd = instance.exported("v");
    for block in 0..100_u64 {
        nbd.write(block * 65536 + 512, &[block as u8 + 1; 2048]).unwrap();
    }
    nbd.flush().unwrap();
    let shown = instance.show("v");
    assert_eq!((&shown["mode"], &shown["policy"]), (&"wb".into(), &"lru".into()));
    assert_eq!(shown["ssd"]["state"], "online");
    assert!(shown["lines"]["dirty"].as_u64().unwrap() > 0, "{shown}");
    assert_eq!(shown["writes"]["requests"], 100);
    assert_eq!(shown["writes"]["bytes"], 100 * 2048);
    assert!(shown["device_bytes"]["ssd_written"].as_u64().unwrap() >= 100 * 2048);
    assert!(shown["memory_bytes"].as_u64().unwrap() > 0);
    assert_eq!(nbd.read(512, 2048).unwrap(), [1; 2048]);
    let flushed = instance.run(&["flush", "v", "--json"]).json();
    assert_eq!(flushed["lines"]["dirty"], 0);
    nbd.write(0, &[0xaa; 512]).unwrap();
    drop(nbd);
    let deleted = instance.run(&["delete", "v", "--json"]).json();
    assert_eq!(deleted["deleted"], true);
    let file = File::open(&hdd).unwrap();
    for block in 0..100_u64 {
        let mut data = [0; 2048];
        file.read_exact_at(&mut data, block * 65536 + 512).unwrap();
        assert_eq!(data, [block as u8 + 1; 2048]);
    }
    let mut first = [0; 512];
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, [0xaa; 512]);
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "again"]).ok();
}

#[test]
fn data_in_place_are_read_through_a_new_cache_and_become_hits() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.path("hdd"));
    fs::write(&hdd, vec![3; 8 << 20]).unwrap();
    let hdd = hdd.to_str().unwrap();
    // EnhanceIO's spelling, for once.
    instance
        .run(&["create", "-d", hdd, "-s", &ssd, "-p", "fifo", "-m", "ro", "-b", "8192", "-c", "v"])
        .ok();
    let mut nbd = instance.exported("v");
    for _ in 0..3 {
        assert_eq!(nbd.read(8192, 8192).unwrap(), [3; 8192]);
    }
    let shown = instance.show("v");
    assert_eq!(shown["policy"], "fifo");
    assert_eq!((&shown["mode"], &shown["block_size"]), (&"ro".into(), &8192.into()));
    assert_eq!(shown["reads"]["requests"], 3);
    assert!(shown["reads"]["hits"].as_u64().unwrap() >= 1, "{shown}");
    assert!(shown["hit_rate"]["read"].as_f64().unwrap() > 0.0);
}

#[test]
fn modes_are_switched_while_fio_verifies() {
    let (instance, ..) = accelerated("wt");
    let uri = instance.export("v");
    let mut fio =
        instance.fio_verified(&uri, &["--bsrange=512-64k", "--size=48M", "--io_size=256M"]);
    let modes = ["wb", "ro", "wb", "wo", "pt", "wb", "wt"];
    let mut turn = 0;
    while fio.as_mut().is_some_and(|fio| fio.try_wait().unwrap().is_none()) {
        let change = format!("mode={}", modes[turn % modes.len()]);
        let shown = instance.run(&["set", "v", &change, "seq_cutoff=off", "--json"]).json();
        assert_eq!(shown["mode"], modes[turn % modes.len()]);
        turn += 1;
    }
    fio_is_content(fio);
    instance
        .run(&["set", "v", "mode=wb", "dirty_high=40", "dirty_low=10", "admission=touches:2"])
        .ok();
    instance.run(&["set", "v", "dirty_low=50"]).refused(2, "dirty_low");
    instance.run(&["set", "v", "dirty_high=95"]).refused(2, "use at most 90");
    instance.run(&["set", "v", "policy=s3fifo"]).ok();
    instance.kill();
    assert_eq!(instance.show("v")["policy"], "s3fifo", "also after a crash");
    let shown = instance.show("v");
    assert_eq!(shown["tunables"]["dirty_high"], 40);
    assert_eq!(shown["tunables"]["admission"], "touches:2");
}

#[test]
fn the_longest_age_of_dirty_lines_is_set_shown_and_kept() {
    let (instance, ..) = accelerated("wb");
    let shown = || instance.show("v")["tunables"]["dirty_age"].clone();
    assert_eq!(shown(), "5m");
    instance.run(&["set", "v", "dirty_age=90s"]).ok();
    for bad in ["old", "-1", "32d", "1.5s", ""] {
        let change = format!("dirty_age={bad}");
        instance.run(&["set", "v", &change]).refused(2, "write 1s to 31d");
    }
    instance.kill();
    assert_eq!(shown(), "90s", "also after a crash");
    for (value, text) in [("off", "off"), ("0", "off"), ("300s", "5m")] {
        instance.run(&["set", "v", &format!("dirty_age={value}")]).ok();
        assert_eq!(shown(), text);
    }
}

#[test]
fn a_cache_is_attached_and_detached_while_fio_verifies() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 64 * MIB);
    let (one, two) = (instance.drive("one", 32 * MIB), instance.drive("two", 24 * MIB));
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    let uri = instance.export("v");
    let mut fio =
        instance.fio_verified(&uri, &["--bsrange=512-32k", "--size=48M", "--io_size=192M"]);
    let mut turn = 0;
    while fio.as_mut().is_some_and(|fio| fio.try_wait().unwrap().is_none()) {
        let ssd = if turn % 2 == 0 { &one } else { &two };
        instance.run(&["attach", "v", "-s", ssd, "-t", "wb"]).ok();
        instance.run(&["detach", "v"]).ok();
        turn += 1;
    }
    fio_is_content(fio);
    let shown = instance.show("v");
    assert_eq!(shown["ssd"]["state"], "none");
    assert_eq!(shown["state"], "running");
}

#[test]
fn a_cache_comes_back_warm_after_a_clean_stop_and_dirty_after_a_kill() {
    let (instance, ..) = accelerated("wb");
    let mut nbd = instance.exported("v");
    for block in 0..64_u64 {
        nbd.write(block * 4096, &[block as u8; 4096]).unwrap();
    }
    let dirty = number(&instance, "/lines/dirty");
    let ends: [fn(&Instance); 2] = [Instance::stop, Instance::kill];
    for end in ends {
        end(&instance);
        assert_eq!(number(&instance, "/lines/dirty"), dirty, "dirty counts are exact");
        let mut nbd = instance.connect("v");
        for block in 0..64_u64 {
            assert_eq!(nbd.read(block * 4096, 4096).unwrap(), [block as u8; 4096]);
        }
        assert_eq!(number(&instance, "/reads/hits"), 64, "the cache is warm");
    }
}

#[test]
fn an_ssd_that_holds_something_is_not_overwritten_without_force() {
    let (instance, ssd, _) = accelerated("wt");
    let (hdd, taken) = (instance.drive("other", 64 * MIB), instance.drive("taken", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "w"]).refused(1, "part of volume v");
    instance.stop();
    fs::copy(&ssd, instance.path("copy")).unwrap();
    let copy = instance.path("copy");
    let copy = copy.to_str().unwrap();
    instance.run(&["create", "-s", copy, "-p", &hdd, "w"]).refused(1, "a Voltier cache");
    if Command::new("mkfs.ext4").args(["-q", "-F", &taken]).status().is_ok_and(|s| s.success()) {
        instance.run(&["create", "-s", &taken, "-p", &hdd, "w"]).refused(1, "ext2/3/4");
    }
    instance.run(&["create", "-f", "-s", copy, "-p", &hdd, "w"]).ok();
}

#[test]
fn a_lost_ssd_degrades_a_clean_volume_and_stops_a_dirty_one_until_it_is_given_up() {
    for mode in ["wt", "wb"] {
        let (instance, ssd, _) = accelerated(mode);
        instance.export("v");
        instance.connect("v").write(0, &[1; 4096]).unwrap();
        instance.stop();
        fs::remove_file(&ssd).unwrap();
        let shown = instance.show("v");
        assert!(shown["error"].as_str().unwrap().contains("does not exist"), "{shown}");
        if mode == "wt" {
            assert_eq!(shown["state"], "degraded");
            assert_eq!(instance.connect("v").read(0, 4096).unwrap(), [1; 4096]);
        } else {
            assert_eq!(shown["state"], "failed");
            instance.run(&["delete", "v"]).refused(1, "--no-flush");
            instance.run(&["detach", "v"]).refused(1, "--no-flush");
            instance.run(&["detach", "v", "--no-flush"]).ok();
        }
        instance.run(&["detach", "v"]).code.to_string();
        assert_eq!(instance.show("v")["state"], "running");
        let fresh = instance.drive("fresh", 32 * MIB);
        instance.run(&["attach", "v", "-s", &fresh]).ok();
    }
}

#[test]
fn wrong_bytes_from_the_ssd_are_never_served() {
    for mode in ["wt", "wb"] {
        let (instance, ssd, hdd) = accelerated(mode);
        let mut nbd = instance.exported("v");
        for block in 0..200_u64 {
            nbd.write(block * 4096, &[7; 4096]).unwrap();
        }
        // All blocks of the SSD read as zeroes, or not at all, from here on.
        let file = File::options().write(true).open(&ssd).unwrap();
        file.set_len(0).unwrap();
        file.set_len(32 * MIB).unwrap();
        let clean = mode == "wt";
        for block in 0..200_u64 {
            match nbd.read(block * 4096, 4096) {
                Ok(data) => assert!(clean && data == [7; 4096], "clean lines come from the origin"),
                Err(error) => assert!(!clean && error.raw_os_error() == Some(5), "{error}"),
            }
        }
        let shown = instance.show("v");
        assert_eq!(shown["lost_ranges"].as_u64().unwrap() > 0, !clean, "{shown}");
        let first = &shown["damaged"][0];
        assert_eq!(first["offset_bytes"].as_u64().is_some(), !clean, "{shown}");
        assert_eq!(instance.run(&["show", "v"]).out.contains("damaged at"), !clean);
        assert_eq!(shown["state"], if clean { "running" } else { "degraded" });
        nbd.write(32 << 20, &[8; 4096]).unwrap();
        assert_eq!(nbd.read(32 << 20, 4096).unwrap(), [8; 4096], "the rest serves on");
        drop(nbd);
        if !clean {
            // Dirty lines that cannot be written back are not quietly given up.
            instance.run(&["detach", "v"]).refused(1, &format!("damaged on its SSD {ssd}"));
            instance.run(&["flush", "v"]).refused(1, "--no-flush");
            assert_eq!(instance.show("v")["mode"], "wb");
            instance.run(&["detach", "v", "--no-flush"]).ok();
            assert_eq!(instance.show("v")["state"], "running");
        }
        instance.run(&["delete", "v"]).ok();
        assert_eq!(fs::metadata(&hdd).unwrap().len(), 64 * MIB);
    }
}

#[test]
fn a_damaged_a_truncated_and_a_swapped_ssd_are_noticed_and_the_daemon_lives() {
    let damages: [fn(&str); 3] = [
        |ssd| File::options().write(true).open(ssd).unwrap().set_len(4 * MIB).unwrap(),
        |ssd| {
            let file = File::options().write(true).open(ssd).unwrap();
            file.write_all_at(&[0xff; 4096], 0).unwrap();
            file.write_all_at(&[0xff; 4096], 64 << 10).unwrap();
        },
        |ssd| {
            let zero = vec![0; 32 << 20];
            fs::write(ssd, zero).unwrap();
        },
    ];
    for damage in damages {
        let (instance, ssd, _) = accelerated("wb");
        instance.export("v");
        instance.connect("v").write(0, &[1; 4096]).unwrap();
        instance.stop();
        damage(&ssd);
        let shown = instance.show("v");
        assert_eq!(shown["state"], "failed", "{shown}");
        assert!(!shown["error"].as_str().unwrap().contains('\n'));
        instance.run(&["export", "v", "--nbd"]).refused(1, "not served");
        instance.run(&["create", "-p", "mem:1M", "w"]).ok();
    }
}

#[test]
fn a_delete_that_is_killed_goes_on_at_the_next_start() {
    // More than two batches of the cleaner, each most of a second on this disk.
    const BLOCKS: u64 = 2200;
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB));
    let slow = format!("model:hdd-7200:{hdd}");
    instance.run(&["create", "-s", &ssd, "-p", &slow, "-t", "wb", "v"]).ok();
    let mut nbd = instance.exported("v");
    for block in 0..BLOCKS {
        nbd.write((block * 7919 % 4000) * 16384, &[(block % 255) as u8 + 1; 4096]).unwrap();
    }
    drop(nbd);
    let mut delete = instance.command(&["delete", "v"]).spawn().unwrap();
    while number(&instance, "/lines/dirty") == BLOCKS {}
    instance.kill();
    delete.wait().unwrap();
    // The delete may have ended meanwhile or go on: asked for once more, it is done.
    instance.run(&["delete", "v"]).ok();
    while instance.run(&["show", "v"]).code == 0 {}
    let file = File::open(&hdd).unwrap();
    for block in 0..BLOCKS {
        let mut data = [0; 4096];
        file.read_exact_at(&mut data, (block * 7919 % 4000) * 16384).unwrap();
        assert_eq!(data, [(block % 255) as u8 + 1; 4096]);
    }
}

#[test]
fn what_was_lost_with_an_ssd_is_listed_also_by_the_next_daemon() {
    let (instance, ssd, _) = accelerated("wb");
    let mut nbd = instance.exported("v");
    for block in 0..200_u64 {
        nbd.write(block << 16, &[7; 4096]).unwrap();
    }
    File::options().write(true).open(&ssd).unwrap().set_len(0).unwrap();
    for block in 0..200_u64 {
        assert!(nbd.read(block << 16, 4096).is_err(), "never other data");
    }
    // A cache tries again for three quarters of a minute to read its dirty lines.
    while instance.show("v")["ssd"]["state"] == "evacuating" {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    for daemon in ["first", "second"] {
        let shown = instance.show("v");
        assert_eq!(shown["lost_ranges"], 200, "{daemon}: {shown}");
        assert_eq!(shown["lost"].as_array().unwrap().len(), 200, "{daemon}");
        assert_eq!(
            shown["lost"][1],
            serde_json::json!({
                "offset_bytes": 65536, "length_bytes": 4096
            })
        );
        let text = instance.run(&["show", "v"]).out;
        assert!(text.contains("byte 65536, 4096 bytes") && text.contains("192 more"), "{text}");
        instance.kill();
    }
    instance.run(&["flush", "v"]).refused(1, "not served");
}

#[test]
fn no_flush_does_not_wait_for_a_drain_and_lets_go_of_the_devices() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.drive("hdd", 256 * MIB));
    let slow = format!("model:hdd-7200:{hdd}");
    for verb in ["flush", "delete"] {
        instance.run(&["create", "-f", "-s", &ssd, "-p", &slow, "-t", "wb", "v"]).ok();
        let mut nbd = instance.exported("v");
        for block in 0..2000_u64 {
            nbd.write((block * 7919 % 4000) * 65536, &[1; 4096]).unwrap();
        }
        drop(nbd);
        let drain = instance.command(&[verb, "v"]).stderr(Stdio::piped()).spawn().unwrap();
        while number(&instance, "/lines/dirty") == 2000 {}
        instance.run(&["unexport", "v"]).ok();
        instance.run(&["delete", "v", "--no-flush"]).ok();
        let drain = drain.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&drain.stderr);
        assert!(!drain.status.success() && said.contains("given up"), "{said}");
        instance.run(&["delete", "v", "--no-flush"]).refused(1, "no volume");
    }
    instance.run(&["create", "-f", "-s", &ssd, "-p", &slow, "v"]).ok();
}

#[test]
fn a_flush_and_a_detach_can_be_given_up_and_what_is_dirty_stays_so() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 256 * MIB));
    let slow = format!("model:hdd-7200:{hdd}");
    instance.run(&["create", "-f", "-s", &ssd, "-p", &slow, "-t", "wb", "v"]).ok();
    let mut nbd = instance.exported("v");
    let write = |nbd: &mut NbdClient| {
        for block in 0..4000_u64 {
            nbd.write((block * 7919 % 4000) * 65536, &[1; 4096]).unwrap();
        }
    };
    let begin = |verb: &str| {
        let before = number(&instance, "/lines/dirty");
        let child = instance.command(&[verb, "v"]).stderr(Stdio::piped()).spawn().unwrap();
        while number(&instance, "/lines/dirty") >= before {}
        child
    };
    let end = |child: Child| Answer::from(child.wait_with_output().unwrap());
    for verb in ["flush", "detach"] {
        write(&mut nbd);
        let child = begin(verb);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let (words, said) = (format!("the {verb} of v was ended early"), end(child));
        // Lines that say how far it was come before.
        assert_eq!(said.code, 1, "{said:?}");
        let last = said.err.lines().last().unwrap();
        assert!(last.contains(&words) && last.contains("dirty lines stay on its SSD"), "{said:?}");
        let shown = instance.show("v");
        assert!(number(&instance, "/lines/dirty") > 0, "{shown}");
        assert_eq!((&shown["state"], &shown["mode"]), (&"running".into(), &"wb".into()), "{shown}");
    }
    // Of two that wait for the same one both hear of it.
    write(&mut nbd);
    drop(nbd);
    let (first, second) = (begin("flush"), begin("flush"));
    instance.run(&["stop", "v"]).ok();
    for child in [first, second] {
        let said = end(child);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.err.ends_with("dirty lines stay on its SSD: v was stopped\n"), "{said:?}");
    }
    instance.run(&["start", "v"]).ok();
    // Some or all may have been written back by now; none is lost.
    let mut nbd = instance.connect("v");
    for block in 0..4000 {
        assert_eq!(nbd.read(block * 65536, 4096).unwrap(), [1; 4096], "block {block}");
    }
    drop(nbd);
    instance.run(&["delete", "v", "--no-flush"]).ok();
}

#[test]
fn an_hdd_that_has_grown_is_served_with_the_size_of_its_cache_until_that_is_detached() {
    let (instance, ssd, hdd) = accelerated("wb");
    instance.export("v");
    instance.connect("v").write(64 * MIB - 4096, &[9; 4096]).unwrap();
    instance.kill();
    File::options().write(true).open(&hdd).unwrap().set_len(96 * MIB).unwrap();
    instance.serve();
    assert_eq!(number(&instance, "/size_bytes"), 64 * MIB);
    assert_eq!(number(&instance, "/hdd/size_bytes"), 96 * MIB);
    let shown = instance.run(&["show", "v"]).ok();
    assert!(shown.out.contains("unused       32M beyond the end of the volume"), "{}", shown.out);
    let mut nbd = instance.connect("v");
    assert_eq!(nbd.read(64 * MIB - 4096, 4096).unwrap(), [9; 4096]);
    assert!(nbd.read(64 * MIB, 4096).is_err());
    drop(nbd);
    instance.run(&["detach", "v"]).ok();
    instance.run(&["stop", "v"]).ok();
    instance.run(&["start", "v"]).ok();
    instance.run(&["attach", "v", "-s", &ssd]).ok();
    assert_eq!(number(&instance, "/size_bytes"), 96 * MIB);
    let mut nbd = instance.connect("v");
    assert_eq!(nbd.read(64 * MIB - 4096, 4096).unwrap(), [9; 4096]);
    nbd.write(96 * MIB - 4096, &[8; 4096]).unwrap();
}
