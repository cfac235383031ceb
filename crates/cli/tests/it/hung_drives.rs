//! Members that hang and answer again, and a daemon that stands still, through the real binary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::arrays::{array, client, export, with};
use crate::support::ledger::Ledger;
use crate::support::shelf::{Conduct, Shelf};
use crate::support::{Instance, until};
use rustix::process::{Signal, kill_process};

/// Blocks that clients write: 8 MiB.
const BLOCKS: usize = 2000;
/// How long an adapter is away.
const ADAPTER_AWAY: Duration = Duration::from_secs(5);

/// An array `a` of drives on a shelf with this deadline, and the volume `v` over it; the members.
fn array_on_shelf(
    level: &str,
    count: usize,
    deadline: &str,
) -> Option<(Instance, Shelf, Vec<String>)> {
    let instance = Instance::new();
    let shelf = Shelf::mount(&instance)?;
    let members = shelf.drives("d", count);
    instance.run(&with(&["create", "a", "--level", level], &members)).ok();
    instance.run(&["array", "set", "a", &format!("deadline={deadline}")]).ok();
    export(&instance);
    Some((instance, shelf, members))
}

/// Works while something happens: nothing may fail, and all goes on afterwards.
#[track_caller]
fn work_while(instance: &Instance, ledger: &mut Ledger, event: impl FnOnce()) {
    let mut nbd = client(instance);
    if ledger.acknowledged == 0 {
        ledger.fill(&mut nbd);
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                assert!(ledger.work(&mut nbd, 50), "the connection has ended");
            }
            assert!(ledger.work(&mut nbd, 200), "all goes on");
        });
        // Also when the event fails: the scope waits for the worker.
        let over = SetWhenDropped(&is_over);
        event();
        drop(over);
        worker.join().unwrap();
    });
    assert_eq!(ledger.refused, 0);
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Nobody was ejected, and all have everything.
#[track_caller]
fn is_whole(instance: &Instance, ledger: &mut Ledger) {
    let shown = array(instance);
    assert_eq!(shown["state"], "running", "{shown}");
    let members = shown["members"].as_array().unwrap();
    assert!(members.iter().all(|member| member["state"] == "online"), "{shown}");
    ledger.check(instance, "v");
}

#[test]
fn an_adapter_that_is_away_for_seconds_ejects_nobody_and_everything_goes_on() {
    for (level, count) in [("6", 5), ("10", 4)] {
        // The deadline is over long before the adapter is back.
        let Some((instance, shelf, members)) = array_on_shelf(level, count, "1s") else { return };
        let mut ledger = Ledger::new(BLOCKS);
        work_while(&instance, &mut ledger, || {
            shelf.tell_all(&members, Conduct::Hangs);
            thread::park_timeout(ADAPTER_AWAY);
            until("the array waits", || array(&instance)["members_awaited"] == true);
            shelf.tell_all(&members, Conduct::Serves);
            until("the array waits no more", || array(&instance)["members_awaited"] == false);
        });
        is_whole(&instance, &mut ledger);
        instance.kill();
        is_whole(&instance, &mut ledger);
    }
}

#[test]
fn with_the_usual_deadline_an_adapter_or_a_member_that_is_away_for_seconds_is_no_event() {
    let Some((instance, shelf, members)) = array_on_shelf("6", 6, "75s") else { return };
    let mut ledger = Ledger::new(BLOCKS);
    for away in [&members[..], &members[2..3]] {
        work_while(&instance, &mut ledger, || {
            shelf.tell_all(away, Conduct::Hangs);
            thread::park_timeout(ADAPTER_AWAY);
            shelf.tell_all(away, Conduct::Serves);
        });
        is_whole(&instance, &mut ledger);
    }
}

#[test]
fn a_member_that_hangs_is_failed_at_its_deadline_and_comes_back_when_it_has_ended_everything() {
    let Some((instance, shelf, members)) = array_on_shelf("5", 4, "2s") else { return };
    let mut ledger = Ledger::new(BLOCKS);
    work_while(&instance, &mut ledger, || {
        shelf.tell(&members[1], Conduct::Hangs);
        until("member 1 is lost", || array(&instance)["members"][1]["state"] == "lost");
    });
    assert!(shelf.waiting(&members[1]) > 0, "the drive has requests");
    assert_eq!(array(&instance)["state"], "degraded");
    // Old writes of the drive would come over newer ones.
    instance.run(&["array", "replace", "a", "1", &members[1]]).refused(1, "does not answer");
    ledger.check(&instance, "v");
    shelf.tell(&members[1], Conduct::Serves);
    until("the drive has ended everything", || {
        array(&instance)["members"][1]["undrained_requests"] == 0
    });
    work_while(&instance, &mut ledger, || {
        until("the member is back", || {
            instance.run(&["array", "replace", "a", "1", &members[1]]).code == 0
        });
        until("the array is whole", || array(&instance)["state"] == "running");
    });
    // The member has everything: the array serves without another one.
    instance.run(&["array", "fail", "a", &members[0]]).ok();
    ledger.check(&instance, "v");
}

#[test]
fn a_user_fails_a_member_that_hangs_and_a_new_device_that_hangs_too_is_refused() {
    let Some((instance, shelf, members)) = array_on_shelf("6", 5, "off") else { return };
    let (bad, good) = (shelf.drive("bad", 32 << 20), shelf.drive("good", 32 << 20));
    let mut ledger = Ledger::new(BLOCKS);
    work_while(&instance, &mut ledger, || {
        shelf.tell(&members[2], Conduct::Hangs);
        until("requests wait", || shelf.waiting(&members[2]) > 0);
        instance.run(&["array", "fail", "a", &members[2]]).ok();
        shelf.tell(&bad, Conduct::Hangs);
        instance.run(&["array", "replace", "a", "2", &bad]).refused(1, "answer");
        instance.run(&["array", "replace", "a", "2", &good]).ok();
        until("the array is whole", || array(&instance)["state"] == "running");
    });
    is_whole(&instance, &mut ledger);
    shelf.tell(&members[2], Conduct::Serves);
    shelf.tell(&bad, Conduct::Serves);
    is_whole(&instance, &mut ledger);
}

#[test]
fn a_daemon_that_stands_still_for_longer_than_the_deadline_ejects_nobody() {
    let Some((instance, shelf, members)) = array_on_shelf("6", 5, "1s") else { return };
    // Requests are under way at any moment.
    shelf.tell_all(&members, Conduct::Takes(Duration::from_millis(2)));
    let mut ledger = Ledger::new(BLOCKS / 8);
    let pid = instance.pid().unwrap();
    work_while(&instance, &mut ledger, || {
        for _ in 0..3 {
            kill_process(pid, Signal::STOP).unwrap();
            thread::park_timeout(Duration::from_secs(4));
            kill_process(pid, Signal::CONT).unwrap();
            thread::park_timeout(Duration::from_millis(300));
        }
    });
    is_whole(&instance, &mut ledger);
    let shown = array(&instance);
    assert_eq!(shown["members_awaited"], false, "{shown}");
}

/// A drive keeps a write, and its client dies. What another client writes there is acknowledged behind it,
/// and stays.
#[test]
fn an_older_write_that_a_drive_kept_never_ends_over_one_that_was_acknowledged() {
    for is_striped in [false, true] {
        let instance = Instance::new();
        let Some(shelf) = Shelf::mount(&instance) else { return };
        let drives = shelf.drives("d", 2);
        if is_striped {
            instance.run(&with(&["create", "a", "--level", "0"], &drives)).ok();
            instance.run(&["create", "-p", "array:a", "v"]).ok();
        } else {
            instance.run(&["create", "-p", &drives[0], "v"]).ok();
        }
        let mut nbd = instance.exported("v");
        // The array has the place on record before.
        nbd.write(8192, &[9; 8192]).unwrap();
        nbd.flush().unwrap();
        shelf.tell_all(&drives, Conduct::HoldsOneWrite);
        client(&instance).write_and_leave(8192, &[1; 4096]).unwrap();
        let holding = || drives.iter().find(|drive| shelf.holds_a_write(drive));
        until("a drive keeps the write", || holding().is_some());
        // The other drive keeps none.
        let others = drives.iter().filter(|drive| Some(*drive) != holding());
        shelf.tell_all(others, Conduct::Serves);
        let is_acknowledged = AtomicBool::new(false);
        let (seen, is_early) = thread::scope(|scope| {
            let second = scope.spawn(|| {
                client(&instance).write(8192, &[2; 4096]).unwrap();
                is_acknowledged.store(true, Ordering::Release);
            });
            // Neither reads nor what is written elsewhere wait.
            let seen = nbd.write(12288, &[3; 4096]).and_then(|()| nbd.read(8192, 8192));
            thread::park_timeout(Duration::from_millis(500));
            let is_early = is_acknowledged.load(Ordering::Acquire);
            shelf.tell_all(&drives, Conduct::Serves);
            second.join().unwrap();
            (seen.unwrap(), is_early)
        });
        assert!(!is_early, "striped: {is_striped}");
        assert!(seen[..4096] == [9; 4096] && seen[4096..] == [3; 4096], "striped: {is_striped}");
        nbd.flush().unwrap();
        assert_eq!(nbd.read(8192, 4096).unwrap(), [2; 4096], "striped: {is_striped}");
    }
}
