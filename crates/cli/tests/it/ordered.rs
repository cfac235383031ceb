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
