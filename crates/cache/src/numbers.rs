//! The numbers that the parts of a cache hand to each other, each a type of its own.

use std::fmt;
use std::ops::{Add, Range, Sub};

/// Line numbers are below this: 2^40 - 1, so that a line or "none" takes 40 bits at most.
pub const LINE_LIMIT: u64 = (1 << 40) - 1;

/// The number of a line on the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Line(pub u64);

impl Line {
    /// The lines from this one to `last`, both included.
    #[inline]
    pub fn through(self, last: Line) -> impl Iterator<Item = Line> {
        (self.0..=last.0).map(Line)
    }
}

/// The lines of a range, in order.
pub(crate) fn each_line(lines: Range<Line>) -> impl Iterator<Item = Line> {
    (lines.start.0..lines.end.0).map(Line)
}

impl Add<u64> for Line {
    type Output = Line;

    #[inline]
    fn add(self, lines: u64) -> Line {
        Line(self.0 + lines)
    }
}

/// The distance of two lines, in lines.
impl Sub for Line {
    type Output = u64;

    #[inline]
    fn sub(self, earlier: Line) -> u64 {
        self.0 - earlier.0
    }
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The number of a slot: the place of a line on the SSD. Slots are counted through all segments; within its
/// segment a slot is a `SegmentSlot`.
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

/// The number of a slot within its segment: where the log stands, no place of a line by itself. The end of a
/// segment is such a number too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct SegmentSlot(pub(crate) u32);

impl SegmentSlot {
    /// The slot behind this one in the segment.
    #[inline]
    pub(crate) const fn behind(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The number of a segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct Segment(pub(crate) u32);

impl Segment {
    /// The segment's place in arrays with one element a segment.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The segments of a range, in order.
pub(crate) fn each_segment(segments: Range<Segment>) -> impl Iterator<Item = Segment> {
    (segments.start.0..segments.end.0).map(Segment)
}

impl fmt::Display for Segment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for SegmentSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
