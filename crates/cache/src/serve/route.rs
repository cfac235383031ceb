//! Serving requests: one file a direction, and the reasons for going past the cache in one place.

use voltier_block::{BlockDevice, SectorRange};

use crate::cache::Inner;
use crate::config::Mode;

/// How a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePath {
    /// To the log; the origin gets it later.
    Log,
    /// To the origin, then a copy to the log.
    Through,
    /// To the origin; cached copies are dropped.
    Around,
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// Every reason why a write does not just follow the mode, in order.
    pub(super) fn write_path(&self, range: SectorRange) -> WritePath {
        let stream_bytes = self.streams.borrow_mut().observe(range, true);
        let settings = self.settings.borrow();
        if settings.mode.writes_back() && settings.seq_cutoff_bytes == 0 {
            return WritePath::Log;
        }
        // The newest copy of a dirty line is in the log: newer ones must follow it there. And while
        // writes wait for their order, later ones must not overtake them on the origin.
        if self.any_dirty(range) || self.order_waits() {
            return WritePath::Log;
        }
        // A bypass would be out of order.
        let may_bypass = !(settings.ordered && settings.mode.writes_back());
        if may_bypass && settings.seq_cutoff_bytes > 0 && stream_bytes >= settings.seq_cutoff_bytes
        {
            return WritePath::Around;
        }
        match settings.mode {
            Mode::WriteBack | Mode::WriteOnly => WritePath::Log,
            Mode::WriteThrough => WritePath::Through,
            Mode::ReadOnly | Mode::PassThrough => WritePath::Around,
        }
    }

    /// Whether reads of this range that miss may be kept.
    pub(super) fn keeps_read(&self, range: SectorRange) -> bool {
        let stream_bytes = self.streams.borrow_mut().observe(range, false);
        let settings = self.settings.borrow();
        let streams_past =
            settings.seq_cutoff_bytes > 0 && stream_bytes >= settings.seq_cutoff_bytes;
        settings.mode.keeps_reads() && !streams_past && !self.failed()
    }

    fn any_dirty(&self, range: SectorRange) -> bool {
        let state = self.state.borrow();
        if state.index.dirty_lines() == 0 {
            return false;
        }
        let (first, last) = self.lines_of(range);
        (first..=last)
            .any(|line| state.index.lookup(line).is_some_and(|slot| state.index.is_dirty(slot)))
    }
}
