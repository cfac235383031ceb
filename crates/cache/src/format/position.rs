//! A position in the log: where a record's head stands, and where the log goes on.

use crate::format::geometry::Geometry;
use crate::format::record::NO_UNIT;
use crate::numbers::{Segment, SegmentSlot};

/// Where the next record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) segment: Segment,
    /// Unit of its head, or `NO_UNIT` when the segment has no room.
    pub(crate) unit: u32,
    /// First slot of the segment that no record has taken: lines and further heads stand behind it.
    pub(crate) slot: SegmentSlot,
    /// Already taken, so that every head can name it, and the unit of its first head.
    pub(crate) next_segment: Segment,
    pub(crate) next_segment_unit: u32,
}

impl Position {
    /// The position itself, if it lies on the device, its head in a slot that is taken, and goes on in
    /// another segment.
    pub(crate) fn on(self, geometry: &Geometry) -> Option<Position> {
        let units = geometry.units_per_segment();
        let fits = geometry.has_segment(self.segment)
            && geometry.has_segment(self.next_segment)
            && self.next_segment != self.segment
            && (self.unit == NO_UNIT
                || self.unit < units && geometry.slot_behind(self.unit) <= self.slot)
            && self.slot.0 <= geometry.slots_per_segment
            && self.next_segment_unit < units;
        fits.then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FormatOptions, LineSize};
    use crate::policy::PolicyKind;

    #[test]
    fn a_log_does_not_go_on_in_its_own_segment_or_before_its_head() {
        let line_size = LineSize::new(16384).unwrap();
        let options = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [1; 16] };
        let geometry = Geometry::plan(&options, 64 << 20, 1 << 21).unwrap();
        let (segment, next_segment, slot) = (Segment(3), Segment(4), SegmentSlot(3));
        let good = Position { segment, unit: 11, slot, next_segment, next_segment_unit: 3 };
        let (far, end) = (geometry.units_per_segment(), SegmentSlot(geometry.slots_per_segment));
        for (position, is_on) in [
            (good, true),
            (Position { unit: NO_UNIT, slot: SegmentSlot(0), ..good }, true),
            (Position { slot: SegmentSlot(2), ..good }, false),
            (Position { next_segment: segment, ..good }, false),
            (Position { unit: far, slot: end, ..good }, false),
            (Position { next_segment_unit: far, ..good }, false),
        ] {
            assert_eq!(position.on(&geometry).is_some(), is_on, "{position:?}");
        }
    }
}
