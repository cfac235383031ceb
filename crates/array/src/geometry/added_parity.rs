//! The shape of an array with one more row of redundancy, in which everything else stays where it is.
//! Pure.
//!
//! A row of parity does not depend on the rows there are, so a further one needs a place and nothing else:
//! a member of its own, for each group, behind all members there are. What the level is called follows
//! from the count.

use voltier_block::SECTOR_BYTES;
use voltier_parity::ROWS_MAX;

use crate::geometry::chunks::Geometry;
use crate::geometry::level::{GeometryError, Layout, Level};

impl Geometry {
    /// The same with one more parity, or copy. It has one member more for each group.
    ///
    /// # Errors
    /// None inside when the level has no row to add one to, or no name with one more.
    pub fn with_row(&self) -> Result<Self, Option<GeometryError>> {
        let (data, rows) = (self.data_chunks(), self.parity_chunks());
        let level = match self.level() {
            Level::Raid1 => Level::Raid1,
            Level::Raid5 => Level::Raid6,
            Level::Raid6 => Level::Raid7_3,
            Level::Raid7_3 | Level::NPlusM { .. } => Level::NPlusM { data, parity: rows + 1 },
            Level::Raid50 { group } => Level::Raid60 { group: group + 1 },
            Level::Raid60 { group } => Level::Raid70 { group: group + 1 },
            Level::Raid0 | Level::Raid10 | Level::Raid70 { .. } => return Err(None),
        };
        let layout = match self.layout() {
            layout if self.is_mirror() => layout,
            // With one parity the numbers of the data do not matter: what comes is Linux md's.
            Layout::LeftSymmetric if rows == 1 && self.group_count() == 1 => {
                Layout::LeftSymmetricFixedRows
            }
            Layout::LeftSymmetric => Layout::AddedRows { rotating: rows },
            Layout::LeftSymmetricFixedRows if self.group_count() > 1 => return Err(None),
            same => same,
        };
        let members = self.member_count() + self.group_count();
        let chunk_bytes = self.chunk_sectors() * SECTOR_BYTES;
        Self::new(level, layout, members, chunk_bytes, self.member_sectors()).map_err(Some)
    }

    /// Whether rows added to this, and members for room, give the other.
    pub(crate) fn grows_into(&self, other: &Self) -> bool {
        let mut shape = self.clone();
        for _ in 0..=ROWS_MAX {
            if shape.widens_into(other) {
                return *self != *other;
            }
            match shape.with_row() {
                Ok(next) => shape = next,
                Err(_) => return false,
            }
        }
        false
    }

    /// Whether members added for room alone give the other. Whether they come before rows or behind them
    /// makes no difference.
    fn widens_into(&self, other: &Self) -> bool {
        let mut shape = self.clone();
        while shape.member_count() < other.member_count() {
            match shape.with_member() {
                Ok(next) => shape = next,
                Err(_) => return false,
            }
        }
        shape == *other
    }
}
