//! A congested SSD: clean hits that would wait long in its queue are read from an origin that rests.
//!
//! The origin has the same data, and the checksum of the line proves it. One such read at a time goes
//! there, and only while the cache and its clients want nothing else of the origin. So neither misses
//! nor destaging wait for such a read. (bcache sends whatever comes past a congested SSD: disks drown, and
//! its users are told to switch that off.)

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{Buf, DriveControl};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::config::Settings;
use crate::counters::{Counters, add};
use crate::devices::origin::Origin;
use crate::ground::Ground;
use crate::map::shared::{Map, Pinned};
use crate::numbers::Line;

/// Nanoseconds on the clock of the core.
type Nanos = u64;

/// One read of so many is timed: asking for the time costs a part of a hit.
const TIMED_ONE_IN: u32 = 64;
/// Weight of the newest time in a moving average, as one in so many.
const AVERAGE_OVER: u64 = 8;
/// A read of the origin is given up for the SSD after so many of the SSD's waits, and not before
/// `PATIENCE_MIN_NS`.
const PATIENCE_SSD_WAITS: u64 = 8;
const PATIENCE_MIN_NS: Nanos = 50_000_000;
/// An origin that failed, or was given up, is left alone for so long.
const REST_NS: Nanos = 1_000_000_000;

/// The choice between a busy SSD and an idle origin, for the hits of one cache.
pub(crate) struct IdleOrigin<O> {
    handle: Handle,
    map: Rc<Map>,
    origin: Rc<Origin<O>>,
    settings: Rc<RefCell<Settings>>,
    counters: Rc<Counters>,
    reads: Cell<u32>,
    ssd_wait_ns: Cell<Nanos>,
    origin_wait_ns: Cell<Nanos>,
    origin_rests_until: Cell<Nanos>,
}

fn average(of: &Cell<Nanos>, newest: Nanos) {
    let old = of.get();
    of.set(if old == 0 { newest } else { old - old / AVERAGE_OVER + newest / AVERAGE_OVER });
}

impl<O: DriveControl> IdleOrigin<O> {
    pub(crate) fn new<S: DriveControl>(ground: &Ground<S, O>) -> Self {
        Self {
            handle: ground.handle.clone(),
            map: ground.map.clone(),
            origin: ground.origin.clone(),
            settings: ground.settings.clone(),
            counters: ground.counters.clone(),
            reads: Cell::new(0),
            ssd_wait_ns: Cell::new(0),
            origin_wait_ns: Cell::new(0),
            origin_rests_until: Cell::new(0),
        }
    }

    /// Whether the next read of the SSD is to be timed.
    fn times_next(&self) -> bool {
        let reads = self.reads.replace(self.reads.get().wrapping_add(1));
        reads.is_multiple_of(TIMED_ONE_IN)
    }

    fn note_ssd(&self, waited_ns: Nanos) {
        average(&self.ssd_wait_ns, waited_ns);
        // An origin that was slow once is tried again.
        let origin = self.origin_wait_ns.get();
        self.origin_wait_ns.set(origin - origin / (2 * AVERAGE_OVER));
    }

    /// Whether a hit is better served by the origin.
    ///
    /// Where requests queue, one that goes elsewhere spares those behind it as long as it would have
    /// waited itself. So the origin may take twice the SSD's wait, and all are served sooner.
    #[inline]
    fn prefers_origin(&self, congested_us: u32) -> bool {
        let ssd = self.ssd_wait_ns.get();
        congested_us > 0
            && ssd >= u64::from(congested_us) * 1000
            && self.origin.is_idle()
            && self.origin_wait_ns.get() < 2 * ssd
    }

    /// Begins a read of the SSD: the time now, if the read is to be timed.
    #[inline]
    pub(super) fn begin_ssd_read(&self) -> Option<Nanos> {
        self.times_next().then(|| self.handle.now())
    }

    /// The read of the SSD that began then is over.
    #[inline]
    pub(super) fn end_ssd_read(&self, begun: Option<Nanos>) {
        if let Some(begun) = begun {
            self.note_ssd(self.handle.now() - begun);
        }
    }

    /// Whether pinned lines, neighbours on the origin, are better read from there.
    #[inline]
    pub(super) fn is_better_for(&self, lines: &[(Line, Pinned<'_>)]) -> bool {
        self.prefers_origin(self.settings.borrow().congested_us) && self.may_have(lines)
    }

    /// Whether the origin has these lines, as far as the map tells.
    fn may_have(&self, lines: &[(Line, Pinned<'_>)]) -> bool {
        let contents = self.map.get();
        let are_clean =
            lines.iter().all(|(_, pinned)| !contents.index().is_dirty(pinned.copy().slot));
        are_clean || canary::is(Canary::CongestedUnchecked)
    }

    /// Reads lines from the origin that are better read from there: true if `into` has their content.
    pub(super) async fn read(&self, lines: &[(Line, Pinned<'_>)], into: &mut Buf) -> bool {
        let data = self.read_from_origin(lines, into.len()).await;
        data.iter().for_each(|data| into.copy_from_slice(data));
        data.is_some()
    }

    /// Reads pinned lines from the origin; `None` unless it has them as they are on the SSD and is
    /// quick enough.
    async fn read_from_origin(&self, lines: &[(Line, Pinned<'_>)], bytes: usize) -> Option<Buf> {
        let begun = self.handle.now();
        if begun < self.origin_rests_until.get() {
            return None;
        }
        let geometry = self.map.geometry();
        let from = geometry.line_range(lines[0].0).start;
        let patience = PATIENCE_MIN_NS.max(PATIENCE_SSD_WAITS * self.ssd_wait_ns.get());
        let read = self.origin.read(from, Buf::new(bytes));
        let read = self.handle.timeout(patience, read).await.ok().and_then(Result::ok);
        let now = self.handle.now();
        average(&self.origin_wait_ns, now - begun);
        let line_bytes = geometry.line_bytes as usize;
        let held = |data: &Buf| {
            let mut lines = lines.iter().zip(data.chunks(line_bytes));
            lines.all(|((_, pinned), line)| pinned.copy().holds(line))
                || canary::is(Canary::CongestedUnchecked)
        };
        let data = read.filter(held);
        if data.is_some() {
            add(&self.counters.cache.congested_reads, 1);
        } else {
            self.origin_rests_until.set(now + REST_NS);
        }
        data
    }
}
