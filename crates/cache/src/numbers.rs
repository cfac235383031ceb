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

/// The slots of a range, in order.
pub(crate) fn each_slot(slots: Range<Slot>) -> impl Iterator<Item = Slot> {
    (slots.start.0..slots.end.0).map(Slot)
}

impl Add<u32> for Slot {
    type Output = Slot;

    #[inline]
    fn add(self, slots: u32) -> Slot {
        Slot(self.0 + slots)
    }
}

/// The distance of two slots, in slots.
impl Sub for Slot {
    type Output = u32;

    #[inline]
    fn sub(self, earlier: Slot) -> u32 {
        self.0 - earlier.0
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

/// The number of a chunk of a checkpoint's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct MapChunk(pub(crate) u32);

impl MapChunk {
    /// Where the chunk is in a checkpoint area: the map comes first.
    pub(crate) const fn in_area(self) -> AreaChunk {
        AreaChunk(self.0)
    }
}

/// The chunks of a range, in order.
pub(crate) fn each_map_chunk(chunks: Range<MapChunk>) -> impl Iterator<Item = MapChunk> + Clone {
    (chunks.start.0..chunks.end.0).map(MapChunk)
}

impl Add<u32> for MapChunk {
    type Output = MapChunk;

    fn add(self, chunks: u32) -> MapChunk {
        MapChunk(self.0 + chunks)
    }
}

/// The place of a chunk in a checkpoint area, which holds the map, and behind it the list of dirty lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct AreaChunk(pub(crate) u32);

/// The number of an intent region: a run of lines of the origin that have one intent bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct IntentRegion(pub(crate) usize);

impl IntentRegion {
    /// The region that has this sector of the origin.
    #[inline]
    pub(crate) const fn of_sector(sector: u64, sectors_per_region: u64) -> Self {
        Self((sector / sectors_per_region) as usize)
    }

    /// The regions from this one to `last`, both included.
    #[inline]
    pub(crate) fn through(self, last: Self) -> impl Iterator<Item = Self> {
        (self.0..=last.0).map(Self)
    }

    /// The byte that holds the region's bit, and the bit in this byte.
    #[inline]
    pub(crate) const fn bit(self) -> (usize, u8) {
        (self.0 / 8, 1 << (self.0 % 8))
    }
}

impl fmt::Display for MapChunk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
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
