//! A drive that hangs, through the real binary: a file that another daemon exports, which is stopped.
//! Opening, reading, writing and flushing such a file take until that daemon goes on.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::arrays::{MIB, drives, with};
use crate::support::{Answer, Instance};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

const LOOK_STEP: Duration = Duration::from_millis(20);

/// A daemon whose exported files are the drives of another one. The daemon goes on when this is dropped.
/// Nobody can end the other one before: a process that waits for a drive does not end.
struct Drives {
    instance: Instance,
    paths: Vec<String>,
}

impl Drives {
    /// Files to stand for drives; `None`, aloud, where the kernel or the user has no FUSE.
    fn new(count: usize) -> Option<Self> {
        let instance = Instance::new();
        let mut paths = Vec::new();
        for number in 0..count {
            let (name, file) = (format!("h{number}"), instance.path(&format!("f{number}")));
            let origin = instance.drive(&format!("o{number}"), 32 * MIB);
            instance.run(&["create", "-p", &origin, &name]).ok();
            let path = file.to_str().unwrap().to_owned();
            let exported = instance.run(&["export", &name, "--fuse", &path]);
            if exported.code != 0 {
                eprintln!("left out: FUSE: {exported:?}");
                return None;
            }
            paths.push(path);
        }
        Some(Self { instance, paths })
    }

    fn hang(&self) {
        kill_process(self.instance.pid().unwrap(), Signal::STOP).unwrap();
    }

    fn answer(&self) {
        kill_process(self.instance.pid().unwrap(), Signal::CONT).unwrap();
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        self.answer();
    }
}

fn begin(instance: &Instance, args: &[&str]) -> Child {
    let mut command = instance.command(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end(child: Child) -> Answer {
    child.wait_with_output().unwrap().into()
}

/// Looks until a command is under way and waits for something.
fn until_under_way(mut look: impl FnMut() -> Value, words: &str) {
    loop {
        let found = look();
        let under_way = found["under_way"].as_str().unwrap().to_owned();
        if under_way.contains(words) {
            return;
        }
        assert_eq!(found["error"], "", "{found}");
        thread::park_timeout(LOOK_STEP);
    }
}

#[test]
fn a_hanging_drive_keeps_the_commands_that_need_it_and_no_other() {
    let instance = Instance::new();
    let Some(hung) = Drives::new(2) else { return };
    instance.run(&["create", "-p", &hung.paths[0], "v"]).ok();
    let members = drives(&instance, "d", 3);
    instance.run(&with(&["create", "a", "--level", "5"], &members)).ok();
    instance.run(&["create", "-p", "array:a", "w"]).ok();
    let others = drives(&instance, "e", 3);
    instance.run(&with(&["create", "b", "--level", "5"], &others)).ok();
    hung.hang();
    let show = |name: &str| instance.run(&["show", name, "--json"]).shown();
    let array = |name: &str| instance.run(&["array", "show", name, "--json"]).shown();
    // A stop flushes the drive.
    let stop = begin(&instance, &["stop", "v"]);
    until_under_way(|| show("v"), "stop: closing");
    let replace = begin(&instance, &["array", "replace", "a", "0", &hung.paths[1]]);
    until_under_way(|| array("a"), "array replace: opening and reading");
    let table = instance.run(&["show"]).ok();
    assert!(table.out.contains("v: under way: stop: closing"), "{table:?}");
    // Members are failed in the array whose command waits, and in the other one.
    for name in ["a", "b"] {
        instance.run(&["array", "fail", name, "2"]).ok();
        assert_eq!(array(name)["members"][2]["state"], "lost");
    }
    let spare = instance.drive("spare", 32 * MIB);
    instance.run(&["array", "replace", "b", "2", &spare]).ok();
    let origin = instance.drive("origin", 32 * MIB);
    instance.run(&["create", "-p", &origin, "x"]).ok();
    instance.run(&["stop", "x"]).ok();
    instance.run(&["start", "x"]).ok();
    hung.answer();
    let stopped = end(stop).ok();
    assert!(stopped.out.contains("stopped"), "{stopped:?}");
    // The device may have answered too late for the command; the array is whole in either case.
    let _ = end(replace);
    assert_eq!(array("a")["members"][2]["state"], "lost");
    assert_eq!(show("w")["state"], "running");
    assert_eq!(show("v")["state"], "stopped");
}

#[test]
fn a_daemon_starts_past_a_drive_that_hangs() {
    let instance = Instance::new();
    let Some(hung) = Drives::new(1) else { return };
    instance.run(&["create", "-p", &hung.paths[0], "v"]).ok();
    let origin = instance.drive("origin", 32 * MIB);
    instance.run(&["create", "-p", &origin, "w"]).ok();
    instance.stop();
    hung.hang();
    let mut daemon = begin(&instance, &["start"]);
    let table = loop {
        let table = instance.run(&["show"]);
        if table.out.contains("w     running") {
            break table;
        }
        thread::park_timeout(LOOK_STEP);
    };
    assert!(table.out.contains("v     starting"), "{table:?}");
    assert!(table.out.contains("v: under way: start: opening"), "{table:?}");
    let fresh = instance.drive("fresh", 32 * MIB);
    instance.run(&["create", "-p", &fresh, "x"]).ok();
    hung.answer();
    assert!(daemon.wait().unwrap().success());
    while instance.run(&["show", "v", "--json"]).shown()["state"] != "running" {
        thread::park_timeout(LOOK_STEP);
    }
}
