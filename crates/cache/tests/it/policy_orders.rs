//! Every policy against a plain model of what it promises, over random histories.

use std::cell::Cell;
use std::collections::BTreeMap;

use voltier_block::Prng;
use voltier_cache::policy::{FAR_LOOKS_MAX, LINE_LIMIT, Lines, NEAR_LOOKS_MAX, Policy, PolicyKind};
use voltier_cache::{Line, Slot};

/// A cache without data: which line is where, which lines are dirty, and the exact orders.
struct World {
    slots: Vec<Option<Line>>,
    lines: BTreeMap<Line, Slot>,
    dirty: Vec<bool>,
    dirty_count: u32,
    /// Oldest first.
    by_insertion: Vec<Line>,
    by_use: Vec<Line>,
    looks: Cell<u32>,
}

impl Lines for World {
    fn slot_of(&self, line: Line) -> Option<Slot> {
        self.lines.get(&line).copied()
    }
    fn line_of(&self, slot: Slot) -> Line {
        self.slots[slot.index()].expect("occupied")
    }
    fn evictable(&self, slot: Slot) -> bool {
        self.looks.set(self.looks.get() + 1);
        self.slots[slot.index()].is_some() && !self.dirty[slot.index()]
    }
    fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
    fn occupied(&self, slot: Slot) -> bool {
        self.slots[slot.index()].is_some()
    }
}

impl World {
    fn new(slots: u32) -> Self {
        Self {
            slots: vec![None; slots as usize],
            lines: BTreeMap::new(),
            dirty: vec![false; slots as usize],
            dirty_count: 0,
            by_insertion: Vec::new(),
            by_use: Vec::new(),
            looks: Cell::new(0),
        }
    }

    fn free_slot(&self, prng: &mut Prng) -> Slot {
        loop {
            let slot = Slot(prng.below(self.slots.len() as u64) as u32);
            if !self.occupied(slot) {
                return slot;
            }
        }
    }

    fn insert(&mut self, policy: &mut Policy, slot: Slot, line: Line) {
        self.slots[slot.index()] = Some(line);
        self.lines.insert(line, slot);
        self.by_insertion.push(line);
        self.by_use.push(line);
        policy.insert(slot, line);
    }

    fn touch(&mut self, policy: &mut Policy, line: Line) {
        self.by_use.retain(|&other| other != line);
        self.by_use.push(line);
        policy.touch(self.lines[&line], line);
    }

    fn relocate(&mut self, policy: &mut Policy, line: Line, to: Slot) {
        let from = self.lines[&line];
        self.lines.insert(line, to);
        self.slots.swap(from.index(), to.index());
        self.dirty.swap(from.index(), to.index());
        policy.relocate(from, to, line);
    }

    fn remove(&mut self, policy: &mut Policy, line: Line) {
        let slot = self.lines.remove(&line).expect("cached");
        self.set_dirty(slot, false);
        self.slots[slot.index()] = None;
        self.by_insertion.retain(|&other| other != line);
        self.by_use.retain(|&other| other != line);
        policy.remove(slot, line);
    }

    fn set_dirty(&mut self, slot: Slot, dirty: bool) {
        let was = std::mem::replace(&mut self.dirty[slot.index()], dirty);
        self.dirty_count += u32::from(dirty);
        self.dirty_count -= u32::from(was);
    }

    /// The choice of the exact policy.
    fn first_clean(&self, kind: PolicyKind) -> Option<Slot> {
        let order = if kind == PolicyKind::Lru { &self.by_use } else { &self.by_insertion };
        order.iter().map(|line| self.lines[line]).find(|&slot| !self.dirty[slot.index()])
    }

    fn victim(&self, policy: &mut Policy) -> Option<Slot> {
        self.looks.set(0);
        let victim = policy.victim(self);
        assert!(self.looks.get() <= 2 * 256 + NEAR_LOOKS_MAX + FAR_LOOKS_MAX, "a bounded search");
        if let Some(slot) = victim {
            assert!(self.occupied(slot) && !self.dirty[slot.index()], "a victim may go");
        }
        victim
    }
}

/// A random history: hits, moves, invalidations with reinsertions, dirtying up to a bound,
/// cleaning, and evictions when full. `check` sees every choice before it is carried out.
fn play(kind: PolicyKind, seed: u64, dirty_max: u32, check: impl Fn(&World, Option<Slot>)) {
    let mut prng = Prng::new(seed);
    let capacity = 4 + prng.below(120);
    let slots = capacity as u32 + 1 + prng.below(20) as u32;
    let lines = capacity * (1 + prng.below(3)) + 1;
    // Few invalidations in some histories, mostly invalidations in others.
    let invalidations = 1 + prng.below(30);
    let mut world = World::new(slots);
    let mut policy = Policy::new(kind, slots, capacity, LINE_LIMIT, seed).unwrap();
    for _ in 0..4000 {
        let line = Line(LINE_LIMIT - 1 - prng.below(lines));
        let Some(slot) = world.slot_of(line) else {
            if world.lines.len() as u64 == capacity {
                let victim = world.victim(&mut policy);
                check(&world, victim);
                let Some(victim) = victim else {
                    continue;
                };
                // Sometimes the cache thinks better of it.
                if prng.one_in(10) {
                    continue;
                }
                let leaving = world.line_of(victim);
                if prng.one_in(4) {
                    let to = world.free_slot(&mut prng);
                    world.relocate(&mut policy, leaving, to);
                }
                world.remove(&mut policy, leaving);
            }
            let slot = world.free_slot(&mut prng);
            world.insert(&mut policy, slot, line);
            continue;
        };
        match prng.below(30 + invalidations) {
            0..10 => world.touch(&mut policy, line),
            10..20 => {
                let to = world.free_slot(&mut prng);
                world.relocate(&mut policy, line, to);
            }
            20..24 => world.set_dirty(slot, world.dirty_count < dirty_max),
            24..30 => world.set_dirty(slot, false),
            _ => world.remove(&mut policy, line),
        }
    }
}

#[test]
fn lru_and_fifo_choose_what_the_plain_model_chooses() {
    for kind in [PolicyKind::Lru, PolicyKind::Fifo] {
        for seed in 0..150 {
            play(kind, seed, NEAR_LOOKS_MAX - 1, |world, victim| {
                assert_eq!(victim, world.first_clean(kind), "{kind} seed {seed}");
            });
        }
    }
}

#[test]
fn every_policy_chooses_only_what_may_go_however_much_is_dirty() {
    for kind in PolicyKind::ALL {
        for seed in 0..60 {
            play(kind, seed, u32::MAX, |world, victim| {
                assert!(victim.is_none() || world.dirty_count < world.lines.len() as u32);
            });
        }
    }
}

/// Fills a cache of `count` lines in slot order.
fn full(kind: PolicyKind, count: u32) -> (World, Policy) {
    let mut world = World::new(count + 1);
    let mut policy = Policy::new(kind, count + 1, u64::from(count), LINE_LIMIT, 1).unwrap();
    for slot in 0..count {
        world.insert(&mut policy, Slot(slot), Line(u64::from(slot) * 3));
    }
    (world, policy)
}

#[test]
fn a_long_dirty_tail_is_walked_once_and_not_once_per_eviction() {
    const COUNT: u32 = 4000;
    // Chance has no tail.
    for kind in PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Rand) {
        let (mut world, mut policy) = full(kind, COUNT);
        for slot in (0..COUNT - 200).map(Slot) {
            world.set_dirty(slot, true);
        }
        let (mut evicted, mut calls) = (0, 0);
        while evicted < 200 {
            calls += 1;
            assert!(calls < 400, "{kind}: {evicted} of 200 clean lines found in {calls} calls");
            if let Some(slot) = world.victim(&mut policy) {
                let line = world.line_of(slot);
                world.remove(&mut policy, line);
                evicted += 1;
            }
        }
        assert_eq!(world.victim(&mut policy), None);
    }
}

#[test]
fn a_line_cleaned_anywhere_in_a_dirty_cache_is_found_soon() {
    const COUNT: u32 = 2000;
    for kind in PolicyKind::ALL {
        let (mut world, mut policy) = full(kind, COUNT);
        for slot in (0..COUNT).map(Slot) {
            world.set_dirty(slot, true);
        }
        let mut prng = Prng::new(8);
        for _ in 0..300 {
            for _ in 0..prng.below(100) {
                assert_eq!(world.victim(&mut policy), None);
            }
            let cleaned = Slot(prng.below(u64::from(COUNT)) as u32);
            world.set_dirty(cleaned, false);
            let calls = 2 * COUNT / NEAR_LOOKS_MAX + 2;
            let found = (0..calls).find_map(|_| world.victim(&mut policy));
            assert_eq!(found, Some(cleaned), "{kind}");
            world.set_dirty(cleaned, true);
        }
    }
}

#[test]
fn fifo_keeps_the_order_when_one_old_line_stays_dirty_for_ever() {
    const COUNT: u32 = 500;
    let (mut world, mut policy) = full(PolicyKind::Fifo, COUNT);
    world.set_dirty(Slot(0), true);
    for line in (10_000..40_000).map(Line) {
        let victim = world.victim(&mut policy);
        assert_eq!(victim, world.first_clean(PolicyKind::Fifo));
        let slot = victim.expect("clean lines");
        let leaving = world.line_of(slot);
        world.remove(&mut policy, leaving);
        world.insert(&mut policy, slot, line);
    }
}

#[test]
fn fifo_holds_under_invalidation_alone() {
    const COUNT: u32 = 3000;
    let (mut world, mut policy) = full(PolicyKind::Fifo, COUNT);
    let mut prng = Prng::new(6);
    for _ in 0..30_000 {
        let line = Line(prng.below(u64::from(COUNT)) * 3);
        let slot = world.slot_of(line).expect("cached");
        world.remove(&mut policy, line);
        world.insert(&mut policy, slot, line);
    }
    while !world.lines.is_empty() {
        let victim = world.victim(&mut policy);
        assert_eq!(victim, world.first_clean(PolicyKind::Fifo));
        let line = world.line_of(victim.expect("clean lines"));
        world.remove(&mut policy, line);
    }
}

#[test]
fn rand_chooses_every_line_about_equally_often() {
    const COUNT: u32 = 50;
    let (world, mut policy) = full(PolicyKind::Rand, COUNT);
    let mut chosen = vec![0; COUNT as usize + 1];
    for _ in 0..COUNT * 1000 {
        chosen[world.victim(&mut policy).expect("clean lines").index()] += 1;
    }
    assert!(chosen[..COUNT as usize].iter().all(|count| (850..1150).contains(count)));
}

#[test]
fn memory_per_slot_is_bounded() {
    const SLOTS: u32 = 1 << 20;
    const FIXED: f64 = 4096.0;
    let capacity = u64::from(SLOTS) * 92 / 100;
    for kind in PolicyKind::ALL {
        let bytes_per_slot = match kind {
            PolicyKind::Fifo => 3.4,
            PolicyKind::Rand => 0.0,
            PolicyKind::S3Fifo => 1.2,
            // As much as any may take.
            _ => 8.0,
        };
        let policy = Policy::new(kind, SLOTS, capacity, 1 << 26, 0).unwrap();
        assert_eq!(policy.kind(), kind);
        let bytes = policy.memory_bytes() as f64;
        assert!(bytes <= bytes_per_slot * f64::from(SLOTS) + FIXED, "{kind}: {bytes}");
    }
    let full = Policy::new(PolicyKind::S3Fifo, SLOTS, u64::from(SLOTS), LINE_LIMIT, 0)
        .unwrap()
        .memory_bytes();
    assert!(full as f64 <= 1.2 * f64::from(SLOTS) + FIXED);
}
