//! An SSD that has no room any more: its writes fail, its reads work, and no acknowledged write is lost.
//! The daemon may write no file beyond a limit that lies within the SSD's file and behind the HDD's.

use crate::support;

use std::process::Command;
use std::time::Duration;

use crate::support::{Instance, MIB};
use rustix::process::{Resource, Rlimit, prlimit};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2000;
/// Behind the HDD's end, and behind what the first writes take of the SSD.
const LIMIT_BYTES: u64 = 14 * MIB;

/// The blocks in an order that is no stream: streams go past the cache.
fn blocks() -> impl Iterator<Item = u64> + Clone {
    (0..BLOCKS).map(|number| number * 787 % BLOCKS)
}

fn content(block: u64, count: u64) -> Vec<u8> {
    (block << 32 | count).to_le_bytes().iter().copied().cycle().take(BLOCK).collect()
}

/// Runs a command that starts a daemon which outlives a write beyond the limit.
fn run_with_limits(instance: &Instance, args: &[&str]) {
    let command = instance.command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(command.get_program());
    shell.args(command.get_args()).current_dir(instance.path("."));
    shell.env("VOLTIER_STATE", instance.state());
    support::Answer::from(shell.output().unwrap()).ok();
}

fn serving() -> Instance {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 10 * MIB));
    run_with_limits(&instance, &["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]);
    instance.export("v");
    instance
}

/// No file of the daemon may be written at or beyond this offset.
fn limit_files(instance: &Instance, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(instance.pid(), Resource::Fsize, limit).unwrap();
}

/// Writes every block once, and limits the daemon's files then.
fn fill_and_limit(instance: &Instance, counts: &mut [u64]) {
    let mut client = instance.connect("v");
    for block in blocks() {
        client.write(block * BLOCK as u64, &content(block, 1)).unwrap();
        counts[block as usize] = 1;
    }
    client.flush().unwrap();
    limit_files(instance, Some(LIMIT_BYTES));
}

fn check(instance: &Instance, counts: &[u64], may_be_newer: bool) {
    let mut client = instance.connect("v");
    for (block, count) in (0..).zip(counts) {
        let found = client.read(block * BLOCK as u64, BLOCK).unwrap();
        let is_newer = may_be_newer && found == content(block, count + 1);
        assert!(found == content(block, *count) || is_newer, "block {block}");
    }
}

#[test]
fn a_full_ssd_is_evacuated_and_every_acknowledged_block_is_there() {
    let instance = serving();
    let mut counts = vec![0; BLOCKS as usize];
    fill_and_limit(&instance, &mut counts);
    let mut client = instance.connect("v");
    for round in 2..4 {
        for block in blocks() {
            client.write(block * BLOCK as u64, &content(block, round)).unwrap();
            counts[block as usize] = round;
        }
    }
    client.flush().unwrap();
    check(&instance, &counts, false);
    let status = instance.show("v");
    assert_eq!(status["ssd"]["state"], "failed", "{status}");
    assert_eq!(status["lines"]["dirty"], 0, "{status}");
    assert_eq!(status["lost_ranges"], 0, "{status}");
    assert!(status["error"].as_str().unwrap().contains("nothing is lost"), "{status}");
    instance.stop();
    instance.serve();
    check(&instance, &counts, false);
    instance.run(&["detach", "v"]).ok();
    check(&instance, &counts, false);
    assert_eq!(instance.show("v")["state"], "running");
}

#[test]
fn kill_nine_while_a_full_ssd_is_evacuated_loses_nothing() {
    for delay_ms in [0, 5, 50] {
        let instance = serving();
        let mut counts = vec![0; BLOCKS as usize];
        fill_and_limit(&instance, &mut counts);
        let mut client = instance.connect("v");
        std::thread::scope(|scope| {
            let (counts, killed) = (&mut counts, &instance);
            let writer = scope.spawn(move || {
                for block in blocks().cycle() {
                    let count = counts[block as usize] + 1;
                    if client.write(block * BLOCK as u64, &content(block, count)).is_err() {
                        return;
                    }
                    counts[block as usize] = count;
                }
            });
            while killed.show("v")["ssd"]["state"] == "online" {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            std::thread::park_timeout(Duration::from_millis(delay_ms));
            killed.kill();
            writer.join().unwrap();
        });
        // The next daemon may write again.
        instance.serve();
        check(&instance, &counts, true);
    }
}

/// The SSD is a FUSE file of another daemon, whose files take no write at all in the end.
#[test]
fn a_start_on_an_ssd_that_takes_no_writes_evacuates_it() {
    let (other, instance) = (Instance::new(), Instance::new());
    let (behind, ssd) = (other.drive("behind", 64 * MIB), other.path("ssd"));
    let ssd = ssd.to_str().unwrap();
    run_with_limits(&other, &["create", "-p", &behind, "s"]);
    if !other.export_file("s", ssd) {
        return;
    }
    let hdd = instance.drive("hdd", 10 * MIB);
    instance.run(&["create", "-s", ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.run(&["set", "v", "dirty_high=80", "dirty_low=70"]).ok();
    instance.export("v");
    let mut counts = vec![1; BLOCKS as usize];
    let mut client = instance.connect("v");
    for block in blocks() {
        client.write(block * BLOCK as u64, &content(block, 1)).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    instance.stop();
    limit_files(&other, Some(0));
    instance.serve();
    check(&instance, &counts, false);
    let mut client = instance.connect("v");
    for block in blocks().take(100) {
        client.write(block * BLOCK as u64, &content(block, 2)).unwrap();
        counts[block as usize] = 2;
    }
    client.flush().unwrap();
    while instance.show("v")["ssd"]["state"] == "evacuating" {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let status = instance.show("v");
    assert_eq!(status["ssd"]["state"], "failed", "{status}");
    assert_eq!(status["lost_ranges"], 0, "{status}");
    assert!(status["error"].as_str().unwrap().contains("nothing is lost"), "{status}");
    let log = std::fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("its SSD takes no writes"), "{log}");
    limit_files(&other, None);
    instance.kill();
    instance.serve();
    check(&instance, &counts, false);
}

#[test]
fn an_evacuation_that_the_hdd_refuses_ends_by_giving_the_lines_up() {
    let other = Instance::new();
    let (behind, hdd) = (other.drive("behind", 10 * MIB), other.path("hdd"));
    let hdd = hdd.to_str().unwrap();
    run_with_limits(&other, &["create", "-p", &behind, "h"]);
    if !other.export_file("h", hdd) {
        return;
    }
    let instance = Instance::new();
    let ssd = instance.drive("ssd", 64 * MIB);
    run_with_limits(&instance, &["create", "-s", &ssd, "-p", hdd, "-t", "wb", "v"]);
    instance.export("v");
    let mut counts = vec![0; BLOCKS as usize];
    fill_and_limit(&instance, &mut counts);
    limit_files(&other, Some(0));
    let mut client = instance.connect("v");
    while client.write(0, &content(0, 2)).is_ok() {}
    assert_eq!(instance.show("v")["ssd"]["state"], "evacuating");
    instance.run(&["detach", "v"]).refused(1, "`voltier detach --no-flush v` gives them up");
    instance.run(&["detach", "--no-flush", "v"]).ok();
    assert_eq!(instance.show("v")["ssd"]["state"], "none");
    limit_files(&other, None);
    client.write(0, &content(0, 3)).unwrap();
    assert_eq!(client.read(0, BLOCK).unwrap(), content(0, 3));
}
