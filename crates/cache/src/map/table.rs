//! The hash table from line to slot: 64-byte buckets, one cache miss a look.
//!
//! A bucket holds twelve to sixteen slots, as many as their width allows, and an eight-bit tag for each.
//! The table does not store the line itself: the caller compares the line through the slot. A slot that
//! does not fit goes to the next bucket. Every bucket passed over counts the slot, so that a look knows
//! when to stop. At 92 % full a line costs 4.4 bytes with 2^23 slots, 5.8 with 2^32.

use zerocopy::FromZeros;

use crate::memory::{self, NoMemory, bytes_of};
use crate::numbers::{Line, Slot};
use crate::packed_array::bits_for;

const BUCKET_BYTES: usize = 64;
/// The tags come first, so that one load has them all.
const TAGS_MAX: usize = 16;
/// The byte that counts entries that belong at or before this bucket and stand behind it.
const DISPLACED: usize = BUCKET_BYTES - 1;
/// Load at which the table is sized, in percent. Above this load, looks pass over many full buckets.
const LOAD_PERCENT: u64 = 92;
/// A counter that reached this is not trusted to go down again: looks go on past such a bucket.
const DISPLACED_MAX: u8 = u8::MAX;
/// The tag of a free entry.
const FREE: u8 = 0;

/// Tags, then slots without gaps between them, then the counter.
#[derive(FromZeros)]
#[repr(C, align(64))]
struct Bucket([u8; BUCKET_BYTES]);

impl Bucket {
    fn displaced(&self) -> u8 {
        self.0[DISPLACED]
    }

    fn displaced_mut(&mut self) -> &mut u8 {
        &mut self.0[DISPLACED]
    }
}

/// How many slots a bucket holds, and where they are in it.
#[derive(Clone, Copy)]
struct Layout {
    slots: usize,
    slot_bits: usize,
}

impl Layout {
    fn new(slot_count: u64) -> Self {
        let slot_bits = bits_for(slot_count.saturating_sub(1)) as usize;
        let slots = (DISPLACED * 8 / (8 + slot_bits)).min(TAGS_MAX);
        Self { slots, slot_bits }
    }

    /// Buckets of a table for `lines` lines in `slots` slots.
    fn bucket_count(self, lines: u64, slots: u64) -> u64 {
        let in_bucket = self.slots as u64;
        ((lines * 100 / LOAD_PERCENT).max(slots) + 2 * in_bucket).div_ceil(in_bucket)
    }

    /// The eight bytes in which the slot of an entry lies, and the bit of them where it begins.
    #[inline]
    fn window(self, entry: usize) -> (usize, usize) {
        let bit = self.slots * 8 + entry * self.slot_bits;
        let at = (bit / 8).min(BUCKET_BYTES - 8);
        (at, bit - at * 8)
    }

    fn slot_mask(self) -> u64 {
        (1 << self.slot_bits) - 1
    }

    #[inline]
    fn slot(self, bucket: &Bucket, entry: usize) -> Slot {
        let (at, shift) = self.window(entry);
        Slot((window(bucket, at) >> shift & self.slot_mask()) as u32)
    }

    #[inline]
    fn set_slot(self, bucket: &mut Bucket, entry: usize, slot: Slot) {
        debug_assert!(u64::from(slot.0) <= self.slot_mask());
        let (at, shift) = self.window(entry);
        let word = window(bucket, at) & !(self.slot_mask() << shift) | u64::from(slot.0) << shift;
        bucket.0[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// The entries of a bucket whose tag is `tag`, in ascending order.
    #[inline]
    fn entries_of(self, bucket: &Bucket, tag: u8) -> Entries {
        const ONES: u128 = u128::MAX / 0xff;
        const LOW: u128 = ONES * 0x7f;
        let tags = bucket.0[..TAGS_MAX].try_into().expect("sixteen bytes");
        let differing = u128::from_le_bytes(tags) ^ (ONES * u128::from(tag));
        // The upper bit of each byte in which no bit differs.
        let same = !(((differing & LOW) + LOW) | differing | LOW);
        Entries(same & u128::MAX >> (8 * (TAGS_MAX - self.slots)))
    }
}

#[inline]
fn window(bucket: &Bucket, at: usize) -> u64 {
    u64::from_le_bytes(bucket.0[at..at + 8].try_into().expect("eight bytes"))
}

/// One bit for each entry, in a byte of its own.
struct Entries(u128);

impl Iterator for Entries {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let entry = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(entry)
    }
}

pub(crate) struct Table {
    layout: Layout,
    buckets: Vec<Bucket>,
}

fn mix(line: Line) -> u64 {
    let mut z = line.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}

impl Table {
    /// A table for `lines` lines in `slots` slots, which still takes as many lines as slots (slowly). A
    /// replay over a fuzzy checkpoint passes through states with more lines than the cache ever held.
    pub(crate) fn new(lines: u64, slots: u64) -> Result<Self, NoMemory> {
        let layout = Layout::new(slots);
        Ok(Self { layout, buckets: memory::zeroes(layout.bucket_count(lines, slots))? })
    }

    /// The memory of a table for `lines` lines in `slots` slots.
    pub(crate) fn bytes_for(lines: u64, slots: u64) -> u64 {
        bytes_of::<Bucket>(Layout::new(slots).bucket_count(lines, slots))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    fn home(&self, line: Line) -> (usize, u8) {
        let hash = mix(line);
        let bucket = ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize;
        (bucket, (hash as u8).max(FREE + 1))
    }

    /// Brings the home of a line into the processor's caches.
    pub(crate) fn look(&self, line: Line) -> u8 {
        self.buckets[self.home(line).0].displaced()
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    #[inline]
    fn find(&self, line: Line, is_line: impl Fn(Slot) -> bool) -> Option<(usize, usize, Slot)> {
        let (mut at, tag) = self.home(line);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for entry in self.layout.entries_of(bucket, tag) {
                let slot = self.layout.slot(bucket, entry);
                if is_line(slot) {
                    return Some((at, entry, slot));
                }
            }
            if bucket.displaced() == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// The slot of `line`; `is_line` tells whether a slot holds it.
    #[inline]
    pub(crate) fn get(&self, line: Line, is_line: impl Fn(Slot) -> bool) -> Option<Slot> {
        self.find(line, is_line).map(|(_, _, slot)| slot)
    }

    /// Adds a line that is not in the table.
    pub(crate) fn insert(&mut self, line: Line, slot: Slot) {
        let (mut at, tag) = self.home(line);
        for _ in 0..self.buckets.len() {
            let bucket = &mut self.buckets[at];
            if let Some(entry) = self.layout.entries_of(bucket, FREE).next() {
                bucket.0[entry] = tag;
                self.layout.set_slot(bucket, entry, slot);
                return;
            }
            let displaced = bucket.displaced_mut();
            *displaced = displaced.saturating_add(1);
            at = self.next(at);
        }
        panic!("the line table is sized for the capacity of the cache");
    }

    /// Points a line that is in the table to another slot.
    pub(crate) fn replace(&mut self, line: Line, old: Slot, new: Slot) {
        let (bucket, entry, _) =
            self.find(line, |slot| slot == old).expect("the line is in the table");
        self.layout.set_slot(&mut self.buckets[bucket], entry, new);
    }

    /// Takes a line out that is in the table at `slot`.
    pub(crate) fn remove(&mut self, line: Line, slot: Slot) {
        let (bucket, entry, _) =
            self.find(line, |held| held == slot).expect("the line is in the table");
        self.buckets[bucket].0[entry] = FREE;
        let mut at = self.home(line).0;
        while at != bucket {
            let passed = self.buckets[at].displaced_mut();
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
        let mut table = Table::new(1000, 1080).unwrap();
        let none = Line(u64::MAX);
        let mut lines = vec![none; 1080];
        let mut model = BTreeMap::new();
        for round in 0..200_000u32 {
            let line = Line(prng.below(1500));
            let slot = Slot(round % 1080);
            let held = table.get(line, |slot| lines[slot.index()] == line);
            assert_eq!(held, model.get(&line).copied());
            match held {
                Some(old) if prng.one_in(2) => {
                    table.remove(line, old);
                    lines[old.index()] = none;
                    model.remove(&line);
                }
                Some(old) if lines[slot.index()] == none => {
                    lines[slot.index()] = line;
                    table.replace(line, old, slot);
                    lines[old.index()] = none;
                    model.insert(line, slot);
                }
                None if model.len() < 1000 && lines[slot.index()] == none => {
                    lines[slot.index()] = line;
                    table.insert(line, slot);
                    model.insert(line, slot);
                }
                _ => {}
            }
        }
        assert!(model.len() > 400);
    }

    #[test]
    fn slots_of_every_width_lie_apart_from_tags_and_counter() {
        for bits in 1..=32 {
            let layout = Layout::new(1 << bits);
            let mut bucket = Bucket([0; BUCKET_BYTES]);
            let slot = |entry: usize| Slot((entry as u32).wrapping_mul(0x9e37_79b9) >> (32 - bits));
            for entry in (0..layout.slots).rev() {
                bucket.0[entry] = entry as u8 % 3 + 1;
                layout.set_slot(&mut bucket, entry, slot(entry));
            }
            *bucket.displaced_mut() = 0xaa;
            assert!((0..layout.slots).all(|entry| layout.slot(&bucket, entry) == slot(entry)));
            let second: Vec<usize> = layout.entries_of(&bucket, 2).collect();
            assert!(second.iter().copied().eq((1..layout.slots).step_by(3)), "{bits}: {second:?}");
            assert_eq!(layout.entries_of(&bucket, FREE).count(), 0);
        }
    }

    #[test]
    fn a_line_costs_less_than_six_bytes() {
        for (slots, bytes) in [(1 << 23, 4.4), (244 << 20, 5.0), ((1 << 32) - 1, 5.9)] {
            let layout = Layout::new(slots);
            let lines = slots * 13 / 14;
            let per_line = 64.0 * 100.0 / 92.0 / layout.slots as f64;
            assert!(per_line < bytes, "{lines} lines: {per_line}");
        }
    }
}
