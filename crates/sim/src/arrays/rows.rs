//! The shape of each row while an array moves to wider stripes, computed from the frontier alone, as
//! `docs/adr/0022` says. Rows below `p x d` have the new shape, rows from `p x (d + 1)` on the old one,
//! the rest holds nothing.

use voltier_array::Geometry;

/// The shapes of rows.
pub(crate) struct Rows {
    pub(crate) before: Geometry,
    pub(crate) after: Geometry,
    /// Sections that were moved; none when all have the shape `after`.
    pub(crate) frontier: Option<u64>,
    /// Whether nobody can say what the rows of the next section are.
    pub(crate) is_next_open: bool,
}

impl Rows {
    /// The shape of a row, and the first sector of the volume that it has; none if it holds nothing.
    pub(crate) fn shape_of(&self, row: u64) -> Option<(&Geometry, u64)> {
        let in_shape = |shape: &'_ Geometry| row * shape.stripe_sectors();
        let Some(frontier) = self.frontier else {
            return Some((&self.after, in_shape(&self.after)));
        };
        let (rows, data) = (self.before.stripe_count(), self.before.data_chunks() as u64);
        let is_open = |from: u64, count: u64| self.is_next_open && row < (from + 1) * count;
        if row < (frontier * data).min((rows * data).div_ceil(data + 1)) {
            Some((&self.after, in_shape(&self.after)))
        } else if row < (frontier * (data + 1)).min(rows) || is_open(frontier, data + 1) {
            None
        } else {
            Some((&self.before, in_shape(&self.before)))
        }
    }
}
