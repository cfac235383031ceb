//! The clock of the machine is set back a day while the daemon serves. Nothing goes by that clock but the
//! dates of the log and of files. The library `libfaketime` shows the daemon another time than the machine's.

use std::fs;
use std::path::Path;

use crate::support::arrays::{MIB, array, client, drives, with};
use crate::support::ledger::Ledger;
use crate::support::{Answer, Instance, until};

/// Where Debian and Ubuntu have the library.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];

/// The library, if the machine has it; `VOLTIER_FAKETIME` names another place.
fn library() -> Option<String> {
    let named = std::env::var("VOLTIER_FAKETIME").into_iter();
    let found = named.chain(LIBRARIES.map(str::to_owned)).find(|path| Path::new(path).exists());
    if found.is_none() {
        eprintln!("left out: there is no libfaketime");
    }
    found
}

/// The day of the last line of the log.
fn last_day(instance: &Instance) -> String {
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    log.lines().last().unwrap_or_default().chars().take(10).collect()
}

#[test]
fn a_clock_that_is_set_back_a_day_changes_nothing_but_the_dates_of_the_log() {
    let Some(library) = library() else { return };
    let instance = Instance::new();
    let clock = instance.path("clock");
    fs::write(&clock, "+0d").unwrap();
    let mut start = instance.command(&["start"]);
    start.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &clock);
    start.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Answer::from(start.output().unwrap()).ok();
    let members = drives(&instance, "d", 4);
    instance.run(&with(&["create", "a", "--level", "6"], &members)).ok();
    instance.run(&["array", "set", "a", "deadline=1s"]).ok();
    let ssd = instance.drive("ssd", 32 * MIB);
    instance.run(&["create", "-p", "array:a", "-s", &ssd, "-t", "wb", "v"]).ok();
    instance.export("v");
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(1000, &mut nbd);
    let today = last_day(&instance);
    for set in ["-1d", "+1d", "-1d"] {
        fs::write(&clock, set).unwrap();
        assert!(ledger.work(&mut nbd, 1000));
        // Lines are logged, and work goes on by the time that passes.
        instance.run(&["array", "fail", "a", "1"]).ok();
        assert_ne!(last_day(&instance), today, "the daemon sees the other clock");
        instance.run(&["array", "replace", "a", "1", &members[1]]).ok();
        until("the array is whole", || array(&instance)["state"] == "running");
        instance.run(&["flush", "v"]).ok();
    }
    assert_eq!(ledger.refused, 0);
    let shown = array(&instance);
    assert!(
        shown["members"].as_array().unwrap().iter().all(|it| it["state"] == "online"),
        "{shown}"
    );
    drop(nbd);
    // The next daemon has the machine's clock: a day later.
    instance.kill();
    ledger.check(&instance, "v");
}
