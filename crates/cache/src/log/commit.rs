//! The log as the parts of a cache use it: they queue changes, and wait until these are on the SSD.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll};

use voltier_block::{DriveControl, IoError, IoResult, Lba, Nanos, Payload};
use voltier_ring::Signal;

use crate::canary::{self, Canary};
use crate::clock::Clock;
use crate::devices::ssd::Ssd;
use crate::format::position::Position;
use crate::log::change::{Change, Sender};
use crate::log::form::{Formed, LogState, Unsettled};
use crate::log::in_flight::RecordPieces;
use crate::log::ordered::{Age, FlushPoint, Version};
use crate::map::contents::must;
use crate::map::shared::Map;
use crate::numbers::{Line, Segment, Slot};

/// The log of a cache in service.
pub(crate) struct Log<S> {
    state: RefCell<LogState>,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    clock: Rc<Clock>,
    /// Something was queued, or a record finished: the log may go on.
    work: Signal,
    /// Records were acknowledged, or the SSD was given up.
    progress: Signal,
    /// A flush of the SSD ended, or the SSD was given up. No `FlushOnce` of the ring: that keeps its waiters
    /// until the flush ends, which of a lost SSD may be never. The log also fails waiters whose records are
    /// durable when the SSD is lost, and the durable sequence has one owner, `LogState`.
    flushed: Signal,
    flushing: Cell<bool>,
    /// So often ordered mode began or ended.
    order_switches: Cell<u64>,
    /// Changes of clients wait for space that the cleaner or the reclaimer makes.
    lacks_space: Cell<bool>,
    /// There is no space for the cache's own changes either.
    is_full: Cell<bool>,
}

/// The flush that one task does for all, until dropped.
struct Flushing<S>(Rc<Log<S>>);

impl<S> Drop for Flushing<S> {
    fn drop(&mut self) {
        self.0.flushing.set(false);
        self.0.flushed.notify();
    }
}

impl<S: DriveControl> Log<S> {
    pub(crate) fn new(
        mut state: LogState,
        map: Rc<Map>,
        ssd: Rc<Ssd<S>>,
        clock: Rc<Clock>,
    ) -> Rc<Self> {
        state.begin_time(clock.now());
        Rc::new(Self {
            state: RefCell::new(state),
            map,
            ssd,
            clock,
            work: Signal::new(),
            progress: Signal::new(),
            flushed: Signal::new(),
            flushing: Cell::new(false),
            order_switches: Cell::new(0),
            lacks_space: Cell::new(false),
            is_full: Cell::new(false),
        })
    }

    /// Queues changes of a client's request; the number to wait for. A log that is given up takes
    /// none: nobody would ever take them out again.
    pub(crate) fn queue(&self, changes: impl IntoIterator<Item = Change>) -> u64 {
        self.push(changes, Sender::Client)
    }

    /// Queues changes of the cache's own, in the same way.
    pub(crate) fn queue_internal(&self, changes: impl IntoIterator<Item = Change>) -> u64 {
        self.push(changes, Sender::Cache)
    }

    fn push(&self, changes: impl IntoIterator<Item = Change>, sender: Sender) -> u64 {
        let mut number = 0;
        if self.ssd.takes_writes() {
            let mut state = self.state.borrow_mut();
            for change in changes {
                number = state.queues_mut().push(sender, change);
            }
        }
        self.work.notify();
        number
    }

    /// Waits until the client's change `number` is on the SSD's interface.
    ///
    /// # Errors
    /// `Gone` when the SSD takes no more writes before, and does not have the change durably.
    pub(crate) async fn acked(&self, number: u64) -> IoResult<()> {
        self.queue_acked(number, Sender::Client).await
    }

    /// The same for a client's last `count` changes. The log withdraws them when there is no space for them,
    /// and the request does not wait for space any more.
    ///
    /// # Errors
    /// `Medium` then; `Gone` when the SSD takes no more writes before.
    pub(crate) async fn acked_unless(
        &self,
        number: u64,
        count: u64,
        waits_no_more: impl Fn() -> bool,
    ) -> IoResult<()> {
        std::future::poll_fn(|context| {
            let ends = self.ssd.takes_writes() && self.lacks_space.get() && waits_no_more();
            if ends && self.state.borrow_mut().queues_mut().withdraw(number, count) {
                self.work.notify();
                return Poll::Ready(Err(IoError::Medium));
            }
            self.poll_acked(number, Sender::Client, context)
        })
        .await
    }

    /// Whether changes of clients wait for space that the cleaner or the reclaimer makes.
    pub(crate) fn lacks_space(&self) -> bool {
        self.lacks_space.get()
    }

    /// Has those who wait for changes to be acknowledged look whether they wait on.
    pub(crate) fn wake_waiters(&self) {
        self.state.borrow_mut().queues_mut().wake_all();
        self.progress.notify();
    }

    /// Waits until the cache's own change `number` is on the SSD's interface: the last of the news that the
    /// origin has all versions up to record `last_sequence`, 0 for none.
    ///
    /// The log may have no space for the news before more versions are there. Then a checkpoint is enough
    /// whose replay begins behind the record: no start writes those versions again in their order. The news
    /// stay queued, and the lines dirty.
    ///
    /// # Errors
    /// `Gone` when the SSD takes no more writes before.
    pub(crate) async fn news_acked(&self, number: u64, last_sequence: u64) -> IoResult<()> {
        std::future::poll_fn(|context| {
            let acked = self.poll_acked(number, Sender::Cache, context);
            let is_past = || {
                self.map.get().segments().replay_sequence() > last_sequence
                    && !canary::is(Canary::NewsWaitedFor)
            };
            if acked.is_pending() && last_sequence > 0 && self.is_full.get() && is_past() {
                return Poll::Ready(Ok(()));
            }
            acked
        })
        .await
    }

    async fn queue_acked(&self, number: u64, sender: Sender) -> IoResult<()> {
        std::future::poll_fn(|context| self.poll_acked(number, sender, context)).await
    }

    #[inline]
    fn poll_acked(&self, number: u64, sender: Sender, context: &Context<'_>) -> Poll<IoResult<()>> {
        if !self.ssd.takes_writes() {
            return self.poll_ended(number, sender, context);
        }
        let waker = context.waker();
        let is_acked = self.state.borrow_mut().queues_mut().is_acked(sender, number, waker);
        if is_acked { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The same of a log that has ended. Of what such a log acknowledged, only that counts which is durable:
    /// the rest may be lost with a flush that failed.
    #[cold]
    fn poll_ended(&self, number: u64, sender: Sender, context: &Context<'_>) -> Poll<IoResult<()>> {
        let mut state = self.state.borrow_mut();
        let is_durable = state.durable_sequence() >= state.acked_sequence();
        let is_acked = state.queues_mut().is_acked(sender, number, context.waker());
        // A log that takes nothing gives no number.
        if number == 0 || self.ssd.failed() {
            Poll::Ready(Err(IoError::Gone))
        } else if is_acked && is_durable {
            Poll::Ready(Ok(()))
        } else if state.records_in_flight() > 0 {
            state.queues_mut().wait(sender, number, context.waker());
            Poll::Pending
        } else {
            Poll::Ready(Err(IoError::Gone))
        }
    }

    /// Whether every record formed so far is on the SSD's interface, and the SSD takes more.
    pub(crate) fn has_acked_all(&self) -> bool {
        let state = self.state.borrow();
        state.acked_sequence() >= state.next_sequence() && self.ssd.takes_writes()
    }

    /// Waits until every record formed so far is on the SSD's interface.
    pub(crate) async fn all_acked(&self) -> IoResult<()> {
        let formed = self.state.borrow().next_sequence();
        self.progress
            .until(|| {
                let is_acked = self.state.borrow().acked_sequence() >= formed;
                is_acked || (!self.ssd.takes_writes() && !self.settles())
            })
            .await;
        if self.ssd.takes_writes() { Ok(()) } else { Err(IoError::Gone) }
    }

    /// Waits until every record that is acknowledged now is on the SSD's medium.
    ///
    /// One flush serves all who wait for it. The flush goes on when nobody waits any more: its error is told
    /// to nobody else.
    ///
    /// # Errors
    /// The SSD's; it takes no more writes then, because what it acknowledged may be lost.
    pub(crate) async fn make_durable(self: &Rc<Self>) -> IoResult<()> {
        let wanted = self.state.borrow().acked_sequence();
        loop {
            if self.ssd.failed() {
                return Err(IoError::Gone);
            }
            if self.state.borrow().durable_sequence() >= wanted {
                return Ok(());
            }
            if self.flushing.replace(true) {
                self.flushed.wait().await;
                continue;
            }
            let flushing = Flushing(self.clone());
            self.ssd.handle().finish(async move { flushing.0.flush().await }).await?;
        }
    }

    async fn flush(&self) -> IoResult<()> {
        let covers = self.state.borrow().acked_sequence();
        let skipped = canary::is(Canary::FlushSkipped);
        let flushed = if skipped { Ok(()) } else { self.ssd.flush().await };
        flushed?;
        self.state.borrow_mut().note_durable(covers);
        // Records may wait for it.
        self.work.notify();
        Ok(())
    }

    /// Forms the next record if one is due.
    pub(super) fn form_next(&self) -> Option<Formed> {
        let mut state = self.state.borrow_mut();
        let formed = state.wants_record().then(|| {
            state.set_now(self.clock.now());
            state.form_record(&mut self.map.change())
        });
        let is_blocked = matches!(formed, Some(Formed::Blocked)) && !state.wants_flush();
        self.is_full.set(is_blocked && state.queues().has_internal());
        let lacked = self.lacks_space.get();
        self.lacks_space.set(match formed {
            Some(Formed::Blocked) => !state.wants_flush(),
            Some(_) => false,
            None => lacked && !state.has_space(&self.map.get()),
        });
        if lacked && !self.lacks_space.get() {
            self.progress.notify();
        }
        formed
    }

    /// Whether records wait for a flush, and none is under way.
    pub(super) fn lacks_flush(&self) -> bool {
        self.state.borrow().wants_flush() && !self.flushing.get()
    }

    /// The write of a record failed; it may be tried again.
    pub(super) fn note_failed(&self, sequence: u64, pieces: RecordPieces) {
        self.state.borrow_mut().note_failed(sequence, pieces);
    }

    /// The writes of a record whose write failed, once more; `None` if the log has ended.
    pub(super) fn runs_again(&self, sequence: u64) -> Option<Vec<(Lba, Payload)>> {
        let is_open = self.ssd.takes_writes();
        is_open.then(|| self.state.borrow_mut().runs_again(sequence)).flatten()
    }

    /// A record is on the SSD's interface.
    pub(super) fn record_done(&self, sequence: u64) {
        self.state.borrow_mut().record_done(sequence, &mut self.map.change());
    }

    /// A record of a log that has ended was written after all.
    pub(super) fn note_written(&self, sequence: u64) {
        self.state.borrow_mut().note_written(sequence);
    }

    /// Whether the log has ended, and nobody knows yet what becomes of the records on their way.
    pub(crate) fn settles(&self) -> bool {
        !self.ssd.takes_writes() && self.records_in_flight() > 0
    }

    /// Whether writes of records are under way.
    pub(super) fn has_writes(&self) -> bool {
        self.state.borrow().has_writes()
    }

    /// Every record that is acknowledged now is on the SSD's medium.
    pub(super) fn note_acked_durable(&self) {
        let mut state = self.state.borrow_mut();
        let acked = state.acked_sequence();
        state.note_durable(acked);
    }

    /// The oldest record of a log that has ended, if nobody knows yet what becomes of the record.
    pub(super) fn oldest_unsettled(&self) -> Option<Unsettled> {
        self.state.borrow().oldest_unsettled()
    }

    /// The SSD has all of the oldest record durably: a replay takes the record.
    pub(super) fn settle_oldest(&self) {
        self.state.borrow_mut().settle_oldest(&mut self.map.change());
    }

    /// Frees the segments that can be freed, and tells the writer of records.
    pub(super) fn free_prepared(&self) {
        let durable = self.state.borrow().durable_sequence();
        let mut contents = self.map.change();
        let before = contents.segments().free_count();
        contents.segments_mut().collect(durable);
        if contents.segments().free_count() > before {
            self.work.notify();
        }
    }

    /// The SSD takes no more writes: what no record has taken is dropped.
    pub(crate) fn end(&self) {
        self.state.borrow_mut().end();
    }

    /// The SSD does not have the records on their way: what no acknowledged record tells of is undone.
    pub(super) fn undo(&self) {
        self.state.borrow_mut().undo(&mut self.map.change());
    }

    /// Dirty lines of which the SSD has acknowledged something: what its loss would take.
    pub(crate) fn dirty_if_lost(&self) -> u64 {
        self.state.borrow().dirty_if_lost(&self.map.get())
    }

    /// Slots whose data a power cut may take, although their records are acknowledged.
    pub(crate) fn slots_not_durable(&self) -> BTreeSet<Slot> {
        self.state.borrow().slots_not_durable()
    }

    /// The SSD is lost: nobody will be acknowledged any more. Whether acknowledged records were not
    /// durable.
    pub(crate) fn abandon(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let unflushed = state.durable_sequence() < state.acked_sequence();
        state.abandon(&mut self.map.change());
        unflushed
    }

    /// Has the writer of records look again.
    pub(crate) fn notify_work(&self) {
        self.work.notify();
    }

    pub(super) fn work(&self) -> impl Future<Output = ()> + '_ {
        self.work.wait()
    }

    /// Wakes those who wait for records to be acknowledged.
    pub(crate) fn notify_progress(&self) {
        self.progress.notify();
    }

    /// Completes when records are acknowledged after this call, or the SSD is given up.
    pub(crate) fn progress(&self) -> impl Future<Output = ()> + '_ {
        self.progress.wait()
    }

    /// Waits until `condition` holds, checking whenever records are acknowledged.
    pub(crate) async fn until(&self, condition: impl FnMut() -> bool) {
        self.progress.until(condition).await;
    }

    /// Wakes those who wait for a flush.
    pub(crate) fn notify_flushed(&self) {
        self.flushed.notify();
    }

    /// A flush of a client is complete: what comes later is of the next epoch.
    pub(crate) fn end_epoch(&self) {
        let mut state = self.state.borrow_mut();
        state.set_now(self.clock.now());
        state.end_epoch();
    }

    /// Nothing is queued, and no record is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.borrow();
        state.queues().is_empty() && state.records_in_flight() == 0
    }

    pub(crate) fn records_in_flight(&self) -> usize {
        self.state.borrow().records_in_flight()
    }

    /// Bytes of clients' changes that wait for the log.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.state.borrow().queues().client_bytes()
    }

    /// Lines from `first` to `last` that changes of clients bring in which wait for the log.
    pub(crate) fn queued_lines(&self, first: Line, last: Line) -> Vec<Line> {
        self.state.borrow().queues().lines_between(first, last).collect()
    }

    /// Whether changes of clients that bring lines from `first` to `last` in wait for the log.
    pub(crate) fn has_queued(&self, first: Line, last: Line) -> bool {
        self.state.borrow().queues().lines_between(first, last).next().is_some()
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.state.borrow().uuid()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.state.borrow().generation()
    }

    /// Number of the next record.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.state.borrow().next_sequence()
    }

    /// Records and their entries since the beginning of the last replay.
    pub(super) fn totals(&self) -> (u64, u64) {
        self.state.borrow().totals()
    }

    /// The segment in which the next record goes.
    pub(super) fn segment(&self) -> Segment {
        self.state.borrow().position().segment
    }

    /// Where a replay must begin.
    pub(super) fn replay_point(&self) -> (u64, Position) {
        self.state.borrow().replay_point()
    }

    /// Clears the fills that are queued: a cache that stops does not need them.
    pub(crate) fn forget_fills(&self) {
        self.state.borrow_mut().queues_mut().forget_fills();
    }

    /// The cleaner has ended: clients' changes may take the last segments.
    pub(crate) fn open_reserve(&self) {
        self.state.borrow_mut().open_reserve();
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.state.borrow().order().is_kept()
    }

    /// So often ordered mode began or ended. Of a version that was chosen before, nobody knows what came
    /// after: a direct write may have.
    pub(crate) fn order_switches(&self) -> u64 {
        self.order_switches.get()
    }

    /// Begins or ends ordered mode.
    pub(crate) fn set_ordered(&self, ordered: bool) {
        self.order_switches.set(self.order_switches.get() + 1);
        self.state.borrow_mut().order_mut().keep(ordered);
    }

    /// Whether versions wait for their order.
    pub(crate) fn order_waits(&self) -> bool {
        self.state.borrow().order().waits()
    }

    /// Whether the origin has every version of records before this one, while later ones wait.
    pub(crate) fn order_is_past(&self, sequence: u64) -> bool {
        self.state.borrow().order().oldest().is_some_and(|(oldest, _)| oldest >= sequence)
    }

    /// The age of the oldest acknowledged write that the origin lacks, as far as it is in the order.
    pub(crate) fn oldest_age(&self, now_ns: Nanos) -> Option<Age> {
        self.state.borrow().oldest_age(now_ns)
    }

    /// The same, or that of the oldest one on its way to the SSD.
    pub(crate) fn order_age(&self, now_ns: Nanos) -> Option<Age> {
        self.state.borrow().order().oldest_age(u64::MAX, now_ns)
    }

    /// The newest flush that the origin has; none before the first, and without an order.
    pub(crate) fn shipped_flush(&self) -> Option<FlushPoint> {
        self.state.borrow().shipped_flush()
    }

    /// Versions of the oldest epoch, about `lines_max`, and the last record among them.
    pub(crate) fn oldest_epoch(&self, lines_max: usize) -> Option<(BTreeMap<Line, Version>, u64)> {
        let state = self.state.borrow();
        // Of a log that has ended only what is durable is written out for as long as a start may replay it.
        let all = self.ssd.takes_writes() || !self.ssd.may_be_replayed();
        let below = if all { state.acked_sequence() } else { state.durable_sequence() };
        let batch = state.order().batch(below, lines_max)?;
        Some((batch.versions, batch.last_sequence))
    }

    /// The origin has everything of the order up to this record.
    pub(crate) fn order_written(&self, last_sequence: u64) {
        self.state.borrow_mut().order_mut().written(last_sequence);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.state.borrow().order().memory_bytes()
    }

    /// Checks that nothing is queued and no record is on its way.
    ///
    /// # Errors
    /// A sentence that names what is.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let state = self.state.borrow();
        must(state.records_in_flight() == 0, || "records are on their way".to_owned())?;
        let (user, internal) = state.queues().counts();
        must(user + internal == 0, || {
            format!(
                "{user} changes of clients and {internal} of its own wait for the log ({:?})",
                self.ssd.health()
            )
        })
    }
}
