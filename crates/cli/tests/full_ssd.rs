//! An SSD that has no room any more: its writes fail, its reads work, and no acknowledged write is lost.
//! The daemon may write no file beyond a limit that lies within the SSD's file and behind the HDD's.

mod support;

use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, prlimit};
use support::Instance;
use support::nbd::NbdClient;

const MIB: u64 = 1 << 20;
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

/// A daemon that outlives a write beyond the limit.
fn serving() -> Instance {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 10 * MIB));
    let create = instance.command(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(create.get_program());
    shell.args(create.get_args()).current_dir(instance.path("."));
    shell.env("VOLTIER_STATE", instance.state());
    support::Answer::from(shell.output().unwrap()).ok();
    instance.export("v");
    instance
}

fn connect(instance: &Instance) -> NbdClient {
    NbdClient::connect(&instance.socket("v"), "v").unwrap()
}

/// Writes every block once, and limits the daemon's files then.
fn fill_and_limit(instance: &Instance, counts: &mut [u64]) {
    let mut client = connect(instance);
    for block in blocks() {
        client.write(block * BLOCK as u64, &content(block, 1)).unwrap();
        counts[block as usize] = 1;
    }
    client.flush().unwrap();
    let limit = Rlimit { current: Some(LIMIT_BYTES), maximum: Some(LIMIT_BYTES) };
    prlimit(instance.pid(), Resource::Fsize, limit).unwrap();
}

fn check(instance: &Instance, counts: &[u64], may_be_newer: bool) {
    let mut client = connect(instance);
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
    let mut client = connect(&instance);
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
    instance.run(&["show", "v"]).ok();
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
        let mut client = connect(&instance);
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
        instance.run(&["show", "v"]).ok();
        check(&instance, &counts, true);
    }
}
