//! Write coalescing: of writes of the same range that wait at the same time, only the newest is written.
//!
//! Writes wait for their lines, and for the log when it has enough to do. None of those that wait has
//! been answered, and no reader can have seen one. So it is as if all had been written, one behind the
//! other in the order of their arrival, and they are answered together.

use std::cell::Cell;

use voltier_block::{IoResult, Payload, SectorRange};
use voltier_ring::{Semaphore, Signal};

use crate::canary::{self, Canary};
use crate::counters::Served;
use crate::format::geometry::Geometry;
use crate::serve::single_flight::{Leader, Role, SingleFlight, Waiters};

/// Bytes of writes that the log has at once, on their way to the SSD or queued for it: eight records of
/// 384 KiB. What is beyond waits here, where a newer write can still go in its place.
const LOG_BYTES_MAX: u64 = 3 << 20;

/// So many writes after two of the same range have met, the log is free for all again.
const EXPECTING_WRITES: u32 = 64;

/// The outcome of a write.
pub(super) type Answer = IoResult<Served>;
/// The newest data of those who came later.
type Newest = Option<Payload>;
/// A write's role among those of its range: the leader waits for the lines.
pub(super) type WriteRole<'a> = Role<'a, Newest, Answer>;
/// Writes that wait for the answer of the write in whose place the newest of them goes.
pub(super) type Overwritten = Waiters<Newest, Answer>;

/// The writes of one cache that wait.
pub(crate) struct Coalescing {
    /// By range.
    waiting: SingleFlight<Newest, Answer>,
    /// Writes that wait for the log pass one by one, in order.
    entrance: Semaphore,
    log_bytes_max: usize,
    log_bytes: Cell<usize>,
    log_has_room: Signal,
    /// Writes that may yet begin before no two of a range are expected to meet.
    expecting: Cell<u32>,
}

/// Bytes that the log has, until dropped.
pub(super) struct InLog<'a> {
    of: &'a Coalescing,
    bytes: usize,
}

impl Coalescing {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            waiting: SingleFlight::default(),
            entrance: Semaphore::new(1),
            log_bytes_max: geometry.backlog_bytes(LOG_BYTES_MAX) as usize,
            log_bytes: Cell::new(0),
            log_has_room: Signal::new(),
            expecting: Cell::new(0),
        }
    }

    /// Whether a write of this range need not wait: none waits, and the log has room.
    pub(super) fn is_next(&self, range: SectorRange) -> bool {
        let nobody_waits = self.entrance.free() > 0;
        nobody_waits && self.log_has_room() && !self.waiting.has(range)
    }

    /// Only where writes of a range meet is there anything to be had from waiting.
    fn log_has_room(&self) -> bool {
        self.expecting.get() == 0 || self.log_bytes.get() < self.log_bytes_max
    }

    /// Waits until the log has room for one more.
    pub(super) async fn wait_for_log(&self) {
        let _first_of_all = self.entrance.acquire(1).await;
        self.log_has_room.until(|| self.log_has_room()).await;
    }

    /// The log is given so much.
    pub(super) fn in_log(&self, bytes: usize) -> InLog<'_> {
        self.expecting.set(self.expecting.get().saturating_sub(1));
        self.log_bytes.set(self.log_bytes.get() + bytes);
        InLog { of: self, bytes }
    }

    /// Takes a place: behind those of the same range that wait, or as the first of them.
    pub(super) fn join(&self, range: SectorRange, data: &Payload) -> WriteRole<'_> {
        self.waiting.join(range, |newest| {
            *newest = Some(data.clone());
            self.expecting.set(EXPECTING_WRITES);
        })
    }
}

impl Drop for InLog<'_> {
    fn drop(&mut self) {
        self.of.log_bytes.set(self.of.log_bytes.get() - self.bytes);
        self.of.log_has_room.notify();
    }
}

/// The leader begins: those who came later, if anybody did.
pub(super) fn begin(leader: Leader<'_, Newest, Answer>) -> Overwritten {
    let overwritten = leader.end();
    if canary::is(Canary::OverwrittenAnsweredEarly) {
        let given = overwritten.given.clone();
        overwritten.answer(&Ok(Served::Hit));
        return Overwritten { given, ..Overwritten::default() };
    }
    overwritten
}
