//! Streams of writes that are longer than what the SSD has room for.
//!
//! In write-back the log takes a stream at the speed of the SSD, until most of the cache is dirty. From then on the
//! stream could go no faster than the cleaner makes room, which also reads the SSD and flushes the origin. So what
//! follows of the stream goes past the log, and the cleaner leaves the origin to it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::Nanos;
use voltier_ring::Handle;

use crate::config::Settings;
use crate::map::shared::Map;

/// Share of the cache that may be dirty, in percent. Writers wait above this share: what is left keeps the
/// policy able to evict and reclaiming able to find room.
pub(crate) const DIRTY_LIMIT_PERCENT: u64 = 90;
/// Where the high threshold is near the limit, streams pass from here on all the same.
const PASS_PERCENT_MAX: u64 = DIRTY_LIMIT_PERCENT - 5;
/// Shorter requests are not worth a way of their own to a disk.
const REQUEST_BYTES_MIN: u64 = 64 << 10;
/// A stream is long from here on, or from a part of a small cache. So much must also have been written in streams
/// since the last flush: who flushes often waits for the flushes, and the SSD's are fast.
const LONG_BYTES: u64 = 4 << 20;
const LONG_PART: u64 = 16;
/// A stream that has not passed for so long has ended.
const PAUSE_NS: Nanos = 250_000_000;
/// The cleaner leaves the origin to a stream of which so much passes in so long: one that writes now and then leaves
/// the origin enough time for both.
const FAST_BYTES: u64 = 4 << 20;
const FAST_NS: Nanos = 1_000_000_000;

/// The long streams of one cache.
pub(crate) struct LongStreams {
    handle: Handle,
    map: Rc<Map>,
    settings: Rc<RefCell<Settings>>,
    /// Bytes that streams have written since the last flush of a client.
    unflushed: Cell<u64>,
    /// When a request of a stream passed last.
    passed_ns: Cell<Option<Nanos>>,
    /// The beginning of a time, what has passed since, and what passed in the time before.
    window: Cell<(Nanos, u64, u64)>,
}

impl LongStreams {
    pub(crate) fn new(handle: Handle, map: Rc<Map>, settings: Rc<RefCell<Settings>>) -> Rc<Self> {
        let (unflushed, passed_ns, window) = Default::default();
        Rc::new(Self { handle, map, settings, unflushed, passed_ns, window })
    }

    /// Takes note of a write, and of the bytes of its stream that came before.
    #[inline]
    pub(crate) fn note_write(&self, bytes: u64, stream_bytes: u64) {
        if stream_bytes > 0 && bytes >= REQUEST_BYTES_MIN {
            self.unflushed.set(self.unflushed.get() + bytes);
        }
    }

    /// A client asks for a flush.
    pub(crate) fn note_flush(&self) {
        self.unflushed.set(0);
    }

    /// Whether a write of a stream finds so much dirty, or on its way into the log, that it may go past the log.
    #[inline]
    pub(crate) fn is_long(&self, bytes: u64, stream_bytes: u64, queued_bytes: usize) -> bool {
        bytes >= REQUEST_BYTES_MIN && self.finds_no_room(stream_bytes, queued_bytes as u64)
    }

    fn finds_no_room(&self, stream_bytes: u64, queued_bytes: u64) -> bool {
        let geometry = self.map.geometry();
        let cache_bytes = geometry.capacity_lines() * geometry.line_bytes;
        if stream_bytes.min(self.unflushed.get()) < LONG_BYTES.min(cache_bytes / LONG_PART) {
            return false;
        }
        let settings = self.settings.borrow();
        if settings.ordered {
            // It would be out of order.
            return false;
        }
        let high = u64::from(settings.dirty_high_percent);
        let from = match self.runs_until() {
            // What passes goes on to: one that changes between its ways is slow on both.
            Some(_) => ((u64::from(settings.dirty_low_percent) + high) / 2).min(pass_percent(high)),
            None => pass_percent(high),
        };
        let dirty = self.map.get().index().dirty_lines() + queued_bytes / geometry.line_bytes;
        dirty * 100 >= geometry.capacity_lines() * from
    }

    /// A request of a stream passes.
    pub(crate) fn note_passed(&self, bytes: u64) {
        let now = self.handle.now();
        self.passed_ns.set(Some(now));
        let (begun, passed, before) = self.window.get();
        self.window.set(match now - begun {
            age if age < FAST_NS => (begun, passed + bytes, before),
            age if age < 2 * FAST_NS => (now, bytes, passed),
            _ => (now, bytes, 0),
        });
    }

    /// The origin has refused a request of a stream.
    pub(crate) fn note_refused(&self) {
        self.passed_ns.set(None);
    }

    /// The clock of the core.
    pub(crate) fn now(&self) -> Nanos {
        self.handle.now()
    }

    /// When the stream that passes will have ended, if nothing more comes; none when none passes.
    fn runs_until(&self) -> Option<Nanos> {
        let until = self.passed_ns.get()? + PAUSE_NS;
        (self.handle.now() < until).then_some(until)
    }

    /// How long the cleaner leaves the origin to a stream while so much of the cache is dirty. Other writes need
    /// room, too.
    pub(crate) fn cleaner_rests_until(&self, dirty_percent: f64) -> Option<Nanos> {
        let until = self.runs_until()?;
        let (_, passed, before) = self.window.get();
        if passed.max(before) < FAST_BYTES {
            return None;
        }
        let from = pass_percent(self.settings.borrow().dirty_high_percent.into());
        let most = (from + DIRTY_LIMIT_PERCENT) as f64 / 2.0;
        (dirty_percent < most).then_some(until)
    }
}

/// From this share of dirty lines on, in percent, streams begin to pass.
fn pass_percent(high_percent: u64) -> u64 {
    ((high_percent + DIRTY_LIMIT_PERCENT) / 2).min(PASS_PERCENT_MAX)
}
