//! Sets of small numbers.

use std::marker::PhantomData;

use crate::geometry::numbers::Number;

/// A set of numbers below a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits<N> {
    words: Vec<u64>,
    count: u64,
    of: PhantomData<N>,
}

impl<N: Number> Bits<N> {
    /// An empty set of numbers below `limit`.
    pub(crate) fn new(limit: u64) -> Self {
        Self { words: vec![0; limit.div_ceil(64) as usize], count: 0, of: PhantomData }
    }

    /// The memory of a set of numbers below `limit`.
    pub(crate) fn bytes_for(limit: u64) -> u64 {
        limit.div_ceil(64) * size_of::<u64>() as u64
    }

    /// All numbers below `limit`.
    pub(crate) fn all(limit: u64) -> Self {
        let mut bits = Self::new(limit);
        (0..limit).for_each(|number| bits.put(N::of(number), true));
        bits
    }

    /// How many are in it.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn has(&self, number: N) -> bool {
        let number = number.number();
        self.words[(number / 64) as usize] & (1 << (number % 64)) != 0
    }

    /// Puts a number in or takes it out.
    #[inline]
    pub(crate) fn put(&mut self, number: N, is_in: bool) {
        let number = number.number();
        let word = &mut self.words[(number / 64) as usize];
        let bit = 1 << (number % 64);
        if (*word & bit != 0) == is_in {
            return;
        }
        *word ^= bit;
        if is_in {
            self.count += 1;
        } else {
            self.count -= 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.count > 0 {
            self.words.fill(0);
            self.count = 0;
        }
    }

    /// The first in it that is not below `from`.
    pub(crate) fn next(&self, from: N) -> Option<N> {
        let from = from.number();
        let first = (from / 64) as usize;
        let below = (1 << (from % 64)) - 1;
        self.words.iter().enumerate().skip(first).find_map(|(index, word)| {
            let word = if index == first { word & !below } else { *word };
            (word != 0).then(|| N::of(index as u64 * 64 + u64::from(word.trailing_zeros())))
        })
    }

    /// All in it, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = N> + '_ {
        self.words.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(|(index, word)| {
            let first = index as u64 * 64;
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| N::of(first + bit))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::numbers::Region;

    #[test]
    fn a_set_has_what_was_put_in_and_counts_it_once() {
        let mut bits = Bits::new(200);
        for number in [0, 63, 64, 199, 64] {
            bits.put(Region(number), true);
        }
        assert_eq!(
            (bits.count(), bits.iter().collect::<Vec<_>>()),
            (4, [0, 63, 64, 199].map(Region).to_vec())
        );
        let next = [0, 1, 64, 65, 200].map(|from| bits.next(Region(from)).map(|it| it.0));
        assert_eq!(next, [Some(0), Some(63), Some(64), Some(199), None]);
        assert_eq!(Bits::<Region>::all(70).iter().count(), 70);
        bits.put(Region(63), false);
        bits.put(Region(63), false);
        assert!(!bits.has(Region(63)) && bits.has(Region(64)) && bits.count() == 3);
        bits.clear();
        assert!(bits.is_empty() && bits.iter().next().is_none());
    }
}
