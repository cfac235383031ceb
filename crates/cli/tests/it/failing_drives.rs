//! Drives that fail requests by chance, or refuse some for a time, through the real binary.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::support::arrays::{array, client, drives, export, with};
use crate::support::ledger::{BLOCK, Ledger, content};
use crate::support::nbd::NbdClient;
use crate::support::shelf::{Conduct, Shelf};
use crate::support::{Instance, MIB, until};
use rustix::io::Errno;

const BLOCKS: usize = 2000;
/// One request in so many fails.
const ONE_IN: u32 = 100;
/// Requests of a client in a test of every build; `VOLTIER_SCENARIO_REQUESTS` asks for more (five million are
/// a busy hour).
const REQUESTS: u64 = 6000;

fn requests() -> u64 {
    let asked = std::env::var("VOLTIER_SCENARIO_REQUESTS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(REQUESTS)
}

/// A write-back volume `v` before a RAID 6 `a`, all on a shelf; the members and the SSD.
fn accelerated_array() -> Option<(Instance, Shelf, Vec<String>, String)> {
    let instance = Instance::new();
    let shelf = Shelf::mount(&instance)?;
    let (members, ssd) = (shelf.drives("d", 6), shelf.drive("ssd", 32 * MIB));
    instance.run(&with(&["create", "a", "--level", "6"], &members)).ok();
    instance.run(&["create", "-p", "array:a", "-s", &ssd, "-t", "wb", "v"]).ok();
    instance.run(&["set", "v", "dirty_high=10", "dirty_low=2"]).ok();
    instance.export("v");
    Some((instance, shelf, members, ssd))
}

/// The work of a client while some drives fail one request in a hundred each. When the drives are well
/// again, the volume has everything that was acknowledged, over restarts too. The requests that clients
/// were refused.
fn work_over(failing: impl Fn(&[String], &String) -> Vec<String>) -> Option<u64> {
    let (instance, shelf, members, ssd) = accelerated_array()?;
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(BLOCKS, &mut nbd);
    let failing = failing(&members, &ssd);
    shelf.tell_all(&failing, Conduct::FailsOneIn(ONE_IN));
    assert!(ledger.work(&mut nbd, requests()), "the connection has ended");
    drop(nbd);
    shelf.tell_all(&failing, Conduct::Serves);
    let failed: u64 = failing.iter().map(|path| shelf.failed(path)).sum();
    let refused = ledger.refused;
    println!("{failed} requests failed, {refused} of clients refused");
    assert!(failed > 0);
    if refused == 0 {
        ledger.check(&instance, "v");
    }
    // An array that had no redundancy left makes nothing up: its next start takes up what was begun.
    let ends: [fn(&Instance); 2] = [Instance::kill, Instance::stop];
    for end in ends {
        end(&instance);
        until("v serves", || {
            let state = &instance.show("v")["state"];
            state == "running" || state == "degraded"
        });
        ledger.check(&instance, "v");
    }
    Some(refused)
}

#[test]
fn an_ssd_that_fails_one_request_in_a_hundred_costs_no_acknowledged_write() {
    work_over(|_, ssd| vec![ssd.clone()]);
}

#[test]
fn two_members_that_fail_one_request_in_a_hundred_cost_nothing_and_no_client_hears_of_it() {
    let refused = work_over(|members, _| members[1..3].to_vec());
    assert!(refused.is_none_or(|refused| refused == 0), "{refused:?}");
}

#[test]
fn drives_that_all_fail_one_request_in_a_hundred_cost_no_acknowledged_write() {
    work_over(|members, ssd| [members, std::slice::from_ref(ssd)].concat());
}

/// A volume `v`, its origin on a shelf; the path of the origin.
fn over_origin(mode: &str) -> Option<(Instance, Shelf, String)> {
    let instance = Instance::new();
    let shelf = Shelf::mount(&instance)?;
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), shelf.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", mode, "v"]).ok();
    instance.export("v");
    Some((instance, shelf, hdd))
}

#[test]
fn an_origin_without_room_keeps_dirty_lines_on_the_ssd_until_it_has_room() {
    let Some((instance, shelf, hdd)) = over_origin("wb") else { return };
    shelf.tell(&hdd, Conduct::RefusesWrites(Errno::NOSPC));
    let mut ledger = Ledger::filled(BLOCKS, &mut client(&instance));
    ledger.check(&instance, "v");
    instance.run(&["flush", "v"]).refused(1, "dirty lines stay safe on");
    assert!(instance.show("v")["lines"]["dirty"].as_u64().unwrap() > 0);
    instance.kill();
    ledger.check(&instance, "v");
    shelf.tell(&hdd, Conduct::Serves);
    instance.run(&["flush", "v"]).ok();
    instance.run(&["detach", "v"]).ok();
    ledger.check(&instance, "v");
}

#[test]
fn an_ssd_that_refuses_writes_and_flushes_is_evacuated_without_a_rest_and_the_log_says_so() {
    let instance = Instance::new();
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let (ssd, hdd) = (shelf.drive("ssd", 32 * MIB), shelf.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.export("v");
    shelf.tell(&hdd, Conduct::Takes(Duration::from_millis(2)));
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(BLOCKS, &mut nbd);
    shelf.tell(&ssd, Conduct::RefusesChanges(Errno::IO));
    #[expect(clippy::disallowed_methods, reason = "a test that bounds a wait")]
    let begun = std::time::Instant::now();
    ledger.write(&mut nbd, 7).unwrap();
    // Tries of the SSD take 3.4 s, and the disk needs some. Rests between sweeps took 47 s.
    until("the evacuation ends", || instance.show("v")["ssd"]["state"] == "failed");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    for words in ["takes no writes any more", "which serves alone now"] {
        until(&format!("the log says {words:?}"), || {
            fs::read_to_string(instance.state().join("daemon.log")).unwrap().contains(words)
        });
    }
    ledger.check(&instance, "v");
}

#[test]
fn a_client_of_a_write_through_volume_hears_that_the_origin_has_no_room() {
    let Some((instance, shelf, hdd)) = over_origin("wt") else { return };
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(BLOCKS, &mut nbd);
    shelf.tell(&hdd, Conduct::RefusesWrites(Errno::NOSPC));
    let refused = ledger.write(&mut nbd, 7).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    (0..BLOCKS as u64).for_each(|block| ledger.read(&mut nbd, block).unwrap());
    shelf.tell(&hdd, Conduct::Serves);
    ledger.write(&mut nbd, 7).unwrap();
    ledger.check(&instance, "v");
}

#[test]
fn a_flush_that_the_origin_fails_once_costs_no_acknowledged_write() {
    let Some((instance, shelf, hdd)) = over_origin("wb") else { return };
    let mut ledger = Ledger::filled(BLOCKS, &mut client(&instance));
    shelf.tell(&hdd, Conduct::RefusesFlushes(Errno::IO));
    instance.run(&["flush", "v"]).refused(1, "dirty lines stay safe on");
    shelf.tell(&hdd, Conduct::Serves);
    // The SSD has everything durably, without the origin.
    let mut nbd = client(&instance);
    assert!(ledger.work(&mut nbd, 1000));
    assert_eq!(ledger.refused, 0, "the SSD has everything");
    drop(nbd);
    // The lines that the failed flushes were for are dirty yet: the daemon writes them again.
    instance.run(&["flush", "v"]).ok();
    let shown = instance.show("v");
    assert!(shown["hdd_failed_flushes"].as_u64().unwrap() > 0, "{shown}");
    ledger.check(&instance, "v");
    instance.run(&["detach", "v"]).ok();
    ledger.check(&instance, "v");
}

/// A write-back volume `v` whose SSD is on a shelf, and its client, who has written all blocks.
struct Filled {
    shelf: Shelf,
    ssd: String,
    ledger: Ledger,
    nbd: NbdClient,
}

fn filled(instance: &Instance) -> Option<Filled> {
    let shelf = Shelf::mount(instance)?;
    let (ssd, hdd) = (shelf.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.export("v");
    let (mut ledger, mut nbd) = (Ledger::new(BLOCKS), client(instance));
    ledger.fill(&mut nbd);
    Some(Filled { shelf, ssd, ledger, nbd })
}

#[test]
fn an_ssd_that_refuses_writes_in_any_way_is_evacuated_and_nothing_is_lost() {
    for errno in [Errno::IO, Errno::NOMEM, Errno::TIMEDOUT, Errno::NOSPC] {
        let instance = Instance::new();
        let Some(Filled { shelf, ssd, mut ledger, mut nbd }) = filled(&instance) else { return };
        shelf.tell(&ssd, Conduct::RefusesWrites(errno));
        assert!(ledger.work(&mut nbd, 1000));
        assert_eq!(ledger.refused, 0, "{errno}");
        drop(nbd);
        until("the evacuation ends", || instance.show("v")["ssd"]["state"] == "failed");
        let shown = instance.show("v");
        assert!(shown["error"].as_str().unwrap().contains("nothing is lost"), "{shown}");
        ledger.check(&instance, "v");
        shelf.tell(&ssd, Conduct::Serves);
        instance.kill();
        ledger.check(&instance, "v");
    }
}

#[test]
fn clients_pass_an_ssd_that_is_evacuated_to_a_slow_disk_and_a_kill_loses_nothing() {
    let instance = Instance::new();
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let (ssd, hdd) = (shelf.drive("ssd", 64 * MIB), shelf.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.run(&["set", "v", "dirty_high=80", "dirty_low=70"]).ok();
    instance.export("v");
    let mut ledger = Ledger::new(4 * BLOCKS);
    let mut nbd = client(&instance);
    // No two of them go to the disk together.
    for block in (0..4 * BLOCKS as u64).step_by(3) {
        ledger.write(&mut nbd, block).unwrap();
    }
    nbd.flush().unwrap();
    shelf.tell(&hdd, Conduct::Takes(Duration::from_millis(8)));
    shelf.tell(&ssd, Conduct::RefusesWrites(Errno::IO));
    ledger.write(&mut nbd, 7).unwrap();
    let mut slowest = Duration::ZERO;
    for number in 0..30 {
        #[expect(clippy::disallowed_methods, reason = "a test that bounds a wait")]
        let begun = std::time::Instant::now();
        ledger.write(&mut nbd, number * 787 % (4 * BLOCKS as u64)).unwrap();
        slowest = slowest.max(begun.elapsed());
    }
    let shown = instance.show("v");
    println!("slowest {slowest:?}, {} dirty lines left", shown["lines"]["dirty"]);
    assert_eq!(shown["ssd"]["state"], "evacuating", "{shown}");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    instance.kill();
    shelf.tell(&hdd, Conduct::Serves);
    shelf.tell(&ssd, Conduct::Serves);
    ledger.check(&instance, "v");
    instance.run(&["flush", "v"]).ok();
    instance.run(&["detach", "v"]).ok();
    ledger.check(&instance, "v");
}

#[test]
fn a_line_of_the_ssd_that_cannot_be_read_sixty_five_times_and_more_costs_no_other_line() {
    let instance = Instance::new();
    let Some(Filled { shelf, ssd, mut ledger, mut nbd }) = filled(&instance) else { return };
    shelf.tell(&ssd, Conduct::RefusesReads(Errno::IO));
    // Dirty from now on, whatever was written back before: what cannot be read cannot be.
    ledger.write(&mut nbd, 7).unwrap();
    for _ in 0..70 {
        assert!(ledger.read(&mut nbd, 7).is_err(), "never the origin's older data");
    }
    shelf.tell(&ssd, Conduct::Serves);
    assert_eq!(instance.show("v")["ssd"]["state"], "online");
    (0..BLOCKS as u64).for_each(|block| ledger.read(&mut nbd, block).unwrap());
    instance.run(&["flush", "v"]).ok();
    assert_eq!(instance.show("v")["lost_ranges"], 0);
}

/// Where the members have the first content of a block in its place, behind what is of the array.
fn places_of(members: &[String], block: u64) -> Vec<(File, u64)> {
    let (wanted, mut places) = (content(block, 1), Vec::new());
    for member in members {
        let file = File::options().read(true).write(true).open(member).unwrap();
        let found = (2 * MIB..32 * MIB).step_by(BLOCK).find(|at| {
            let mut data = vec![0; BLOCK];
            file.read_exact_at(&mut data, *at).unwrap();
            data == wanted
        });
        places.extend(found.map(|at| (file, at)));
    }
    places
}

#[test]
fn what_a_client_writes_over_a_block_that_has_rotted_survives_the_scrub_that_follows() {
    let instance = Instance::new();
    let members = drives(&instance, "d", 8);
    instance.run(&with(&["create", "a", "--level", "6"], &members)).ok();
    export(&instance);
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(BLOCKS, &mut nbd);
    let scrub = |args: &[&str]| {
        instance.run(&[&["array", "scrub", "a", "--json"], args].concat()).json()["scrub_found"]
            .clone()
    };
    assert_eq!(scrub(&[])["mismatched_blocks"], 0);
    let places = places_of(&members, 7);
    let [(file, at)] = &places[..] else { panic!("{places:?}") };
    file.write_all_at(&[0xee; BLOCK], *at).unwrap();
    ledger.write(&mut nbd, 7).unwrap();
    nbd.flush().unwrap();
    let found = scrub(&[]);
    assert!(found["left_blocks"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["repaired_blocks"], 0, "{found}");
    ledger.check(&instance, "v");
    drop(nbd);
    instance.kill();
    ledger.check(&instance, "v");
}

#[test]
fn a_member_without_room_is_lost_and_nothing_else() {
    let Some((instance, shelf, members, _)) = accelerated_array() else { return };
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(BLOCKS, &mut nbd);
    shelf.tell(&members[3], Conduct::RefusesWrites(Errno::NOSPC));
    assert!(ledger.work(&mut nbd, 1000));
    instance.run(&["flush", "v"]).ok();
    assert_eq!(ledger.refused, 0);
    assert_eq!(array(&instance)["members"][3]["state"], "lost");
    ledger.check(&instance, "v");
}
