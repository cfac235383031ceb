//! The numbers that the parts of an array hand to each other, each a type of its own.

use std::fmt;
use std::ops::{Add, Range, Sub};

/// A number that counts from 0.
pub(crate) trait Number: Copy {
    fn of(number: u64) -> Self;

    fn number(self) -> u64;
}

/// The numbers of a range, in order.
#[inline]
pub(crate) fn each<N: Number>(range: Range<N>) -> impl DoubleEndedIterator<Item = N> + Clone {
    (range.start.number()..range.end.number()).map(N::of)
}

/// How many numbers are in a range.
#[inline]
pub(crate) fn count<N: Number>(range: &Range<N>) -> u64 {
    range.end.number() - range.start.number()
}

/// Implements [`Number`] for structs of one `u64`.
macro_rules! numbers {
    ($($name:ident)*) => { $(
        impl $crate::geometry::numbers::Number for $name {
            #[inline]
            fn of(number: u64) -> Self {
                Self(number)
            }

            #[inline]
            fn number(self) -> u64 {
                self.0
            }
        }
    )* };
}

pub(crate) use numbers;

/// Numbers that are added to, subtracted and shown as well.
macro_rules! counted {
    ($($name:ident)*) => { $(
        numbers! { $name }

        impl Add<u64> for $name {
            type Output = Self;

            #[inline]
            fn add(self, count: u64) -> Self {
                Self(self.0 + count)
            }
        }

        /// The distance of two of them.
        impl Sub for $name {
            type Output = u64;

            #[inline]
            fn sub(self, earlier: Self) -> u64 {
                self.0 - earlier.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }
    )* };
}

counted! { StripeNumber Row Region Section }

/// The number of a stripe, in the order of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StripeNumber(pub u64);

/// The number of a stripe row: the chunks of all members at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Row(pub u64);

/// The number of a region: a run of stripe rows of all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct Region(pub(crate) u64);

/// The number of a section: the stripe rows that hold what one row more of an older shape did. Where the
/// shape changes, between two sections, is the frontier of a capacity expansion: the first section of the
/// older shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Section(pub u64);

/// The index of a member in its array; errors, news and reports have it as a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct MemberIndex(pub usize);

/// The slot of a chunk in its stripe: the chunk's place in the parity code, data first, then parities. Every
/// stripe may have another member in a slot. The parity code itself counts in plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StripeSlot(pub usize);

/// The index of a group of members that protect each other; errors and reports have it as a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct GroupIndex(pub usize);

impl GroupIndex {
    /// The first group: the only one of most levels.
    pub(crate) const FIRST: Self = Self(0);
}

impl StripeSlot {
    /// The slots of a stripe of so many chunks, in order.
    #[inline]
    pub(crate) fn all(
        count: usize,
    ) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..count).map(Self)
    }
}

impl MemberIndex {
    /// The members of an array of so many, in order.
    #[inline]
    pub(crate) fn all(
        count: usize,
    ) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..count).map(Self)
    }
}
