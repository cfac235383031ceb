//! The policies of the cache, replayed without a drive. The code that chooses victims is the product's
//! own ([`voltier_cache::policy`]); slots are filled as its log fills them.

use voltier_cache::policy::{LINE_LIMIT, Lines, Policy, PolicyKind};
use voltier_cache::{Line, Mode, Slot};

use crate::Op;

/// Marks a slot without a line.
const NONE: u32 = u32::MAX;
/// Marks a line that is not cached.
const NO_SLOT: Slot = Slot(NONE);

/// A policy looks at a bounded number of lines a call; here all may leave, so a few calls do.
const CALLS_MAX: u32 = 64;

/// The slots of lines, and the lines in slots. Lines are numbers from 0.
#[derive(Debug)]
struct Slots {
    slot_of: Vec<Slot>,
    line_at: Vec<u32>,
}

impl Lines for Slots {
    fn slot_of(&self, line: Line) -> Option<Slot> {
        Some(self.slot_of[line.0 as usize]).filter(|slot| *slot != NO_SLOT)
    }

    fn line_of(&self, slot: Slot) -> Line {
        number(self.line_at[slot.index()])
    }

    fn evictable(&self, slot: Slot) -> bool {
        self.occupied(slot)
    }

    fn slots(&self) -> u32 {
        self.line_at.len() as u32
    }

    fn occupied(&self, slot: Slot) -> bool {
        self.line_at[slot.index()] != NONE
    }
}

/// The line of a 32-bit number.
fn number(line: u32) -> Line {
    Line(line.into())
}

/// Line references of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub references: u64,
    pub hits: u64,
}

impl Count {
    /// Share of misses; `None` where nothing was referenced.
    pub(super) fn miss_ratio(self) -> Option<f64> {
        let misses = (self.references - self.hits) as f64;
        (self.references > 0).then(|| misses / self.references as f64)
    }
}

/// A cache of clean lines without data.
#[derive(Debug)]
pub(super) struct Replayed {
    policy: Policy,
    mode: Mode,
    slots: Slots,
    used: u64,
    capacity: u64,
    append_at: Slot,
    pub reads: Count,
    pub writes: Count,
}

impl Replayed {
    /// An empty cache of `capacity` lines for a trace of `lines` lines.
    pub(super) fn new(
        kind: PolicyKind,
        mode: Mode,
        capacity: u64,
        lines: usize,
        seed: u64,
    ) -> Self {
        // A fourteenth of the slots of the real log is free.
        let slots = (capacity + capacity / 13 + 1) as u32;
        let line_count = (lines as u64).clamp(1, LINE_LIMIT);
        Self {
            policy: Policy::new(kind, slots, capacity, line_count, seed)
                .expect("there is memory for a simulated cache"),
            mode,
            slots: Slots { slot_of: vec![NO_SLOT; lines], line_at: vec![NONE; slots as usize] },
            used: 0,
            capacity,
            append_at: Slot(0),
            reads: Count::default(),
            writes: Count::default(),
        }
    }

    /// Memory that one such cache takes.
    pub(super) fn memory_bytes(&self) -> usize {
        (self.slots.slot_of.len() + self.slots.line_at.len()) * 4 + self.policy.memory_bytes()
    }

    /// One reference to a line.
    pub(super) fn touch(&mut self, line: u32, op: Op, is_whole: bool) {
        let slot = self.slots.slot_of[line as usize];
        let is_hit = slot != NO_SLOT;
        let count = if op == Op::Write { &mut self.writes } else { &mut self.reads };
        count.references += 1;
        count.hits += u64::from(is_hit);
        match (op, self.mode) {
            (Op::Discard, _) | (_, Mode::PassThrough) => {}
            (Op::Read, _) if is_hit => self.policy.touch(slot, number(line)),
            (Op::Read, mode) if mode.keeps_reads() => self.insert(line),
            (Op::Read, _) => {}
            (Op::Write, Mode::ReadOnly) if is_hit => self.remove(slot, line),
            (Op::Write, Mode::ReadOnly) => {}
            (Op::Write, _) if is_hit => self.overwrite(slot, line),
            // Through to the origin, a part of a line that is not cached leaves nothing behind.
            (Op::Write, Mode::WriteThrough) if !is_whole => {}
            (Op::Write, _) => self.insert(line),
        }
    }

    fn insert(&mut self, line: u32) {
        for _ in 0..CALLS_MAX {
            if self.used < self.capacity {
                break;
            }
            if let Some(slot) = self.policy.victim(&self.slots) {
                self.remove(slot, self.slots.line_at[slot.index()]);
            }
        }
        if self.used < self.capacity {
            let slot = self.next_free();
            self.put(slot, line);
            self.used += 1;
            self.policy.insert(slot, number(line));
        }
    }

    /// A log writes a new copy, and the old place is free.
    fn overwrite(&mut self, from: Slot, line: u32) {
        let to = self.next_free();
        self.slots.line_at[from.index()] = NONE;
        self.put(to, line);
        self.policy.relocate(from, to, number(line));
        self.policy.touch(to, number(line));
    }

    fn remove(&mut self, slot: Slot, line: u32) {
        self.slots.line_at[slot.index()] = NONE;
        self.slots.slot_of[line as usize] = NO_SLOT;
        self.used -= 1;
        self.policy.remove(slot, number(line));
    }

    fn put(&mut self, slot: Slot, line: u32) {
        self.slots.line_at[slot.index()] = line;
        self.slots.slot_of[line as usize] = slot;
    }

    /// The next free slot round the log: there is always one more than lines.
    fn next_free(&mut self) -> Slot {
        while self.slots.occupied(self.append_at) {
            self.append_at = Slot((self.append_at.0 + 1) % self.slots.slots());
        }
        self.append_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(mode: Mode, history: &[(Op, u32, bool)]) -> [u64; 2] {
        let mut cache = Replayed::new(PolicyKind::Lru, mode, 4, 10, 1);
        for (op, line, is_whole) in history {
            cache.touch(*line, *op, *is_whole);
        }
        [cache.reads.hits, cache.writes.hits]
    }

    #[test]
    fn what_is_kept_is_what_the_mode_keeps() {
        let read = (Op::Read, 1, true);
        let (write, part) = ((Op::Write, 1, true), (Op::Write, 1, false));
        for (mode, history, expected) in [
            (Mode::WriteBack, [read, read, part, read], [2, 1]),
            (Mode::WriteBack, [part, read, read, read], [3, 0]),
            (Mode::WriteThrough, [part, read, write, part], [0, 2]),
            (Mode::WriteThrough, [write, read, read, part], [2, 1]),
            (Mode::ReadOnly, [read, write, read, read], [1, 1]),
            (Mode::ReadOnly, [write, write, write, read], [0, 0]),
            (Mode::WriteOnly, [read, read, part, read], [1, 0]),
            (Mode::PassThrough, [read, write, read, write], [0, 0]),
        ] {
            assert_eq!(hits(mode, &history), expected, "{mode} {history:?}");
        }
    }

    #[test]
    fn every_policy_holds_its_capacity_and_no_more() {
        for kind in PolicyKind::ALL {
            for capacity in [1, 2, 7, 300] {
                let mut cache = Replayed::new(kind, Mode::WriteBack, capacity, 1000, 5);
                let mut prng = voltier_block::Prng::new(capacity);
                for _ in 0..20_000 {
                    let op = if prng.one_in(3) { Op::Write } else { Op::Read };
                    cache.touch(prng.below(1000) as u32, op, true);
                }
                let slots = (0..cache.slots.slots()).map(Slot);
                let occupied = slots.filter(|slot| cache.slots.occupied(*slot));
                assert_eq!((occupied.count() as u64, cache.used), (capacity, capacity), "{kind}");
            }
        }
    }
}
