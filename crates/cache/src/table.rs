//! The hash table from line to slot: 64-byte buckets, one cache miss a look.
//!
//! A bucket holds twelve slots and an eight-bit tag for each; the line itself is not stored, the
//! caller compares it through the slot. What does not fit goes to the next bucket, and every bucket
//! passed over counts it, so that a look knows when to stop. At 92 % full a line costs 5.8 bytes.

const SLOTS_PER_BUCKET: usize = 12;
/// Load at which the table is sized, in percent. Above it, looks pass over many full buckets.
const LOAD_PERCENT: u64 = 92;
/// A counter that reached this is not trusted to go down again: looks go on past such a bucket.
const DISPLACED_MAX: u8 = u8::MAX;

#[derive(Clone)]
#[repr(C, align(64))]
struct Bucket {
    slots: [u32; SLOTS_PER_BUCKET],
    /// Zero marks a free place.
    tags: [u8; SLOTS_PER_BUCKET],
    /// Entries that belong at or before this bucket and stand behind it.
    displaced: u8,
    padding: [u8; 3],
}

const _: () = assert!(size_of::<Bucket>() == 64);

pub(crate) struct Table {
    buckets: Vec<Bucket>,
}

fn mix(line: u64) -> u64 {
    let mut z = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}

impl Table {
    /// A table for `lines` lines, which still takes `lines_max` (slowly): a replay over a fuzzy
    /// checkpoint passes through states with more lines than the cache ever held.
    pub(crate) fn new(lines: u64, lines_max: u64) -> Self {
        let places = (lines * 100 / LOAD_PERCENT).max(lines_max) + 2 * SLOTS_PER_BUCKET as u64;
        let count = places.div_ceil(SLOTS_PER_BUCKET as u64) as usize;
        let empty = Bucket {
            slots: [0; SLOTS_PER_BUCKET],
            tags: [0; SLOTS_PER_BUCKET],
            displaced: 0,
            padding: [0; 3],
        };
        Self { buckets: vec![empty; count] }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    fn home(&self, line: u64) -> (usize, u8) {
        let hash = mix(line);
        let bucket = ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize;
        (bucket, (hash as u8).max(1))
    }

    /// Brings the home of a line into the processor's caches.
    pub(crate) fn look(&self, line: u64) -> u8 {
        self.buckets[self.home(line).0].displaced
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    fn find(&self, line: u64, is_line: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let (mut at, tag) = self.home(line);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for place in 0..SLOTS_PER_BUCKET {
                if bucket.tags[place] == tag && is_line(bucket.slots[place]) {
                    return Some((at, place));
                }
            }
            if bucket.displaced == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// The slot of `line`; `is_line` tells whether a slot holds it.
    pub(crate) fn get(&self, line: u64, is_line: impl Fn(u32) -> bool) -> Option<u32> {
        self.find(line, is_line).map(|(bucket, place)| self.buckets[bucket].slots[place])
    }

    /// Adds a line that is not in the table.
    pub(crate) fn insert(&mut self, line: u64, slot: u32) {
        let (mut at, tag) = self.home(line);
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[at];
            if let Some(place) = bucket.tags.iter().position(|tag| *tag == 0) {
                bucket.tags[place] = tag;
                bucket.slots[place] = slot;
                return;
            }
            bucket.displaced = bucket.displaced.saturating_add(1);
            at = self.next(at);
        }
        panic!("the line table is sized for the capacity of the cache");
    }

    /// Points a line that is in the table to another slot.
    pub(crate) fn replace(&mut self, line: u64, old: u32, new: u32) {
        let (bucket, place) =
            self.find(line, |slot| slot == old).expect("the line is in the table");
        self.buckets[bucket].slots[place] = new;
    }

    /// Takes a line out that is in the table at `slot`.
    pub(crate) fn remove(&mut self, line: u64, slot: u32) {
        let (bucket, place) =
            self.find(line, |held| held == slot).expect("the line is in the table");
        self.buckets[bucket].tags[place] = 0;
        let mut at = self.home(line).0;
        while at != bucket {
            let passed = &mut self.buckets[at].displaced;
            if *passed != DISPLACED_MAX {
                *passed -= 1;
            }
            at = self.next(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use voltier_block::Prng;

    #[test]
    fn it_agrees_with_a_map_at_full_load() {
        let mut prng = Prng::new(7);
        let mut table = Table::new(1000, 1000);
        let mut lines = vec![u64::MAX; 5000];
        let mut model = BTreeMap::new();
        for round in 0..200_000u32 {
            let line = prng.below(1500);
            let slot = round % 5000;
            let held = table.get(line, |slot| lines[slot as usize] == line);
            assert_eq!(held, model.get(&line).copied());
            match held {
                Some(old) if prng.one_in(2) => {
                    table.remove(line, old);
                    lines[old as usize] = u64::MAX;
                    model.remove(&line);
                }
                Some(old) if lines[slot as usize] == u64::MAX => {
                    lines[slot as usize] = line;
                    table.replace(line, old, slot);
                    lines[old as usize] = u64::MAX;
                    model.insert(line, slot);
                }
                None if model.len() < 1000 && lines[slot as usize] == u64::MAX => {
                    lines[slot as usize] = line;
                    table.insert(line, slot);
                    model.insert(line, slot);
                }
                _ => {}
            }
        }
        assert!(model.len() > 400);
    }

    #[test]
    fn a_line_costs_less_than_six_bytes() {
        let lines = 1 << 20;
        let per_line = Table::new(lines, lines * 10 / 9).memory_bytes() as f64 / lines as f64;
        assert!(per_line < 6.0, "{per_line}");
    }
}
