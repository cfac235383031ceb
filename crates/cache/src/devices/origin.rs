//! The origin: its traffic counted, its writes in order, its flushes shared.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoResult, Lba, Limits, Payload, SectorRange};
use voltier_ring::FlushOnce;

use crate::counters::{Counters, add};
use crate::devices::fingerprint::fingerprint;
use crate::devices::silence::Silence;
use crate::map::locks::{Access, LineGuard, LineLocks};
use crate::numbers::Line;

/// The origin of a cache in service.
pub(crate) struct Origin<O> {
    device: O,
    silence: Rc<Silence>,
    counters: Rc<Counters>,
    /// Order among writes of a line: the cleaner's and direct ones.
    locks: Rc<LineLocks>,
    /// Changes that have completed.
    changes: Cell<u64>,
    /// The number of the last of them that the log has no copy of.
    direct_changes: Cell<u64>,
    durable: FlushOnce,
    /// Reads and writes under way.
    requests: Cell<u32>,
}

/// A request under way, until dropped.
struct Request<'a>(&'a Cell<u32>);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<O: BlockDevice> Origin<O> {
    pub(crate) fn new(device: O, silence: Rc<Silence>, counters: Rc<Counters>) -> Rc<Self> {
        Rc::new(Self {
            device,
            silence,
            counters,
            locks: LineLocks::new(),
            // Writes of an earlier life may still be in the origin's cache.
            changes: Cell::new(1),
            direct_changes: Cell::new(1),
            durable: FlushOnce::default(),
            requests: Cell::new(0),
        })
    }

    pub(crate) fn device(&self) -> &O {
        &self.device
    }

    /// Whether the origin answers.
    pub(crate) fn silence(&self) -> &Rc<Silence> {
        &self.silence
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.device.limits()
    }

    /// The locks that order changes of lines.
    pub(crate) fn locks(&self) -> &LineLocks {
        &self.locks
    }

    /// Waits for the lines' turn to be changed.
    pub(crate) async fn lock(&self, first: Line, last: Line) -> LineGuard {
        self.locks.lock(first, last, Access::Exclusive).await
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
        add(&self.counters.origin_read_bytes, into.len() as u64);
        let _request = self.begin();
        self.device.read(at, into).await.inspect_err(|_| add(&self.counters.origin_errors, 1))
    }

    /// Writes what the log has, as dirty lines; the caller holds the locks of the lines.
    pub(crate) async fn destage(&self, at: Lba, data: Payload) -> IoResult<()> {
        add(&self.counters.origin_written_bytes, data.len() as u64);
        let _request = self.begin();
        let written = self.device.write(at, data, Durability::Cached).await;
        self.note_change();
        written.inspect_err(|_| add(&self.counters.origin_errors, 1))
    }

    /// Writes past the log; the caller holds the locks of the lines.
    pub(crate) async fn write(&self, at: Lba, data: Payload) -> IoResult<()> {
        let written = self.destage(at, data).await;
        self.note_direct();
        written
    }

    /// Discards a range; the caller holds the locks of the lines.
    pub(crate) async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let discarded = self.device.discard(range).await;
        self.note_change();
        self.note_direct();
        discarded
    }

    /// Zeroes a range; the caller holds the locks of the lines.
    pub(crate) async fn write_zeroes(&self, range: SectorRange) -> IoResult<()> {
        let zeroed = self.device.write_zeroes(range, Durability::Cached).await;
        self.note_change();
        self.note_direct();
        zeroed
    }

    /// A change has completed: only a flush submitted from now on covers it.
    fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// The change that has completed last is past the log: a client's flush must cover it.
    fn note_direct(&self) {
        self.direct_changes.set(self.changes.get());
    }

    /// Makes everything that has completed durable, if anything has.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) async fn flush(&self) -> IoResult<()> {
        self.flush_up_to(self.changes.get()).await
    }

    /// The same, unless the origin is silent; whether all is durable.
    pub(crate) async fn flush_unless_silent(&self) -> bool {
        let flush = pin!(self.flush());
        self.silence.released(flush, || true).await.is_some_and(|flushed| flushed.is_ok())
    }

    /// Makes everything durable that has completed past the log. Lines that are destaged meanwhile are
    /// dirty in the log until the cleaner's own flush.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) async fn flush_direct(&self) -> IoResult<()> {
        self.flush_up_to(self.direct_changes.get()).await
    }

    async fn flush_up_to(&self, change: u64) -> IoResult<()> {
        let flush = async |_| {
            let flushed = self.device.flush().await;
            flushed.inspect_err(|_| add(&self.counters.origin_errors, 1))
        };
        self.durable.until(change, || self.changes.get(), flush).await
    }

    /// A number that changes when somebody else writes to the origin.
    pub(crate) async fn fingerprint(&self, sectors: u64) -> IoResult<u64> {
        fingerprint(&self.device, sectors).await
    }
}
