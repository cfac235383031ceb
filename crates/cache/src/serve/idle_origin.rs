//! A congested SSD: clean hits that would wait long in its queue are read from an origin that rests.
//!
//! The origin has the same data, and the checksum of the line proves it. One such read at a time goes
//! there, and only while the cache and its clients want nothing else of the origin, so that neither
//! misses nor destaging wait for it.

use std::cell::Cell;
use std::pin::pin;
use std::task::Poll;

use voltier_block::{BlockDevice, Buf, IoResult, Lba};

use crate::cache::Inner;
use crate::canary::{self, Canary};
use crate::devices::ssd::Pinned;
use crate::status::add;

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

/// How long both devices make a read wait, and what the origin does.
#[derive(Default)]
pub(crate) struct Congestion {
    reads: Cell<u32>,
    ssd_wait_ns: Cell<Nanos>,
    origin_wait_ns: Cell<Nanos>,
    origin_requests: Cell<u32>,
    origin_rests_until: Cell<Nanos>,
}

/// A request of the origin, until dropped.
pub(crate) struct AtOrigin<'a>(&'a Congestion);

impl Drop for AtOrigin<'_> {
    fn drop(&mut self) {
        self.0.origin_requests.set(self.0.origin_requests.get() - 1);
    }
}

impl Congestion {
    /// The origin has one request more.
    pub(crate) fn at_origin(&self) -> AtOrigin<'_> {
        self.origin_requests.set(self.origin_requests.get() + 1);
        AtOrigin(self)
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
    /// waited itself, so the origin may take twice the SSD's wait and all are served sooner.
    fn prefers_origin(&self, congested_us: u32) -> bool {
        let ssd = self.ssd_wait_ns.get();
        congested_us > 0
            && ssd >= u64::from(congested_us) * 1000
            && self.origin_requests.get() == 0
            && self.origin_wait_ns.get() < 2 * ssd
    }
}

fn average(of: &Cell<Nanos>, newest: Nanos) {
    let old = of.get();
    of.set(if old == 0 { newest } else { old - old / AVERAGE_OVER + newest / AVERAGE_OVER });
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// Reads from the SSD; one read in some is timed.
    pub(super) async fn read_timed(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        if !self.congestion.times_next() {
            return self.read_ssd(at, into).await;
        }
        let begun = self.handle.now();
        let read = self.read_ssd(at, into).await;
        self.congestion.note_ssd(self.handle.now() - begun);
        read
    }

    /// Reads pinned lines, neighbours on the origin, from there, if that is better and possible: true
    /// if `into` has their content, and they are not pinned any more.
    pub(super) async fn read_congested(&self, lines: &[(u64, Pinned)], into: &mut Buf) -> bool {
        if !self.congestion.prefers_origin(self.settings.borrow().congested_us) {
            return false;
        }
        let are_clean = {
            let state = self.state.borrow();
            lines.iter().all(|(_, pinned)| !state.index.is_dirty(pinned.slot))
        };
        if !are_clean && !canary::is(Canary::CongestedUnchecked) {
            return false;
        }
        // In a box: hits that go to the SSD do not carry it along.
        let Some(data) = Box::pin(self.read_from_origin(lines, into.len())).await else {
            return false;
        };
        into.copy_from_slice(&data);
        for (_, pinned) in lines {
            self.unpin(pinned);
        }
        true
    }

    /// Reads pinned lines from the origin; `None` unless it has them as they are on the SSD and is
    /// quick enough.
    async fn read_from_origin(&self, lines: &[(u64, Pinned)], bytes: usize) -> Option<Buf> {
        let congestion = &self.congestion;
        let begun = self.handle.now();
        if begun < congestion.origin_rests_until.get() {
            return None;
        }
        let from = self.line_range(lines[0].0).start;
        let patience = PATIENCE_MIN_NS.max(PATIENCE_SSD_WAITS * congestion.ssd_wait_ns.get());
        let mut read = pin!(self.read_origin(from, Buf::new(bytes)));
        let mut patience_ends = pin!(self.handle.sleep(patience));
        let read = std::future::poll_fn(|context| {
            if let Poll::Ready(read) = read.as_mut().poll(context) {
                return Poll::Ready(read.ok());
            }
            patience_ends.as_mut().poll(context).map(|()| None)
        });
        let read = read.await;
        let now = self.handle.now();
        average(&congestion.origin_wait_ns, now - begun);
        let line_bytes = self.geometry.line_bytes as usize;
        let held = |data: &Buf| {
            let mut lines = lines.iter().zip(data.chunks(line_bytes));
            lines.all(|((_, pinned), line)| pinned.holds(line))
                || canary::is(Canary::CongestedUnchecked)
        };
        let data = read.filter(held);
        if data.is_some() {
            add(&self.counters.congested_reads, 1);
        } else {
            congestion.origin_rests_until.set(now + REST_NS);
        }
        data
    }
}
