//! The origin: its traffic counted, its writes in order, its flushes shared.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;

use voltier_block::{
    Buf, DriveControl, Durability, IoError, IoResult, Lba, Limits, Payload, SectorRange,
};
use voltier_ring::{FlushOnce, Handle};

use crate::counters::{Counters, add};
use crate::devices::fingerprint::fingerprint;
use crate::devices::refusal::Refusal;
use crate::devices::silence::Silence;
use crate::devices::skips::Skips;
use crate::map::locks::{Access, LineGuard, LineLocks};
use crate::numbers::Line;

/// What becomes of the space of a range of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// The origin may have it back.
    Given,
    /// A later write finds it.
    Kept,
}

/// The origin of a cache in service.
pub(crate) struct Origin<O> {
    handle: Handle,
    device: O,
    silence: Rc<Silence>,
    refusal: Rc<Refusal>,
    counters: Rc<Counters>,
    /// Order among writes of a line: the cleaner's and direct ones.
    locks: Rc<LineLocks>,
    /// Changes that have completed.
    changes: Cell<u64>,
    /// The number of the last of them that the log has no copy of.
    direct_changes: Cell<u64>,
    durable: FlushOnce,
    /// Flushes that failed. Each may have lost any change that no flush had covered.
    failed_flushes: Cell<u64>,
    /// One of them may have lost lines of the log.
    may_lack_lines: Cell<bool>,
    /// The number of the last of them that may have lost a change past the log.
    last_loss: Cell<u64>,
    /// Requests that changed the origin past the log and have ended, and how many of them may be lost.
    ended_requests: Cell<u64>,
    lost_requests: Cell<u64>,
    /// A flush of a client has yet to say so.
    is_loss_untold: Cell<bool>,
    /// Called when changes past the log may be lost.
    on_loss: RefCell<Option<Box<dyn Fn()>>>,
    /// It has refused zeroes that keep their space.
    refuses_in_place: Cell<bool>,
    /// Reads and writes under way.
    requests: Cell<u32>,
    skips: Skips,
}

/// A request under way, until dropped.
struct Request<'a>(&'a Cell<u32>);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<O: DriveControl> Origin<O> {
    pub(crate) fn new(
        handle: Handle,
        device: O,
        silence: Rc<Silence>,
        counters: Rc<Counters>,
    ) -> Rc<Self> {
        let skips = Skips::new(device.limits().rotational);
        Rc::new(Self {
            handle,
            device,
            silence,
            refusal: Rc::default(),
            counters,
            locks: LineLocks::new(),
            // Writes of an earlier life may still be in the origin's cache.
            changes: Cell::new(1),
            direct_changes: Cell::new(1),
            durable: FlushOnce::default(),
            failed_flushes: Cell::new(0),
            may_lack_lines: Cell::new(false),
            last_loss: Cell::new(0),
            ended_requests: Cell::new(0),
            lost_requests: Cell::new(0),
            is_loss_untold: Cell::new(false),
            on_loss: RefCell::default(),
            refuses_in_place: Cell::new(false),
            requests: Cell::new(0),
            skips,
        })
    }

    pub(crate) fn device(&self) -> &O {
        &self.device
    }

    /// Whether the origin answers.
    pub(crate) fn silence(&self) -> &Rc<Silence> {
        &self.silence
    }

    /// Whether the origin takes what is written back.
    pub(crate) fn refusal(&self) -> &Rc<Refusal> {
        &self.refusal
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.device.limits()
    }

    /// Whether the origin takes zeroes, as far as is known, and zeroes cost it metadata only.
    pub(crate) fn takes_cheap_zeroes(&self) -> bool {
        self.limits().cheap_zeroes && !self.silence.is_silent() && !self.refusal.has_begun()
    }

    /// Whether it takes zeroes that keep their space, as far as is known.
    pub(crate) fn takes_in_place(&self) -> bool {
        self.limits().cheap_zeroes && !self.refuses_in_place.get()
    }

    /// The locks that order changes of lines.
    pub(crate) fn locks(&self) -> &LineLocks {
        &self.locks
    }

    /// Waits for the lines' turn to be changed.
    pub(crate) async fn lock(&self, first: Line, last: Line) -> LineGuard {
        self.lock_as(first, last, Access::Exclusive).await
    }

    /// The same for a change that may have parts of its lines.
    pub(crate) async fn lock_as(&self, first: Line, last: Line, access: Access) -> LineGuard {
        self.locks.lock(first, last, access).await
    }

    /// The same of a long range of lines.
    pub(crate) async fn lock_range(&self, first: Line, last: Line) -> LineGuard {
        self.locks.lock_range(first, last).await
    }

    /// Whether no read and no write is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.get() == 0
    }

    fn begin(&self) -> Request<'_> {
        self.requests.set(self.requests.get() + 1);
        Request(&self.requests)
    }

    pub(crate) async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        add(&self.counters.device_bytes.origin_read, into.len() as u64);
        let bytes = into.len() as u64;
        let gap = self.skips.begin(SectorRange::from_bytes(at.bytes(), bytes));
        let begun = gap.filter(|_| self.is_idle()).map(|gap| (gap, self.handle.now()));
        let _request = self.begin();
        let read = self.device.read(at, into).await;
        if let (Some((gap, begun)), Ok(_)) = (begun, &read) {
            self.skips.note(gap, bytes, self.handle.now() - begun);
        }
        read.inspect_err(|_| add(&self.counters.origin.errors, 1))
    }

    /// What it costs to skip sectors.
    pub(crate) fn skips(&self) -> &Skips {
        &self.skips
    }

    /// Writes what the log has, as dirty lines; the caller holds the locks of the lines.
    pub(crate) async fn destage(&self, at: Lba, data: Payload) -> IoResult<()> {
        add(&self.counters.device_bytes.origin_written, data.len() as u64);
        let _request = self.begin();
        let written = self.device.write(at, data, Durability::Cached).await;
        self.note_change();
        written.inspect_err(|_| add(&self.counters.origin.errors, 1))
    }

    /// Writes past the log; the caller holds the locks of the lines, and has the request
    /// [judged](Self::judged).
    pub(crate) async fn write(&self, at: Lba, data: Payload) -> IoResult<()> {
        let written = self.destage(at, data).await;
        self.note_direct();
        written
    }

    /// Discards a range; the caller holds the locks of the lines, and has the request
    /// [judged](Self::judged).
    pub(crate) async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let discarded = self.device.discard(range).await;
        self.note_change();
        self.note_direct();
        discarded
    }

    /// Zeroes a range; the caller holds the locks of the lines, and has the request
    /// [judged](Self::judged).
    pub(crate) async fn write_zeroes(&self, range: SectorRange, space: Space) -> IoResult<()> {
        let zeroed = match space {
            Space::Given => self.device.write_zeroes(range, Durability::Cached).await,
            Space::Kept => self.device.zero_in_place(range, Durability::Cached).await,
        };
        if space == Space::Kept && zeroed == Err(IoError::Unsupported) {
            self.refuses_in_place.set(true);
        }
        self.note_change();
        self.note_direct();
        zeroed
    }

    /// Does a client's request that may change the origin past the log. A flush that failed since the request
    /// began may have lost a part of the change. Flushes sent before the request ends do not tell of that.
    ///
    /// The request stays where it is: moved, a write would be copied twice, which costs as much as a tenth of it.
    pub(crate) async fn judged(
        &self,
        request: Pin<&mut impl Future<Output = IoResult<()>>>,
    ) -> IoResult<()> {
        let (failed_flushes, changes) = (self.failed_flushes.get(), self.direct_changes.get());
        let done = request.await;
        if self.direct_changes.get() > changes && done.is_ok() {
            self.ended_requests.set(self.ended_requests.get() + 1);
            if self.failed_flushes.get() > failed_flushes {
                self.note_loss();
            }
        }
        done
    }

    /// A change has completed: only a flush submitted from now on covers it.
    fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// The change that has completed last is past the log: a client's flush must cover it.
    fn note_direct(&self) {
        self.direct_changes.set(self.changes.get());
    }

    /// Has `tell` called when a failed flush may have lost changes past the log.
    pub(crate) fn on_loss(&self, tell: impl Fn() + 'static) {
        self.on_loss.replace(Some(Box::new(tell)));
    }

    /// Flushes that failed. Changes before one of them that no other flush had covered may be lost, and a
    /// later flush says nothing of that.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.failed_flushes.get()
    }

    /// Whether the origin may return lines that are not on its medium, and that a successful flush leaves
    /// there. Such lines are dirty in the log until they are written again.
    pub(crate) fn may_lack_lines(&self) -> bool {
        self.may_lack_lines.get()
    }

    /// Whether changes past the log may be lost, and no flush of a client has said so yet.
    pub(crate) fn has_untold_loss(&self) -> bool {
        self.is_loss_untold.get()
    }

    /// A flush has failed. Lines of the log are dirty there until a flush covers them, and are written again.
    /// Changes past the log may be lost: the next flush of a client says so.
    fn note_failed_flush(&self) {
        self.failed_flushes.set(self.failed_flushes.get() + 1);
        self.may_lack_lines.set(true);
        if self.direct_changes.get() > self.durable.covered() {
            self.note_loss();
        }
        self.device.forget_failed_flush();
    }

    /// Changes past the log may be lost, of this process or of one before it.
    pub(crate) fn note_loss(&self) {
        self.last_loss.set(self.failed_flushes.get());
        self.lost_requests.set(self.ended_requests.get());
        self.is_loss_untold.set(true);
        self.on_loss.borrow().iter().for_each(|tell| tell());
    }

    /// Makes everything that has completed durable, if anything has.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) async fn flush(self: &Rc<Self>) -> IoResult<()> {
        self.flush_up_to(self.changes.get()).await
    }

    /// The same, unless the origin is silent; whether all is durable.
    pub(crate) async fn flush_unless_silent(self: &Rc<Self>) -> bool {
        let flush = pin!(self.flush());
        self.silence.released(flush, || true).await.is_some_and(|flushed| flushed.is_ok())
    }

    /// Makes everything durable that has completed past the log. Lines that are destaged meanwhile are
    /// dirty in the log until the cleaner's own flush.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) async fn flush_direct(self: &Rc<Self>) -> IoResult<()> {
        self.flush_or_tell(self.direct_changes.get()).await
    }

    /// The same of everything that has completed, where the log is of no account any more.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) async fn flush_all(self: &Rc<Self>) -> IoResult<()> {
        self.flush_or_tell(self.changes.get()).await
    }

    /// A flush for clients, which says once that changes past the log may be lost. Of requests that ended
    /// after the flush was sent another flush says so.
    async fn flush_or_tell(self: &Rc<Self>, change: u64) -> IoResult<()> {
        if self.is_loss_untold.replace(false) {
            return Err(IoError::Medium);
        }
        let (failed_flushes, ended) = (self.failed_flushes.get(), self.ended_requests.get());
        let flushed = self.flush_up_to(change).await;
        if self.last_loss.get() > failed_flushes {
            if self.lost_requests.get() <= ended {
                self.is_loss_untold.set(false);
            }
            return Err(IoError::Medium);
        }
        flushed
    }

    /// A flush goes on when nobody waits for it any more: its error is told to nobody else.
    async fn flush_up_to(self: &Rc<Self>, change: u64) -> IoResult<()> {
        if self.durable.covered() >= change {
            return Ok(());
        }
        let origin = self.clone();
        let flushed = async move {
            let flush = async |_| {
                let flushed = origin.device.flush().await;
                flushed.inspect_err(|_| {
                    add(&origin.counters.origin.errors, 1);
                    origin.note_failed_flush();
                })
            };
            origin.durable.until(change, || origin.changes.get(), flush).await
        };
        self.handle.finish(flushed).await
    }

    /// A number that changes when somebody else writes to the origin.
    pub(crate) async fn fingerprint(&self, sectors: u64) -> IoResult<u64> {
        fingerprint(&self.device, sectors).await
    }
}
