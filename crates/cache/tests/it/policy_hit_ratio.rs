//! Hit ratios on made-up workloads: what the modern policy is for.

use std::collections::BTreeMap;

use voltier_block::Prng;
use voltier_cache::policy::{LINE_LIMIT, Lines, Policy, PolicyKind};
use voltier_cache::{Line, Slot};

const CAPACITY: u32 = 2000;
const SLOTS: u32 = 2200;
const REQUESTS: u32 = 200_000;

/// A clean cache that writes each new line where a log would: to the next free slot.
struct Cache {
    slots: Vec<Option<Line>>,
    lines: BTreeMap<Line, Slot>,
    append_at: Slot,
    policy: Policy,
}

struct View<'a>(&'a [Option<Line>], &'a BTreeMap<Line, Slot>);

impl Lines for View<'_> {
    fn slot_of(&self, line: Line) -> Option<Slot> {
        self.1.get(&line).copied()
    }
    fn line_of(&self, slot: Slot) -> Line {
        self.0[slot.index()].expect("occupied")
    }
    fn evictable(&self, slot: Slot) -> bool {
        self.occupied(slot)
    }
    fn slots(&self) -> u32 {
        self.0.len() as u32
    }
    fn occupied(&self, slot: Slot) -> bool {
        self.0[slot.index()].is_some()
    }
}

impl Cache {
    fn new(kind: PolicyKind) -> Self {
        Self {
            slots: vec![None; SLOTS as usize],
            lines: BTreeMap::new(),
            append_at: Slot(0),
            policy: Policy::new(kind, SLOTS, u64::from(CAPACITY), LINE_LIMIT, 7).unwrap(),
        }
    }

    fn read(&mut self, line: Line) -> bool {
        if let Some(&slot) = self.lines.get(&line) {
            self.policy.touch(slot, line);
            return true;
        }
        if self.lines.len() == CAPACITY as usize {
            let slot = self.policy.victim(&View(&self.slots, &self.lines)).expect("all clean");
            let leaving = self.slots[slot.index()].take().expect("occupied");
            self.lines.remove(&leaving);
            self.policy.remove(slot, leaving);
        }
        while self.slots[self.append_at.index()].is_some() {
            self.append_at = Slot((self.append_at.0 + 1) % SLOTS);
        }
        self.slots[self.append_at.index()] = Some(line);
        self.lines.insert(line, self.append_at);
        self.policy.insert(self.append_at, line);
        false
    }
}

/// Zipf with exponent 0.99 over `count` lines, by inversion of the summed weights.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: u32) -> Self {
        let mut sum = 0.0;
        let weight = |rank: u32| f64::from(rank).powf(-0.99);
        Self(
            (1..=count)
                .map(|rank| {
                    sum += weight(rank);
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, prng: &mut Prng) -> u64 {
        let total = self.0[self.0.len() - 1];
        let at = (prng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * total;
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

/// Share of the Zipf requests that hit, with a scan of never-repeated lines in between: `scanned`
/// lines for every request.
fn hit_ratio(kind: PolicyKind, scanned: u64) -> f64 {
    let zipf = Zipf::new(20_000);
    let mut prng = Prng::new(11);
    let mut cache = Cache::new(kind);
    let mut next_scanned = 1_000_000;
    let mut hits = 0;
    for _ in 0..REQUESTS {
        hits += u32::from(cache.read(Line(zipf.draw(&mut prng))));
        for _ in 0..scanned {
            cache.read(Line(next_scanned));
            next_scanned += 1;
        }
    }
    f64::from(hits) / f64::from(REQUESTS)
}

#[test]
fn s3fifo_beats_lru_when_a_scan_runs_beside_a_zipf_load() {
    for scanned in [1, 3] {
        let ratio = |kind| hit_ratio(kind, scanned);
        let (s3, lru) = (ratio(PolicyKind::S3Fifo), ratio(PolicyKind::Lru));
        println!("zipf and {scanned} scanned: s3fifo {s3:.3}, lru {lru:.3}");
        assert!(s3 > lru + 0.02, "{scanned} scanned: s3fifo {s3:.3}, lru {lru:.3}");
    }
}

#[test]
fn s3fifo_is_no_worse_than_any_simple_policy_on_plain_zipf() {
    let s3 = hit_ratio(PolicyKind::S3Fifo, 0);
    for kind in [PolicyKind::Fifo, PolicyKind::Lru, PolicyKind::Rand] {
        let simple = hit_ratio(kind, 0);
        println!("zipf: s3fifo {s3:.3}, {kind} {simple:.3}");
        assert!(s3 >= simple, "s3fifo {s3:.3}, {kind} {simple:.3}");
    }
}

/// The small queue is passed again and again: what is used once never gets past it. So a loop longer than
/// the cache keeps a part of itself. A clock, or a small queue that is passed once, keeps none.
#[test]
fn s3fifo_keeps_a_part_of_a_loop_that_is_longer_than_the_cache() {
    let mut cache = Cache::new(PolicyKind::S3Fifo);
    let mut hits = 0;
    for request in 0..REQUESTS {
        hits += u32::from(cache.read(Line(u64::from(request) % 6000)));
    }
    let ratio = f64::from(hits) / f64::from(REQUESTS);
    println!("loop over three caches: s3fifo {ratio:.3}");
    assert!(ratio > 0.2, "s3fifo {ratio:.3}");
}
