//! Routing: every reason for which a request goes past the cache, in one place.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{DriveControl, SectorRange};

use crate::canary::{self, Canary};
use crate::config::{Mode, Settings};
use crate::devices::refusal::Refusal;
use crate::devices::silence::Silence;
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::log::long_streams::LongStreams;
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
    silence: Rc<Silence>,
    refusal: Rc<Refusal>,
    settings: Rc<RefCell<Settings>>,
    long_streams: Rc<LongStreams>,
    streams: RefCell<StreamDetector>,
}

impl<S: DriveControl> Router<S> {
    pub(crate) fn new<O: DriveControl>(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            log: ground.log.clone(),
            ssd: ground.ssd.clone(),
            silence: ground.origin.silence().clone(),
            refusal: ground.origin.refusal().clone(),
            settings: ground.settings.clone(),
            long_streams: ground.long_streams.clone(),
            streams: RefCell::new(StreamDetector::new()),
        }
    }

    /// Takes note of a write; how many bytes of its stream came before it.
    pub(super) fn observe_write(&self, range: SectorRange) -> u64 {
        let stream_bytes = self.streams.borrow_mut().observe(range, true);
        self.long_streams.note_write(range.bytes(), stream_bytes);
        stream_bytes
    }

    /// Every reason why a write does not just follow the mode, in order.
    pub(super) fn write_path(&self, range: SectorRange, stream_bytes: u64) -> WritePath {
        let settings = self.settings.borrow();
        let is_long = settings.mode.writes_back() && self.is_long(range, stream_bytes);
        if settings.mode.writes_back() && settings.seq_cutoff_bytes == 0 && !is_long {
            return WritePath::Log;
        }
        // The newest copy of a dirty line is in the log: newer ones must follow it there. And while
        // writes wait for their order, later ones must not overtake them on the origin.
        let (first, last) = self.map.geometry().lines_of(range);
        let has_dirty =
            self.map.has_dirty(first, last) && !(is_long && canary::is(Canary::StreamsPassDirty));
        // So does what is on its way into the log, of a request that nobody waits for any more.
        let has_dirty = has_dirty || (is_long && self.log.has_queued(first, last));
        if has_dirty || self.log.order_waits() {
            return WritePath::Log;
        }
        if is_long {
            self.long_streams.note_passed(range.bytes());
            return WritePath::Around;
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

    /// The origin has refused a write of a stream that passed: streams go to the log until it takes something.
    pub(super) fn note_refused(&self) {
        if !self.refusal.has_begun() {
            self.refusal.note_refused(self.long_streams.now());
        }
        self.long_streams.note_refused();
    }

    /// Whether a write that is written back is of a stream for which the SSD has no room. An origin that does not
    /// answer, or refuses writes, takes none.
    #[inline]
    fn is_long(&self, range: SectorRange, stream_bytes: u64) -> bool {
        let queued_bytes = self.log.queued_bytes();
        self.long_streams.is_long(range.bytes(), stream_bytes, queued_bytes)
            && !self.silence.is_silent()
            && !self.refusal.has_begun()
    }

    /// Whether writes need not be on the origin when they are acknowledged.
    pub(super) fn writes_back(&self) -> bool {
        self.settings.borrow().mode.writes_back()
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
