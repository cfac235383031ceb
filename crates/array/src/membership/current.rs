//! The record of the members about the array, kept true while the array is in use.
//!
//! A member that is given up is out at once, in memory. No change is acknowledged before all others say
//! so durably, with a higher event count ([`barrier`](Membership::barrier)). So a start can tell a
//! member that comes back without the changes from those that have everything. Many requests that meet
//! one loss share one update.
//!
//! The next event is written only when all members in service have the event before. A start first writes
//! that event to the members that lack it. So a member that is one event behind the newest, and in service by
//! it, has everything that was acknowledged.
//!
//! A copy of a member says what the member said when the copy was made. A start and a stop in order raise the
//! event twice, when all that was acknowledged is durable on the members. So a copy that was made before the last
//! of them is at least two events behind, and no member any more.

use std::cell::{Cell, Ref, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{DriveControl, IoError, IoResult};
use voltier_ring::Signal;

use crate::canary::{self, Canary};
use crate::format::superblock::{ArrayRecord, Usage};
use crate::geometry::numbers::MemberIndex;
use crate::members::member_set::MemberSet;

/// Begins an update of the record, by a task of its own; false if the array is gone.
pub(crate) type BeginUpdate = Rc<dyn Fn() -> bool>;

/// Begins to bring the array back into service, by a task of its own.
pub(crate) type BeginRecovery = Rc<dyn Fn()>;

/// Holds requests up, or lets them go.
pub(crate) type Hold = Rc<dyn Fn(bool)>;

/// Runs with the event count of a record that is durable.
pub(crate) type AfterRecord = Rc<dyn Fn(u64) -> Pin<Box<dyn Future<Output = ()>>>>;

/// The right to update the record. The drop of a claim gives the right back, also when its task ends early.
pub(crate) struct UpdateClaim {
    membership: Rc<Membership>,
}

impl Drop for UpdateClaim {
    fn drop(&mut self) {
        self.membership.is_updating.set(false);
        self.membership.progress.notify();
    }
}

/// The members of the array, and what else their record says of it. A bare array says nothing, and
/// waits for nothing.
pub(crate) struct Membership {
    /// The record of the members; none of a bare array.
    record: Option<RefCell<ArrayRecord>>,
    /// The record that is being stored, or could not be stored on all members.
    stored_in_part: RefCell<Option<ArrayRecord>>,
    /// The use that the record is to name.
    usage: Cell<Usage>,
    /// Whether members may not be what the journal says they are to be.
    is_replay_due: Cell<bool>,
    /// Whether parity may not match although there is a journal.
    needs_resync: Cell<bool>,
    /// Since members refused what the array cannot do without, until all is right again.
    has_failed: Cell<bool>,
    /// Grows with everything the record does not say yet.
    changes: Cell<u64>,
    /// The changes that the record holds durably.
    stored: Cell<u64>,
    is_updating: Cell<bool>,
    progress: Signal,
    /// Too many members are lost, or one took no superblock and could not be left out.
    broken: Cell<Option<IoError>>,
    /// Members refused a change, so many that none was lost, and have not taken one since.
    refused: Cell<Option<IoError>>,
    /// Whether the record is to be stored even without news.
    is_due: Cell<bool>,
    /// Whether the array was stopped.
    is_closed: Cell<bool>,
    /// Of the array in service.
    begin_update: RefCell<Option<BeginUpdate>>,
    begin_recovery: RefCell<Option<BeginRecovery>>,
    hold: RefCell<Option<Hold>>,
    /// Why members may have dropped what they had, until a client has been told.
    unflushed: Cell<Option<IoError>>,
    /// Of the keeper of event counts, if there is one.
    after_record: RefCell<Option<AfterRecord>>,
}

impl Membership {
    /// The membership that a record says; that of a bare array without one.
    pub(crate) fn new(record: Option<ArrayRecord>) -> Self {
        let own = record.as_ref();
        let usage = own.map_or(Usage::InUse, |record| record.usage);
        Self {
            usage: Cell::new(usage),
            is_replay_due: Cell::new(usage == Usage::InUse),
            needs_resync: Cell::new(own.is_some_and(|record| record.needs_resync)),
            has_failed: Cell::new(false),
            record: record.map(RefCell::new),
            stored_in_part: RefCell::default(),
            changes: Cell::new(0),
            stored: Cell::new(0),
            is_updating: Cell::new(false),
            progress: Signal::new(),
            broken: Cell::new(None),
            refused: Cell::new(None),
            is_due: Cell::new(false),
            is_closed: Cell::new(false),
            begin_update: RefCell::default(),
            begin_recovery: RefCell::default(),
            hold: RefCell::default(),
            unflushed: Cell::new(None),
            after_record: RefCell::default(),
        }
    }

    /// Says who updates the record from now on.
    pub(crate) fn set_update(&self, begin_update: BeginUpdate) {
        self.begin_update.replace(Some(begin_update));
    }

    /// Says who brings the array back into service from now on when it has failed.
    pub(crate) fn set_recovery(&self, begin_recovery: BeginRecovery, hold: Hold) {
        self.begin_recovery.replace(Some(begin_recovery));
        self.hold.replace(Some(hold));
    }

    /// Holds requests up, once more, or once less.
    #[cold]
    pub(crate) fn hold(&self, is_held: bool) {
        let hold = self.hold.borrow().clone();
        hold.iter().for_each(|hold| hold(is_held));
    }

    /// Members may have dropped what no flush covers: the next flush of a client says so.
    pub(crate) fn note_unflushed(&self, error: IoError) {
        self.unflushed.set(Some(error));
    }

    /// # Errors
    /// Once, when members may have dropped what no flush covers.
    pub(crate) fn tell_unflushed(&self) -> IoResult<()> {
        self.unflushed.take().map_or(Ok(()), Err)
    }

    /// Members refused what the array cannot do without. The cause may pass: somebody looks for that.
    #[cold]
    pub(crate) fn note_failure(&self) {
        self.has_failed.set(true);
        let begin_recovery = self.begin_recovery.borrow().clone();
        begin_recovery.iter().for_each(|begin_recovery| begin_recovery());
    }

    /// Whether changes may be in place in part: no region is called clean meanwhile.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// What was in place in part is right again, or known to need a resync.
    pub(crate) fn is_right_again(&self) {
        self.has_failed.set(false);
    }

    /// So many members refuse changes that none is lost for it.
    #[cold]
    pub(crate) fn note_refused(&self, error: IoError) {
        self.refused.set(Some(error));
        self.note_failure();
    }

    /// Why no record can be stored, or no change done, any more.
    pub(crate) fn failure(&self) -> Option<IoError> {
        self.broken.get().or(self.refused.get())
    }

    /// The record is stored again, although it could not be. The failure stays until the members have shown
    /// that they take changes.
    pub(crate) fn try_again(&self) {
        self.refused.set(self.failure());
        self.broken.set(None);
    }

    /// The members take changes again.
    pub(crate) fn note_recovered(&self) {
        self.refused.set(None);
    }

    /// Says what is awaited from now on once a record of other members is durable.
    pub(crate) fn set_after_record(&self, after_record: AfterRecord) {
        self.after_record.replace(Some(after_record));
    }

    /// Waits until the keeper of event counts, if there is one, has that of the record.
    pub(crate) async fn count_kept(&self) {
        let after_record = self.after_record.borrow().clone();
        if let Some(after_record) = after_record {
            let event = self.now().event;
            after_record(event).await;
        }
    }

    /// Itself, unless the array is a bare one.
    pub(crate) fn durable(&self) -> Option<&Self> {
        self.is_durable().then_some(self)
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.record.is_some()
    }

    /// The record of the members.
    ///
    /// # Panics
    /// Of a bare array.
    pub(crate) fn record(&self) -> ArrayRecord {
        self.now().clone()
    }

    fn now(&self) -> Ref<'_, ArrayRecord> {
        self.record.as_ref().expect("an array with durable state").borrow()
    }

    /// The array's use as the record is to name it.
    pub(crate) fn usage(&self) -> Usage {
        self.usage.get()
    }

    /// Whether parity may not match although there is a journal.
    pub(crate) fn needs_resync(&self) -> bool {
        self.needs_resync.get()
    }

    /// Parity may not match from now on, until a resync has ended.
    pub(crate) fn resync_is_needed(&self) {
        self.needs_resync.set(true);
    }

    /// All parity matches, durably.
    pub(crate) fn resync_has_ended(&self) {
        self.needs_resync.set(false);
    }

    /// Says that something is true which the record does not say.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    pub(crate) fn set_usage(&self, usage: Usage) {
        self.usage.set(usage);
        self.note_change();
    }

    pub(crate) fn is_replay_due(&self) -> bool {
        self.is_replay_due.get()
    }

    /// Members may not be what the journal says they are to be.
    pub(crate) fn replay_is_due(&self) {
        self.is_replay_due.set(true);
    }

    pub(crate) fn replay_is_done(&self) {
        self.is_replay_due.set(false);
    }

    /// Has the record stored, with a further event, even without news: a member may be an event behind, or have
    /// one copy, and a copy of a member is told from the member by the events that it lacks.
    ///
    /// # Errors
    /// As [`recorded`](Self::recorded).
    pub(crate) async fn recorded_anew(&self) -> IoResult<()> {
        self.is_due.set(true);
        self.note_change();
        self.recorded().await
    }

    pub(crate) fn close(&self) {
        self.is_closed.set(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Waits until all members in service say durably what is true now: which of them are lost. To be
    /// awaited between a change of members and its acknowledgement, and before anything that relies on
    /// a member being out. Costs nothing when there is no news.
    ///
    /// # Errors
    /// When a member does not take its superblock and cannot be left out; `Gone` when the array is gone.
    pub(crate) async fn recorded(&self) -> IoResult<()> {
        if self.record.is_none() {
            return Ok(());
        }
        loop {
            if let Some(error) = self.broken.get() {
                return Err(error);
            }
            // The wait covers news that came meanwhile: a transaction begins without another wait.
            if self.stored.get() >= self.changes.get() {
                return Ok(());
            }
            let wait = self.progress.wait();
            if !self.begin_update() {
                // Nobody is there to record the loss: what waits for that does not happen.
                return Err(IoError::Gone);
            }
            wait.await;
        }
    }

    /// The barrier before an acknowledgement, and before anything that a lost member misses: every loss so
    /// far is durable when it returns.
    ///
    /// A journalled write awaits it four times. Each time a member may have been lost since the time before,
    /// and what follows relies on another thing:
    ///
    /// 1. before the record, which names the members that have a part (`Journal::begin`);
    /// 2. before the writes in place: a replay looks for the record in all rings that it names (the same);
    /// 3. before the end of the transaction, from which on no replay redoes it (`Journal::end`);
    /// 4. before the acknowledgement (`Array::write`).
    ///
    /// # Errors
    /// As [`recorded`](Self::recorded), of which this is the form for requests: a canary can leave it out.
    pub(crate) async fn barrier(&self) -> IoResult<()> {
        if canary::is(Canary::AnswerBeforeRecord) {
            return Ok(());
        }
        self.recorded().await
    }

    /// Has the news stored by a task, also when nobody waits for that; false if the array is gone.
    pub(crate) fn begin_update(&self) -> bool {
        let begin_update = self.begin_update.borrow().clone();
        begin_update.is_some_and(|begin_update| begin_update())
    }

    /// Takes the right to update the record; none if somebody has it.
    pub(crate) fn claim_update(self: &Rc<Self>) -> Option<UpdateClaim> {
        let is_free = self.is_durable() && !self.is_updating.replace(true);
        is_free.then(|| UpdateClaim { membership: self.clone() })
    }

    /// The changes that an update would make durable; none if there are none, or no update is possible.
    pub(crate) fn news(&self) -> Option<u64> {
        let changes = self.changes.get();
        (self.broken.get().is_none() && self.stored.get() < changes).then_some(changes)
    }

    /// Tells all who wait what became of an update up to a change.
    pub(crate) fn end_update(&self, changes: u64, result: IoResult<()>) {
        match result {
            Ok(()) => self.stored.set(changes),
            Err(error) => self.broken.set(Some(error)),
        }
        self.progress.notify();
        if result.is_err() {
            self.note_failure();
        }
    }

    /// Whether the record is to be stored even without news; asked once.
    pub(crate) fn take_due(&self) -> bool {
        self.is_due.replace(false)
    }

    /// A record is about to be stored.
    pub(crate) fn begin_store(&self, record: &ArrayRecord) {
        self.stored_in_part.replace(Some(record.clone()));
    }

    /// The record that some members may have taken and others refused, if there is one.
    pub(crate) fn stored_in_part(&self) -> Option<ArrayRecord> {
        self.stored_in_part.borrow().clone()
    }

    /// All members in service have this record.
    pub(crate) fn stored(&self, record: ArrayRecord) {
        self.stored_in_part.replace(None);
        if let Some(own) = &self.record {
            own.replace(record);
        }
    }

    /// Whether the record calls a device a member which gets no changes any more: the member is lost, or
    /// another device has its place. A start would believe the old device.
    pub(crate) fn has_unrecorded_loss<D>(&self, members: &MemberSet<D>) -> bool {
        if self.record.is_none() {
            return false;
        }
        let record = self.now();
        let is_used = |member| record.is_in_service(member) || record.is_rebuilding(member);
        let has_left = |member: MemberIndex| {
            let own = &members[member];
            !own.has_device() || own.uuid() != record[member].uuid
        };
        record.indexes().any(|member| is_used(member) && has_left(member))
    }

    /// Flushes every member; one that fails is lost, and on record as lost, or this fails.
    pub(crate) async fn flush<D: DriveControl>(&self, members: &Rc<MemberSet<D>>) -> IoResult<()> {
        members.flush().await?;
        self.barrier().await?;
        members.check_groups()
    }
}
