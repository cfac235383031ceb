//! The numbers that the parts of a cache hand to each other, each a type of its own.

use std::fmt;

/// The number of a slot: the place of a line on the SSD. Slots are counted through all segments; the place
/// of a slot within its segment is a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot's place in arrays with one element a slot.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
