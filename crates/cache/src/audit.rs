//! The accounts of a cache that has nothing to do: what tests ask at the end of a life.
//!
//! Nothing may be held any more (locks, pins, marks, places in a queue), and every slot of every
//! segment has either one line, which the table finds there, or is free for the log.

use voltier_block::BlockDevice;

use crate::cache::{Cache, Inner};
use crate::format::geometry::Geometry;
use crate::map::index::Index;
use crate::map::segments::FreeSlots;

impl<S: BlockDevice, O: BlockDevice> Cache<S, O> {
    /// Checks that a cache which has been stopped or ended, and whose requests are over, holds
    /// nothing, and that its books balance. Walks all slots and locks: for tests.
    ///
    /// # Errors
    /// A sentence that names the first account that does not balance.
    pub fn audit(&self) -> Result<(), String> {
        self.0.audit()
    }
}

/// An error unless `right`.
fn must(right: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(what()) }
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    fn audit(&self) -> Result<(), String> {
        for (name, locks) in [("clients'", &self.locks), ("the origin's", &self.origin_locks)] {
            let (held, waiting) = locks.in_use();
            must(held == 0, || format!("{held} of {name} locks are held"))?;
            must(waiting == 0, || format!("{waiting} of {name} locks are waited for"))?;
        }
        let direct = self.intents.busy();
        must(direct == 0, || format!("{direct} regions count a direct write under way"))?;
        must(self.draining.get() == 0, || "a drain is under way".to_owned())?;
        let state = self.state.borrow();
        state.segments.audit_pins()?;
        must(state.records_in_flight() == 0, || "records are on their way".to_owned())?;
        let (user, internal) = (state.user.changes.len(), state.internal.changes.len());
        must(user + internal == 0, || {
            format!(
                "{user} changes of clients and {internal} of its own wait for the log ({:?})",
                self.health.get()
            )
        })?;
        if self.failed() {
            // Its index is the list of what is lost, and nothing is written by it any more.
            return Ok(());
        }
        audit_slots(&state.index, &self.geometry)?;
        state.segments.audit_lives(&state.index, &self.geometry)
    }
}

/// Every line that is cached is found in its slot, and the sums are the sums.
fn audit_slots(index: &Index, geometry: &Geometry) -> Result<(), String> {
    let (mut used, mut dirty) = (0, 0);
    for slot in (0..geometry.slot_count()).filter(|slot| index.is_used(*slot)) {
        let line = index.line_of(slot);
        let found = index.lookup(line);
        must(found == Some(slot), || {
            format!("line {line} is in slot {slot}, the table says {found:?}")
        })?;
        must(!index.is_pending(slot), || format!("slot {slot} waits for its record"))?;
        used += 1;
        dirty += u64::from(index.is_dirty(slot));
    }
    let (used_count, dirty_count) = (index.used_lines(), index.dirty_lines());
    must(used == used_count, || format!("{used} slots are used, {used_count} are counted"))?;
    must(dirty == dirty_count, || format!("{dirty} lines are dirty, {dirty_count} are counted"))?;
    for segment in 0..geometry.segment_count {
        let live = index.live_in(segment);
        let taken = geometry.slots_per_segment - FreeSlots::of(segment, index, geometry).count();
        must(taken == live, || format!("segment {segment}: {live} lines live in {taken} slots"))?;
    }
    Ok(())
}
