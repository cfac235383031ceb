//! Writes take turns: they wait for their lines, and for the log when it has enough to do.
//!
//! Of writes of the same range that wait at the same time, only the newest one is written. None of them
//! has been answered and no reader can have seen one, so it is as if they had all been written, one behind
//! the other in the order of their arrival, and are answered together.

use std::cell::Cell;

use voltier_block::{IoResult, Payload, SectorRange};
use voltier_ring::{Semaphore, Signal};

use super::single_flight::{Company, Followers, Lead, Place};
use crate::canary::{self, Canary};
use crate::format::geometry::Geometry;
use crate::status::Served;

/// Bytes of writes that the log has at once, on their way to the SSD or queued for it: eight records of
/// 384 KiB. What is beyond waits here, where a newer write can still go in its place.
const LOG_BYTES_MAX: u64 = 3 << 20;

/// So many writes after one that met another of its range the log is free for all again.
const MEETING_WRITES: u32 = 64;

/// What became of a write.
pub(super) type Answer = IoResult<Served>;
/// The newest data of those who came later.
type Newest = Option<Payload>;
/// A write's place among those of its range: the first one waits for the lines.
pub(super) type WritePlace<'a> = Place<'a, Newest, Answer>;
/// Those who wait for the answer of the write that goes in their place, with the newest data.
pub(super) type Overwritten = Followers<Newest, Answer>;

/// Who writes next.
pub(crate) struct Turns {
    /// Writes that wait, by range.
    waiting: Company<Newest, Answer>,
    /// Those that wait for the log pass one by one, in order.
    turnstile: Semaphore,
    log_bytes_max: usize,
    log_bytes: Cell<usize>,
    log_has_room: Signal,
    /// Writes that may yet begin before no two of a range are expected to meet.
    meeting: Cell<u32>,
}

/// Bytes that the log has, until dropped.
pub(super) struct InLog<'a> {
    turns: &'a Turns,
    bytes: usize,
}

impl Turns {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            waiting: Company::default(),
            turnstile: Semaphore::new(1),
            log_bytes_max: geometry.backlog_bytes(LOG_BYTES_MAX) as usize,
            log_bytes: Cell::new(0),
            log_has_room: Signal::new(),
            meeting: Cell::new(0),
        }
    }

    /// Whether a write of this range need not wait: none waits, and the log has room.
    pub(super) fn is_next(&self, range: SectorRange) -> bool {
        let nobody_waits = self.turnstile.free() > 0;
        nobody_waits && self.log_has_room() && !self.waiting.has(range)
    }

    /// Only where writes of a range meet is there anything to be had from waiting.
    fn log_has_room(&self) -> bool {
        self.meeting.get() == 0 || self.log_bytes.get() < self.log_bytes_max
    }

    /// Waits until the log has room for one more.
    pub(super) async fn wait_for_log(&self) {
        let _first_of_all = self.turnstile.acquire(1).await;
        self.log_has_room.until(|| self.log_has_room()).await;
    }

    /// The log is given so much.
    pub(super) fn in_log(&self, bytes: usize) -> InLog<'_> {
        self.meeting.set(self.meeting.get().saturating_sub(1));
        self.log_bytes.set(self.log_bytes.get() + bytes);
        InLog { turns: self, bytes }
    }

    /// Takes a place: behind those of the same range that wait, or as the first of them.
    pub(super) fn join(&self, range: SectorRange, data: &Payload) -> WritePlace<'_> {
        self.waiting.join(range, |newest| {
            *newest = Some(data.clone());
            self.meeting.set(MEETING_WRITES);
        })
    }
}

impl Drop for InLog<'_> {
    fn drop(&mut self) {
        self.turns.log_bytes.set(self.turns.log_bytes.get() - self.bytes);
        self.turns.log_has_room.notify();
    }
}

impl Lead<'_, Newest, Answer> {
    /// It begins: who came later, if anybody did.
    pub(super) fn begin(self) -> Overwritten {
        let overwritten = self.end();
        if canary::is(Canary::OverwrittenAnsweredEarly) {
            let left = overwritten.left.clone();
            overwritten.answer(&Ok(Served::Hit));
            return Overwritten { left, ..Overwritten::default() };
        }
        overwritten
    }
}
