//! `kill -9` under write load: every acknowledged write is there, and dirty counts are exact.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use support::Instance;
use support::nbd::NbdClient;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// Blocks that are written round and round: more than the SSD holds, so that the cleaner works.
const BLOCKS: u64 = 5000;
/// The figure is 50, by several clients; a test of every build does fewer.
const ROUNDS: u64 = 5;

/// What write number `count` of a block puts there.
fn content(block: u64, count: u64) -> Vec<u8> {
    let word = (block << 32 | count).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

#[test]
fn acknowledged_writes_survive_kill_nine_under_load() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 16 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.export("v");
    let acknowledged: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let mut written = 0;
    for round in 1..=ROUNDS {
        let progress = AtomicU64::new(0);
        written = std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| write_until_killed(&instance, &acknowledged, written, &progress));
            while progress.load(Ordering::Acquire) < 400 {
                std::thread::yield_now();
            }
            instance.kill();
            writer.join().unwrap()
        });
        instance.run(&["show"]).ok();
        let mut nbd = NbdClient::connect(&instance.socket("v"), "v").unwrap();
        for (block, count) in acknowledged.iter().enumerate() {
            let (block, count) = (block as u64, count.load(Ordering::Acquire));
            let data = nbd.read(block * BLOCK as u64, BLOCK).unwrap();
            let old = if count == 0 { vec![0; BLOCK] } else { content(block, count) };
            // The one write that was under way may have arrived or not; if it has, it stays.
            if data == content(block, written + 1) {
                acknowledged[block as usize].store(written + 1, Ordering::Release);
            } else {
                assert_eq!(data[..8], old[..8], "round {round}, block {block}: not write {count}");
                assert!(data == old, "round {round}, block {block}: torn");
            }
        }
        written += 1;
    }
    instance.run(&["delete", "v"]).ok();
}

/// Writes blocks one after the other, notes what is acknowledged; the number of the last one.
fn write_until_killed(
    instance: &Instance,
    acknowledged: &[AtomicU64],
    mut written: u64,
    progress: &AtomicU64,
) -> u64 {
    let mut nbd = NbdClient::connect(&instance.socket("v"), "v").unwrap();
    loop {
        let next = written + 1;
        let block = next * 2_654_435_761 % BLOCKS;
        if nbd.write(block * BLOCK as u64, &content(block, next)).is_err() {
            return written;
        }
        written = next;
        acknowledged[block as usize].store(next, Ordering::Release);
        progress.fetch_add(1, Ordering::AcqRel);
    }
}
