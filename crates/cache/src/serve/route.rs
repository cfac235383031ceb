//! Routing: every reason for which a request goes past the cache, in one place.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{DriveControl, SectorRange};

use crate::config::{Mode, Settings};
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::map::shared::Map;
use crate::stream::StreamDetector;

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

impl From<WritePath> for u8 {
    fn from(path: WritePath) -> Self {
        path as u8
    }
}

/// The router of one cache.
pub(crate) struct Router<S> {
    map: Rc<Map>,
    log: Rc<Log<S>>,
    ssd: Rc<Ssd<S>>,
    settings: Rc<RefCell<Settings>>,
    streams: RefCell<StreamDetector>,
}

impl<S: DriveControl> Router<S> {
    pub(crate) fn new<O: DriveControl>(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            log: ground.log.clone(),
            ssd: ground.ssd.clone(),
            settings: ground.settings.clone(),
            streams: RefCell::new(StreamDetector::new()),
        }
    }

    /// Takes note of a write; how many bytes of its stream came before it.
    pub(super) fn observe_write(&self, range: SectorRange) -> u64 {
        self.streams.borrow_mut().observe(range, true)
    }

    /// Every reason why a write does not just follow the mode, in order.
    pub(super) fn write_path(&self, range: SectorRange, stream_bytes: u64) -> WritePath {
        let settings = self.settings.borrow();
        if settings.mode.writes_back() && settings.seq_cutoff_bytes == 0 {
            return WritePath::Log;
        }
        // The newest copy of a dirty line is in the log: newer ones must follow it there. And while
        // writes wait for their order, later ones must not overtake them on the origin.
        let (first, last) = self.map.geometry().lines_of(range);
        if self.map.has_dirty(first, last) || self.log.order_waits() {
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
        settings.mode.keeps_reads() && !streams_past && !self.ssd.passes_clean()
    }
}
