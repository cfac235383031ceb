//! Writes after which data and parity may not match when all is cut off: those that no flush has
//! covered. Without a journal a member that is lost then may take along what was in their stripes.

use voltier_array::Geometry;
use voltier_block::SectorRange;

use crate::model::Model;

#[derive(Clone, Copy)]
struct Change {
    range: SectorRange,
    /// The begin and the end of the change.
    begun: u64,
    ended: Option<u64>,
    /// Of an earlier life: its stripes match again when nothing needs a resync.
    is_old: bool,
}

/// Writes that no flush has covered.
#[derive(Clone, Default)]
pub(crate) struct Uncovered {
    clock: u64,
    changes: Vec<Change>,
}

impl Uncovered {
    /// A write begins; its number.
    pub(crate) fn begin(&mut self, range: SectorRange) -> u64 {
        self.clock += 1;
        let begun = self.clock;
        self.changes.push(Change { range, begun, ended: None, is_old: false });
        begun
    }

    /// The write ends.
    pub(crate) fn end(&mut self, number: u64) {
        self.clock += 1;
        let change = self.changes.iter_mut().find(|change| change.begun == number);
        change.expect("it has begun").ended = Some(self.clock);
    }

    /// A flush begins.
    pub(crate) fn begin_flush(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The flush ends; whether nothing needed a resync when it began.
    pub(crate) fn end_flush(&mut self, flush: u64, is_resynced: bool) {
        self.changes.retain(|change| {
            let is_covered = change.ended.is_some_and(|ended| ended < flush);
            !is_covered || (change.is_old && !is_resynced)
        });
    }

    /// The life is over.
    pub(crate) fn cut(&mut self) {
        for change in &mut self.changes {
            (change.ended, change.is_old) = (Some(0), true);
        }
    }

    /// The content of their stripes is not known any more: members are missing. Until nothing needs a resync
    /// that is so of what is written there from now on as well, when more of them go.
    pub(crate) fn give_up(&mut self, geometry: &Geometry, model: &mut Model) {
        let stripe = geometry.stripe_sectors();
        for change in &self.changes {
            let range = if geometry.is_mirror() {
                change.range
            } else {
                let first = change.range.start.0 / stripe;
                // In a shape that ends before it, it has no stripe.
                let end = change.range.end().0.div_ceil(stripe).min(geometry.stripe_count());
                let count = end.saturating_sub(first);
                SectorRange::new(voltier_block::Lba(first * stripe), count * stripe)
            };
            model.give_up(range);
        }
    }
}
