//! Members that refuse requests for some seconds: one of them, or all, as when an adapter restarts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use crate::support::arrays::{array, client, export, with};
use crate::support::ledger::Ledger;
use crate::support::shelf::{Conduct, Shelf};
use crate::support::{Instance, MIB, until};

const BLOCKS: usize = 2000;

/// A volume over an array whose members are on a shelf.
fn on_a_shelf(level: &str, count: usize) -> Option<(Instance, Shelf, Vec<String>)> {
    let instance = Instance::new();
    let shelf = Shelf::mount(&instance)?;
    let drives: Vec<String> =
        (0..count).map(|at| shelf.drive(&format!("m{at}"), 32 * MIB)).collect();
    instance.run(&with(&["create", "a", "--level", level], &drives)).ok();
    export(&instance);
    Some((instance, shelf, drives))
}

/// Writes and reads beside `disturb`; how many requests failed.
fn work_beside(instance: &Instance, ledger: &mut Ledger, disturb: impl FnOnce()) -> u64 {
    let mut nbd = client(instance);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for block in (0..BLOCKS as u64).cycle() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                // Failures are counted.
                let _ = ledger.write(&mut nbd, block);
                let _ = ledger.read(&mut nbd, block * 7 % BLOCKS as u64);
            }
        });
        disturb();
        done.store(true, Ordering::Relaxed);
        worker.join().unwrap();
    });
    ledger.refused
}

fn rest(ms: u64) {
    std::thread::park_timeout(Duration::from_millis(ms));
}

#[test]
fn members_that_all_refuse_writes_for_seconds_cost_none_and_fail_no_request() {
    let Some((instance, shelf, drives)) = on_a_shelf("6", 6) else { return };
    let mut ledger = Ledger::filled(BLOCKS, &mut client(&instance));
    let done = AtomicBool::new(false);
    // Several clients: each member is asked for writes in that time.
    let write_elsewhere = &|number: u64| {
        let mut nbd = client(&instance);
        for at in (0..64).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
            nbd.write((64 << 20) + (number * 64 + at) * 16384, &[1; 4096]).unwrap();
        }
    };
    let refused = std::thread::scope(|scope| {
        (0..8).for_each(|number| drop(scope.spawn(move || write_elsewhere(number))));
        let refused = work_beside(&instance, &mut ledger, || {
            rest(300);
            shelf.tell_all(&drives, Conduct::RefusesWrites(Errno::IO));
            rest(5_000);
            shelf.tell_all(&drives, Conduct::Serves);
            rest(2_000);
        });
        done.store(true, Ordering::Relaxed);
        refused
    });
    assert_eq!(refused, 0);
    assert_eq!(array(&instance)["state"], "running");
    ledger.check(&instance, "v");
}

#[test]
fn an_array_whose_members_fail_everything_for_seconds_comes_back_by_itself() {
    let Some((instance, shelf, drives)) = on_a_shelf("6", 6) else { return };
    let mut ledger = Ledger::filled(BLOCKS, &mut client(&instance));
    for conduct in [Conduct::FailsOneIn(1), Conduct::RefusesFlushes(Errno::IO)] {
        work_beside(&instance, &mut ledger, || {
            rest(300);
            shelf.tell_all(&drives, conduct);
            rest(5_000);
            shelf.tell_all(&drives, Conduct::Serves);
            rest(2_000);
        });
        until("the array serves", || array(&instance)["state"] == "running");
        let before = ledger.refused;
        let refused = work_beside(&instance, &mut ledger, || rest(500));
        assert_eq!(refused, before, "{}", array(&instance));
        ledger.check(&instance, "v");
    }
}

#[test]
fn a_flush_that_a_member_without_redundancy_failed_is_told_and_later_ones_succeed() {
    let Some((instance, shelf, drives)) = on_a_shelf("0", 2) else { return };
    let mut nbd = client(&instance);
    for block in 0..64 {
        nbd.write(block * 4096, &[1; 4096]).unwrap();
    }
    shelf.tell(&drives[1], Conduct::RefusesFlushes(Errno::IO));
    nbd.flush().unwrap_err();
    shelf.tell(&drives[1], Conduct::Serves);
    // The one that failed may be told once more.
    assert!(nbd.flush().is_ok() || nbd.flush().is_ok());
    nbd.flush().unwrap();
}

#[test]
fn an_array_whose_members_are_pulled_and_put_back_is_assembled_anew() {
    let Some((instance, shelf, drives)) = on_a_shelf("5", 3) else { return };
    let mut ledger = Ledger::filled(BLOCKS, &mut client(&instance));
    work_beside(&instance, &mut ledger, || {
        rest(300);
        shelf.tell(&drives[0], Conduct::Gone);
        shelf.tell(&drives[2], Conduct::Gone);
        rest(1_000);
    });
    let shown = array(&instance);
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(shown["error"].as_str().unwrap().contains("more members are lost"), "{shown}");
    instance.run(&["array", "show", "a"]).refused(1, "the array a has failed");
    instance.run(&["show", "v"]).refused(1, "v has failed");
    shelf.tell(&drives[0], Conduct::Serves);
    shelf.tell(&drives[2], Conduct::Serves);
    until("the volume serves", || instance.show("v")["state"] == "running");
    until("the array is whole", || array(&instance)["state"] == "running");
    ledger.check(&instance, "v");
}

#[test]
fn a_member_that_refuses_writes_for_a_moment_costs_no_spare() {
    let Some((instance, shelf, drives)) = on_a_shelf("5", 3) else { return };
    let spare = shelf.drive("spare", 32 * MIB);
    instance.run(&["array", "add-spare", "a", &spare]).ok();
    let mut ledger = Ledger::filled(BLOCKS, &mut client(&instance));
    let refused = work_beside(&instance, &mut ledger, || {
        rest(300);
        shelf.tell(&drives[1], Conduct::RefusesWrites(Errno::IO));
        rest(500);
        shelf.tell(&drives[1], Conduct::Serves);
        rest(1_000);
    });
    assert_eq!(refused, 0);
    let shown = array(&instance);
    assert_eq!(shown["state"], "running", "{shown}");
    assert_eq!(shown["spares"].as_array().map_or(0, Vec::len), 1, "{shown}");
    // One that goes on with it is lost, and the spare takes its place.
    let refused = work_beside(&instance, &mut ledger, || {
        shelf.tell(&drives[1], Conduct::RefusesWrites(Errno::IO));
        rest(6_000);
    });
    assert_eq!(refused, 0);
    until("the spare has taken the place", || array(&instance)["state"] == "running");
    ledger.check(&instance, "v");
}
