//! Writes take turns: they wait for their lines, and for the log when it has enough to do.
//!
//! Of writes of the same range that wait at the same time, only the newest one is written. None of them
//! has been answered and no reader can have seen one, so it is as if they had all been written, one behind
//! the other in the order of their arrival, and are answered together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use voltier_block::{IoResult, Payload, SectorRange};
use voltier_ring::{OneshotReceiver, OneshotSender, Semaphore, Signal, oneshot};

use crate::canary::{self, Canary};
use crate::format::Geometry;
use crate::status::Served;

/// Bytes of writes that the log has at once, on their way to the SSD or queued for it: eight records of
/// 384 KiB. What is beyond waits here, where a newer write can still go in its place. On a small SSD a
/// sixteenth of its space is the bound.
const LOG_BYTES_MAX: u64 = 3 << 20;

/// So many writes after one that met another of its range the log is free for all again.
const MEETING_WRITES: u32 = 64;

/// What became of a write.
pub(super) type Answer = IoResult<Served>;
/// Start and sectors.
type Key = (u64, u64);

/// Those that came after the first one.
#[derive(Default)]
struct Later {
    newest: Option<Payload>,
    answers: Vec<OneshotSender<Answer>>,
}

/// Who writes next.
pub(crate) struct Turns {
    /// Writes that wait, by range.
    waiting: RefCell<BTreeMap<Key, Later>>,
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

/// A write's place among those of its range.
pub(super) enum Place<'a> {
    /// It waits for the lines, for all who come meanwhile.
    First(First<'a>),
    /// It is answered when the first one is; with nothing if that one was dropped.
    Later(OneshotReceiver<Answer>),
}

/// A write that others may join until it begins, or is dropped.
pub(super) struct First<'a> {
    turns: &'a Turns,
    key: Key,
}

/// Those who wait for the answer of the write that goes in their place.
#[derive(Default)]
pub(super) struct Overwritten(Vec<OneshotSender<Answer>>);

impl Turns {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let space = u64::from(geometry.segment_count) * geometry.segment_bytes;
        Self {
            waiting: RefCell::default(),
            turnstile: Semaphore::new(1),
            log_bytes_max: LOG_BYTES_MAX.min(space / 16) as usize,
            log_bytes: Cell::new(0),
            log_has_room: Signal::new(),
            meeting: Cell::new(0),
        }
    }

    /// Whether a write of this range need not wait: none waits, and the log has room.
    pub(super) fn is_next(&self, range: SectorRange) -> bool {
        let nobody_waits = self.turnstile.free() > 0;
        nobody_waits && self.log_has_room() && !self.waiting.borrow().contains_key(&key_of(range))
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
    pub(super) fn join(&self, range: SectorRange, data: &Payload) -> Place<'_> {
        let key = key_of(range);
        let mut waiting = self.waiting.borrow_mut();
        if let Some(later) = waiting.get_mut(&key) {
            let (sender, receiver) = oneshot();
            later.newest = Some(data.clone());
            later.answers.push(sender);
            self.meeting.set(MEETING_WRITES);
            return Place::Later(receiver);
        }
        waiting.insert(key, Later::default());
        Place::First(First { turns: self, key })
    }
}

impl Drop for InLog<'_> {
    fn drop(&mut self) {
        self.turns.log_bytes.set(self.turns.log_bytes.get() - self.bytes);
        self.turns.log_has_room.notify();
    }
}

fn key_of(range: SectorRange) -> Key {
    (range.start.0, range.count)
}

impl First<'_> {
    /// It begins: the newest data of those who came later, if any did, and who they are.
    pub(super) fn begin(self) -> (Option<Payload>, Overwritten) {
        let later = self.turns.waiting.borrow_mut().remove(&self.key).unwrap_or_default();
        let overwritten = Overwritten(later.answers);
        if canary::is(Canary::OverwrittenAnsweredEarly) {
            overwritten.answer(Ok(Served::Hit));
            return (later.newest, Overwritten::default());
        }
        (later.newest, overwritten)
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        // Outside the borrow: who is left without an answer wakes.
        let later = self.turns.waiting.borrow_mut().remove(&self.key);
        drop(later);
    }
}

impl Overwritten {
    pub(super) fn answer(self, answer: Answer) {
        for sender in self.0 {
            sender.send(answer);
        }
    }
}
