//! Ordered mode over an SSD full of clean lines: the log finds space in them, and nothing waits for ever.

use std::time::Duration;

use crate::support::ledger::{BLOCK, Ledger};
use crate::support::nbd::NbdClient;
use crate::support::{Instance, MIB};

const SSD_BYTES: u64 = 24 * MIB;
const DISK_BYTES: u64 = 48 * MIB;
/// Each with a flush of its own: more than the log of such an SSD has places for heads.
const WRITES: u64 = 1_600;
/// Looks at a command, a hundred a second: longer than it takes, beside other tests.
const LOOKS_MAX: u32 = 6_000;

/// A command that must end soon.
fn soon(instance: &Instance, args: &[&str]) {
    let mut child = instance.command(args).spawn().unwrap();
    for _ in 0..LOOKS_MAX {
        if let Some(status) = child.try_wait().unwrap() {
            return assert!(status.success(), "{args:?}: {status}");
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("{args:?} does not end");
}

/// A flush after each write makes every write an epoch of its own.
fn write_and_sync(nbd: &mut NbdClient, ledger: &mut Ledger, writes: u64) {
    let blocks = DISK_BYTES / BLOCK as u64;
    for number in 0..writes {
        ledger.write(nbd, number * 5_003 % blocks).unwrap();
        nbd.flush().unwrap();
    }
}

#[test]
fn ordered_mode_over_an_ssd_full_of_clean_lines_goes_on() {
    let instance = Instance::new();
    let (ssd, disk) = (instance.drive("ssd", SSD_BYTES), instance.drive("disk", DISK_BYTES));
    instance.run(&["create", "-s", &ssd, "-p", &disk, "-t", "wb", "v"]).ok();
    instance.run(&["set", "v", "ordered=on"]).ok();
    let mut nbd = instance.exported("v");
    (0..DISK_BYTES / MIB).for_each(|mib| drop(nbd.read(mib * MIB, MIB as usize).unwrap()));
    let mut ledger = Ledger::new((DISK_BYTES / BLOCK as u64) as usize);
    write_and_sync(&mut nbd, &mut ledger, WRITES);
    instance.kill();
    instance.serve();
    soon(&instance, &["flush", "v"]);
    assert_eq!(instance.show("v")["lines"]["dirty"], 0);
    let mut nbd = instance.connect("v");
    write_and_sync(&mut nbd, &mut ledger, WRITES / 4);
    drop(nbd);
    soon(&instance, &["set", "v", "mode=wt"]);
    soon(&instance, &["flush", "v"]);
    ledger.check(&instance, "v");
    soon(&instance, &["detach", "v"]);
    ledger.check(&instance, "v");
}

#[test]
fn what_a_loss_of_the_ssd_would_take_is_shown_and_bounded() {
    let instance = Instance::new();
    let (ssd, disk) = (instance.drive("ssd", SSD_BYTES), instance.drive("disk", DISK_BYTES));
    instance.run(&["create", "-s", &ssd, "-p", &disk, "v"]).ok();
    assert!(instance.show("v")["unshipped"].is_null(), "the disk has every write");
    instance.run(&["set", "v", "mode=wb", "max_unshipped=5s"]).refused(2, "needs ordered=on");
    instance.run(&["set", "v", "mode=wb", "ordered=on", "max_unshipped=5s,64M"]).ok();
    instance.run(&["set", "v", "ordered=off"]).refused(2, "or max_unshipped=off");
    for bad in ["5", "1M", "32d", "5s,6s", "soon", ""] {
        let change = format!("max_unshipped={bad}");
        instance.run(&["set", "v", &change]).refused(2, "write an age of 1s to 31d");
    }
    let mut nbd = instance.exported("v");
    let mut ledger = Ledger::new((DISK_BYTES / BLOCK as u64) as usize);
    write_and_sync(&mut nbd, &mut ledger, 20);
    drop(nbd);
    instance.kill();
    instance.serve();
    soon(&instance, &["flush", "v"]);
    let shown = instance.show("v");
    assert_eq!(shown["tunables"]["max_unshipped"], "5s,64M", "also after a crash");
    let unshipped = &shown["unshipped"];
    assert_eq!((&unshipped["bytes"], &unshipped["waiting_writes"]), (&0.into(), &0.into()));
    assert!(unshipped["age_seconds"].is_null(), "{unshipped}");
    let mut nbd = instance.connect("v");
    write_and_sync(&mut nbd, &mut ledger, 3);
    drop(nbd);
    soon(&instance, &["flush", "v"]);
    let flush = instance.show("v")["unshipped"]["shipped_flush"].clone();
    assert!(flush["number"].as_u64() >= Some(3) && flush["unix_ms"].is_u64(), "{flush}");
    let text = instance.run(&["show", "v"]).ok().out;
    assert!(text.contains("if the SSD were lost now: nothing, the disk has all writes"), "{text}");
    assert!(text.contains("max_unshipped=5s,64M"), "{text}");
    ledger.check(&instance, "v");
    instance.run(&["set", "v", "max_unshipped=off"]).ok();
    assert_eq!(instance.show("v")["tunables"]["max_unshipped"], "off");
}
