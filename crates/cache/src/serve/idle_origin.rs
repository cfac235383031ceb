//! A congested SSD: clean hits that would wait long in its queue are read from an origin that rests.
//!
//! The origin has the same data, and the checksum of the line proves it. One such read at a time goes
//! there, and only while the cache and its clients want nothing else of the origin. So neither misses
//! nor destaging wait for such a read.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{BlockDevice, Buf, IoResult, Lba};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::config::Settings;
use crate::counters::{Counters, add};
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
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
pub(crate) struct IdleOrigin<S, O> {
    handle: Handle,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
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

impl<S: BlockDevice, O: BlockDevice> IdleOrigin<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>) -> Self {
        Self {
            handle: ground.handle.clone(),
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
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
    fn prefers_origin(&self, congested_us: u32) -> bool {
        let ssd = self.ssd_wait_ns.get();
        congested_us > 0
            && ssd >= u64::from(congested_us) * 1000
            && self.origin.is_idle()
            && self.origin_wait_ns.get() < 2 * ssd
    }

    /// Reads from the SSD; one read in some is timed.
    pub(super) async fn read_ssd(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        if !self.times_next() {
            return self.ssd.read(at, into).await;
        }
        let begun = self.handle.now();
        let read = self.ssd.read(at, into).await;
        self.note_ssd(self.handle.now() - begun);
        read
    }

    /// Reads pinned lines, neighbours on the origin, from there, if that is better and possible: true
    /// if `into` has their content.
    pub(super) async fn read_congested(
        &self,
        lines: &[(Line, Pinned<'_>)],
        into: &mut Buf,
    ) -> bool {
        if !self.prefers_origin(self.settings.borrow().congested_us) {
            return false;
        }
        let are_clean = {
            let contents = self.map.get();
            lines.iter().all(|(_, pinned)| !contents.index().is_dirty(pinned.copy().slot))
        };
        if !are_clean && !canary::is(Canary::CongestedUnchecked) {
            return false;
        }
        // In a box: hits that go to the SSD do not carry it along.
        let Some(data) = Box::pin(self.read_from_origin(lines, into.len())).await else {
            return false;
        };
        into.copy_from_slice(&data);
        true
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
        let mut read = pin!(self.origin.read(from, Buf::new(bytes)));
        let mut patience_ends = pin!(self.handle.sleep(patience));
        let read = std::future::poll_fn(|context| {
            if let Poll::Ready(read) = read.as_mut().poll(context) {
                return Poll::Ready(read.ok());
            }
            patience_ends.as_mut().poll(context).map(|()| None)
        });
        let read = read.await;
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
            add(&self.counters.congested_reads, 1);
        } else {
            self.origin_rests_until.set(now + REST_NS);
        }
        data
    }
}
