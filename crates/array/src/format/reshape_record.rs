//! The frontier of a capacity expansion, as superblocks hold it.

use crate::geometry::numbers::Section;
use crate::geometry::shapes::Shapes;

/// Where a move is, as all members say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshapeRecord {
    /// The first section that has the old shape.
    pub frontier: Section,
    /// Of the chunks of the next section so many sectors have it too: above zero after a crash alone.
    pub moved_sectors: u64,
    /// So many sectors behind those are kept on all members for the case of a crash; none if 0.
    pub backed_up_sectors: u64,
    /// Every transaction of the journal below this is in place, and may be for a shape that is gone.
    pub redo_from: u64,
}

impl ReshapeRecord {
    /// Whether a section has neither the one shape nor the other.
    pub(crate) const fn is_between(&self) -> bool {
        self.moved_sectors > 0 || self.backed_up_sectors > 0
    }

    /// Whether an array that comes to have these shapes can be there.
    pub(crate) fn is_possible(&self, shapes: &Shapes) -> bool {
        let chunk_sectors = shapes.before.chunk_sectors();
        let Some(sectors) = self.moved_sectors.checked_add(self.backed_up_sectors) else {
            return false;
        };
        let is_in_chunk = self.moved_sectors < chunk_sectors && sectors <= chunk_sectors;
        let are_blocks = (self.moved_sectors | self.backed_up_sectors).is_multiple_of(8);
        // Only the first ones are moved over themselves.
        let is_over_itself = self.frontier < shapes.end().min(Section(shapes.section_rows()));
        self.frontier <= shapes.end()
            && is_in_chunk
            && are_blocks
            && (is_over_itself || !self.is_between())
            && shapes.has_room()
    }
}
