//! Requests of the same range at the same time: a leader does the I/O, its waiters take the result.
//!
//! Long reads share: the leader reads for all. All of them hold the lines' locks for reading, so nothing
//! can have changed between the leader's read and the arrival of the others.
//!
//! Writes are coalesced: of those that wait at the same time, only the newest is written. Writes wait for
//! their lines, and for the log when it has enough to do. None of those that wait has been answered, and
//! no reader can have seen one. The effect is as if all had been written, one by one in the order of
//! their arrival, and they are answered together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use voltier_block::{Buf, Bytes, IoResult, Payload, SectorRange};
use voltier_ring::{OneshotReceiver, OneshotSender, Semaphore, Signal, oneshot};

use crate::canary::{self, Canary};
use crate::counters::Served;
use crate::format::geometry::Geometry;

/// Start and sectors.
type Key = (u64, u64);

/// The leaders under way, by range: what waiters gave them, and who wants which answer.
pub(super) struct SingleFlight<Given, Answer>(RefCell<BTreeMap<Key, Waiters<Given, Answer>>>);

/// Requests that wait for a leader, in order, and what they gave it.
pub(super) struct Waiters<Given, Answer> {
    given: Given,
    answers: Vec<OneshotSender<Answer>>,
}

/// A request's role among those of its range.
pub(super) enum Role<'a, Given, Answer> {
    /// The request goes, for all who come meanwhile.
    Leader(Leader<'a, Given, Answer>),
    /// The request gets the leader's answer; none if the leader was dropped or has no answer.
    Waiter(OneshotReceiver<Answer>),
}

/// A request that others may join until it ends, or is dropped.
pub(super) struct Leader<'a, Given, Answer> {
    of: &'a SingleFlight<Given, Answer>,
    key: Key,
}

impl<Given, Answer> Default for SingleFlight<Given, Answer> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<Given: Default, Answer> Default for Waiters<Given, Answer> {
    fn default() -> Self {
        Self { given: Given::default(), answers: Vec::new() }
    }
}

impl<Given: Default, Answer> SingleFlight<Given, Answer> {
    /// Waits for the leader of this very range, and gives it something, or becomes the leader.
    pub(super) fn join(
        &self,
        range: SectorRange,
        give: impl FnOnce(&mut Given),
    ) -> Role<'_, Given, Answer> {
        let key = key_of(range);
        let mut all = self.0.borrow_mut();
        if let Some(waiters) = all.get_mut(&key) {
            let (sender, receiver) = oneshot();
            give(&mut waiters.given);
            waiters.answers.push(sender);
            return Role::Waiter(receiver);
        }
        all.insert(key, Waiters::default());
        Role::Leader(Leader { of: self, key })
    }

    /// Whether a request of this range is a leader.
    pub(super) fn has(&self, range: SectorRange) -> bool {
        self.0.borrow().contains_key(&key_of(range))
    }
}

fn key_of(range: SectorRange) -> Key {
    (range.start.0, range.count)
}

impl<Given: Default, Answer> Leader<'_, Given, Answer> {
    /// Nobody joins from here on.
    pub(super) fn end(self) -> Waiters<Given, Answer> {
        self.of.0.borrow_mut().remove(&self.key).unwrap_or_default()
    }
}

impl<Given, Answer> Drop for Leader<'_, Given, Answer> {
    fn drop(&mut self) {
        // Outside the borrow: waiters that are left without an answer wake.
        let waiters = self.of.0.borrow_mut().remove(&self.key);
        drop(waiters);
    }
}

impl<Given: Default, Answer> Waiters<Given, Answer> {
    /// Everything that the leader was given.
    pub(super) fn take_given(&mut self) -> Given {
        std::mem::take(&mut self.given)
    }
}

impl<Given, Answer: Clone> Waiters<Given, Answer> {
    /// All get the same.
    pub(super) fn answer(self, answer: &Answer) {
        for sender in self.answers {
            sender.send(answer.clone());
        }
    }
}

/// Shorter reads cost less than the search for a leader.
const SHARED_SECTORS_MIN: u64 = 128;

/// The bytes of a read, and how the cache served them.
type ReadAnswer = (Bytes, Served);
/// How a long read goes on.
pub(super) type ReadRole<'a> = Role<'a, (), ReadAnswer>;

/// Reads under way that others may join.
#[derive(Default)]
pub(crate) struct SharedReads(SingleFlight<(), ReadAnswer>);

impl SharedReads {
    /// Joins the read of this very range that is under way, or begins one; `None` for a short read,
    /// which goes by itself.
    pub(super) fn join(&self, range: SectorRange) -> Option<ReadRole<'_>> {
        (range.count >= SHARED_SECTORS_MIN).then(|| self.0.join(range, |()| ()))
    }
}

/// Ends a read, and gives a copy of its bytes to all that joined it.
pub(super) fn answer_reads(leader: Leader<'_, (), ReadAnswer>, data: &Buf, served: Served) {
    let waiters = leader.end();
    if !waiters.answers.is_empty() {
        waiters.answer(&(Bytes::copy_of(data), served));
    }
}

/// Bytes of writes that the log has at once, on their way to the SSD or queued for it: eight records of
/// 384 KiB. Writes beyond wait here, where a newer one can still go in the place of each.
///
/// Only where writes have met: without a bound one job runs ahead of the others, and soon they meet no more.
/// A bound of 2 MiB for all writes cost jobs that never meet up to 1.6 % of the SSD's rate.
const LOG_BYTES_MAX: u64 = 3 << 20;

/// The number of writes after which the log is free for all again, once two of the same range have met.
const EXPECTING_WRITES: u32 = 64;

/// The outcome of a write.
pub(super) type WriteAnswer = IoResult<Served>;
/// The newest data of those who came later.
type Newest = Option<Payload>;
/// A write's role among those of its range: the leader waits for the lines.
pub(super) type WriteRole<'a> = Role<'a, Newest, WriteAnswer>;
/// Writes that wait for the answer of the write in whose place the newest of them goes.
pub(super) type Overwritten = Waiters<Newest, WriteAnswer>;

/// The writes of one cache that wait.
pub(crate) struct Coalescing {
    /// By range.
    waiting: SingleFlight<Newest, WriteAnswer>,
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

/// The leader of a range begins; the writes that came later, if any did.
pub(super) fn begin_write(leader: Leader<'_, Newest, WriteAnswer>) -> Overwritten {
    let overwritten = leader.end();
    if canary::is(Canary::OverwrittenAnsweredEarly) {
        let given = overwritten.given.clone();
        overwritten.answer(&Ok(Served::Hit));
        return Overwritten { given, ..Overwritten::default() };
    }
    overwritten
}
