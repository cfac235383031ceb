//! `kill -9` under write load: every acknowledged write is there, and dirty counts are exact.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::nbd::NbdClient;
use crate::support::{Instance, MIB, rounds};

const BLOCK: usize = 4096;
/// Blocks that are written round and round: more than the SSD holds, so that the cleaner works.
const BLOCKS: u64 = 3000;
/// Clients that write at a time, each its own blocks.
const CLIENTS: u64 = 3;
/// Acknowledged writes after which the daemon is killed.
const WRITES: u64 = 600;
/// The bytes of a block after its write number `count`; zeroes before the first.
fn content(block: u64, count: u64) -> Vec<u8> {
    let word = if count == 0 { 0 } else { block << 32 | count };
    word.to_le_bytes().iter().copied().cycle().take(BLOCK).collect()
}

#[test]
fn acknowledged_writes_survive_kill_nine_under_load() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 10 * MIB), instance.drive("hdd", 16 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.export("v");
    let counts: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let total = AtomicU64::new(0);
    for round in 1..=rounds() {
        let goal = total.load(Ordering::Acquire) + WRITES;
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (instance, counts, total) = (&instance, &counts, &total);
                scope.spawn(move || write_until_killed(instance, client, counts, total));
            }
            while total.load(Ordering::Acquire) < goal {
                std::thread::yield_now();
            }
            instance.kill();
        });
        check(&instance, &hdd, &counts, round);
    }
    println!("{} writes acknowledged, {} kills", total.load(Ordering::Acquire), rounds());
    instance.run(&["delete", "v"]).ok();
    let file = File::open(&hdd).unwrap();
    assert_eq!(differing(&file, &counts), 0, "the plain HDD has all");
}

/// Writes a client's blocks one after the other, and notes what is acknowledged.
fn write_until_killed(instance: &Instance, client: u64, counts: &[AtomicU64], total: &AtomicU64) {
    // Others may have written all that is wanted, and the kill come, before this client is connected.
    let Ok(mut nbd) = NbdClient::connect(&instance.socket("v"), "v") else { return };
    let mut turn = total.load(Ordering::Acquire);
    loop {
        turn += 1;
        let own = turn.wrapping_mul(2_654_435_761) % (BLOCKS / CLIENTS);
        let block = own * CLIENTS + client;
        let next = counts[block as usize].load(Ordering::Acquire) + 1;
        if nbd.write(block * BLOCK as u64, &content(block, next)).is_err() {
            return;
        }
        counts[block as usize].store(next, Ordering::Release);
        total.fetch_add(1, Ordering::AcqRel);
    }
}

/// The next daemon has every acknowledged write, and knows what the HDD does not have.
fn check(instance: &Instance, hdd: &str, counts: &[AtomicU64], round: u64) {
    instance.serve();
    let mut nbd = instance.connect("v");
    let mut under_way = 0;
    for (block, count) in (0..).zip(counts) {
        let data = nbd.read(block * BLOCK as u64, BLOCK).unwrap();
        let known = count.load(Ordering::Acquire);
        // A write that was under way may have arrived or not; if it has, it stays.
        if data == content(block, known + 1) {
            count.store(known + 1, Ordering::Release);
            under_way += 1;
        } else {
            let old = content(block, known);
            assert_eq!(data[..8], old[..8], "round {round}, block {block}: not write {known}");
            assert!(data == old, "round {round}, block {block}: torn");
        }
    }
    assert!(under_way <= CLIENTS, "round {round}: {under_way} writes that nobody sent");
    let file = File::open(hdd).unwrap();
    // The cleaner works on: what differs now was dirty when `show` counts it or before.
    let missing_before = differing(&file, counts);
    let dirty = instance.show("v")["lines"]["dirty"].as_u64().unwrap();
    let missing_after = differing(&file, counts);
    assert!(dirty >= missing_after, "round {round}: {dirty} dirty, {missing_after} missing");
    if round.is_multiple_of(5) {
        instance.run(&["flush", "v"]).ok();
        assert_eq!(instance.show("v")["lines"]["dirty"], 0, "round {round}");
        assert_eq!(differing(&file, counts), 0, "round {round}: clean, {missing_before} before");
    }
}

/// Blocks whose newest content the HDD does not have.
fn differing(hdd: &File, counts: &[AtomicU64]) -> u64 {
    let mut data = vec![0; BLOCK];
    let differs = |(block, count): &(u64, &AtomicU64)| {
        hdd.read_exact_at(&mut data, block * BLOCK as u64).unwrap();
        data != content(*block, count.load(Ordering::Acquire))
    };
    (0..).zip(counts).filter(differs).count() as u64
}
