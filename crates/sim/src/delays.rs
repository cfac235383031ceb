//! Requests of a drive that take longer than others by where they go.

use voltier_block::{Nanos, SectorRange};

use crate::world::World;

/// Ranges of a drive whose requests take longer.
#[derive(Clone, Copy)]
pub(crate) struct Delays {
    /// Reads of this range, and by how much longer they take.
    pub(crate) reads: SectorRange,
    pub(crate) read_ns: Nanos,
    /// Changes of this range, and by how much longer they take at most.
    pub(crate) changes: SectorRange,
    pub(crate) change_ns_max: Nanos,
}

impl Delays {
    /// Lets the time pass by which a request takes longer.
    pub(crate) async fn pass(&self, world: &World, range: SectorRange, is_change: bool) {
        if is_change && self.changes.overlaps(range) {
            world.pass(world.below(self.change_ns_max)).await;
        } else if !is_change && self.reads.overlaps(range) {
            world.pass(self.read_ns).await;
        }
    }
}
