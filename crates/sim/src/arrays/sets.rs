//! Sets of drives and of members: two kinds of numbers that must not be taken for each other.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{BitAnd, BitOr, Sub};

/// The kind of a number: of a drive of a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfDrive {}

/// The kind of a number: of a member of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfMember {}

/// Some drives of a fixture.
pub(crate) type DriveSet = NumberSet<OfDrive>;
/// Some members of an array.
pub(crate) type MemberSet = NumberSet<OfMember>;

/// A set of numbers below 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberSet<K> {
    bits: u64,
    kind: PhantomData<K>,
}

impl<K> NumberSet<K> {
    /// No number.
    pub(crate) const EMPTY: Self = Self::of_bits(0);
    /// Every number.
    pub(crate) const ALL: Self = Self::of_bits(u64::MAX);

    pub(crate) const fn of_bits(bits: u64) -> Self {
        Self { bits, kind: PhantomData }
    }

    pub(crate) const fn one(number: usize) -> Self {
        Self::of_bits(1 << number)
    }

    pub(crate) const fn bits(&self) -> u64 {
        self.bits
    }

    pub(crate) const fn has(&self, number: usize) -> bool {
        self.bits >> number & 1 == 1
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.bits == 0
    }

    pub(crate) const fn count(&self) -> u32 {
        self.bits.count_ones()
    }

    /// The numbers, the lowest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + use<K> {
        let bits = self.bits;
        (0..64).filter(move |number| bits >> number & 1 == 1)
    }
}

impl<K> FromIterator<usize> for NumberSet<K> {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        Self::of_bits(numbers.into_iter().fold(0, |bits, number| bits | 1 << number))
    }
}

impl<K> BitOr for NumberSet<K> {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self::of_bits(self.bits | other.bits)
    }
}

impl<K> BitAnd for NumberSet<K> {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self::of_bits(self.bits & other.bits)
    }
}

impl<K> Sub for NumberSet<K> {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self::of_bits(self.bits & !other.bits)
    }
}

impl<K> fmt::Binary for NumberSet<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Binary::fmt(&self.bits, out)
    }
}
