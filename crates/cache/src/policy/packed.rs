//! Line numbers in as many bits as they need, and a small multiset of them.

use crate::memory::NoMemory;
use crate::numbers::LINE_LIMIT;
use crate::numbers::Line;
use crate::packed_array::{PackedArray, bits_for};

/// An array of line numbers or nothing. Fresh memory holds nothing.
#[derive(Debug)]
pub(super) struct PackedLines(PackedArray);

impl PackedLines {
    /// For lines below `line_count`.
    pub(super) fn new(length: usize, line_count: u64) -> Result<Self, NoMemory> {
        assert!(line_count <= LINE_LIMIT);
        Ok(Self(PackedArray::new(length, bits_for(line_count).max(1))?))
    }

    pub(super) fn bytes_for(length: u64, line_count: u64) -> u64 {
        PackedArray::bytes_for(length, bits_for(line_count).max(1))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Line> {
        self.0.get(index).checked_sub(1).map(Line)
    }

    #[inline]
    pub(super) fn set(&mut self, index: usize, line: Option<Line>) {
        self.0.set(index, line.map_or(0, |line| line.0 + 1));
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

/// Spreads a line number over 64 bits (the finalizer of splitmix64).
#[inline]
pub(super) fn spread(line: Line) -> u64 {
    let z = (line.0 ^ (line.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `0..bound` from 64 spread bits, without a division.
#[inline]
pub(super) fn scale(spread: u64, bound: usize) -> usize {
    ((u128::from(spread) * bound as u128) >> 64) as usize
}

/// A bounded multiset of the lines with stale entries, one element an entry: open addressing, linear
/// probing, backward-shift deletion.
#[derive(Debug)]
pub(super) struct StaleLines {
    table: PackedLines,
    count: usize,
}

impl StaleLines {
    pub(super) fn new(length: usize, line_count: u64) -> Result<Self, NoMemory> {
        Ok(Self { table: PackedLines::new(length, line_count)?, count: 0 })
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Three quarters full: beyond it probes grow long.
    pub(super) fn limit(&self) -> usize {
        self.table.len() / 4 * 3
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.table.heap_bytes()
    }

    fn home(&self, line: Line) -> usize {
        scale(spread(line), self.table.len())
    }

    fn next(&self, index: usize) -> usize {
        if index + 1 == self.table.len() { 0 } else { index + 1 }
    }

    fn find(&self, line: Line) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let mut index = self.home(line);
        while let Some(found) = self.table.get(index) {
            if found == line {
                return Some(index);
            }
            index = self.next(index);
        }
        None
    }

    pub(super) fn contains(&self, line: Line) -> bool {
        self.find(line).is_some()
    }

    /// Adds one stale entry of the line. The caller keeps the count under the limit.
    pub(super) fn add(&mut self, line: Line) {
        assert!(self.count < self.limit());
        let mut index = self.home(line);
        while self.table.get(index).is_some() {
            index = self.next(index);
        }
        self.table.set(index, Some(line));
        self.count += 1;
    }

    /// Takes one stale entry of the line away; false if it has none.
    pub(super) fn take(&mut self, line: Line) -> bool {
        let Some(mut hole) = self.find(line) else { return false };
        let length = self.table.len();
        let distance = |from: usize, to: usize| (to + length - from) % length;
        let mut index = self.next(hole);
        while let Some(other) = self.table.get(index) {
            // An entry may fill the hole if that is not before its home.
            if distance(self.home(other), index) >= distance(hole, index) {
                self.table.set(hole, Some(other));
                hole = index;
            }
            index = self.next(index);
        }
        self.table.set(hole, None);
        self.count -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use voltier_block::Prng;

    #[test]
    fn stale_lines_are_a_multiset() {
        let mut prng = Prng::new(3);
        let mut stale = StaleLines::new(64, LINE_LIMIT).unwrap();
        let mut model = BTreeMap::<Line, u32>::new();
        for _ in 0..20_000 {
            let number =
                if prng.one_in(2) { prng.below(20) } else { LINE_LIMIT - 1 - prng.below(9) };
            let line = Line(number);
            let known = model.entry(line).or_default();
            assert_eq!(stale.contains(line), *known > 0);
            if prng.one_in(2) && stale.len() < stale.limit() {
                stale.add(line);
                *known += 1;
            } else {
                assert_eq!(stale.take(line), *known > 0);
                *known = known.saturating_sub(1);
            }
        }
    }
}
