//! What the members say of the array, kept true while it is in use.
//!
//! A member that is given up is out at once, in memory. No change is acknowledged before all others say
//! so durably, with a higher event count ([`settled`](Inner::settled)): whoever comes back without
//! them can be told from those who have everything. Many requests that meet one loss share one writing.
//!
//! The next event is written only when all members in service have the one before it; a start tells it first
//! to those that lack it. So a member that is one event behind the newest, and in service by it, has
//! everything that was acknowledged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, IoResult};
use voltier_ring::Signal;

use crate::array::Inner;
use crate::canary::{self, Canary};
use crate::copies::{dismiss, write_superblock};
use crate::journal::device::{JournalRecord, JournalState};
use crate::marks::Marks;
use crate::members::{Member, together};
use crate::superblock::{ArrayRecord, MemberRecord, MemberState, Superblock, Usage};

/// The durable state of an array in service.
pub(crate) struct Durable {
    /// What the members say.
    record: RefCell<ArrayRecord>,
    /// What the record is to say of its use.
    usage: Cell<Usage>,
    /// And of the journal's device; the event of a change is the record's.
    journal: Cell<Option<JournalRecord>>,
    /// Whether members may not be what the journal says they are to be.
    is_replay_due: Cell<bool>,
    /// Whether parity may not match although there is a journal.
    is_in_doubt: Cell<bool>,
    /// Grows with everything the record does not say yet.
    changes: Cell<u64>,
    /// The changes that it says durably.
    stored: Cell<u64>,
    is_storing: Cell<bool>,
    progress: Signal,
    /// Too many members are lost, or one took no superblock and could not be left out.
    broken: Cell<Option<IoError>>,
    /// Whether the record is to be stored even if it says nothing new.
    is_due: Cell<bool>,
    /// Whether the array was stopped.
    is_closed: Cell<bool>,
    pub(crate) is_resyncing: Cell<bool>,
    pub(crate) resync_ended: Signal,
    pub(crate) marks: Marks,
}

impl Durable {
    pub(crate) fn new(record: ArrayRecord, marks: Marks) -> Self {
        Self {
            usage: Cell::new(record.usage),
            journal: Cell::new(record.journal_device),
            is_replay_due: Cell::new(record.usage == Usage::InUse),
            is_in_doubt: Cell::new(record.is_in_doubt),
            record: RefCell::new(record),
            changes: Cell::new(0),
            stored: Cell::new(0),
            is_storing: Cell::new(false),
            progress: Signal::new(),
            broken: Cell::new(None),
            is_due: Cell::new(false),
            is_closed: Cell::new(false),
            is_resyncing: Cell::new(false),
            resync_ended: Signal::new(),
            marks,
        }
    }

    pub(crate) fn record(&self) -> ArrayRecord {
        self.record.borrow().clone()
    }

    /// Says that something is true which the record does not say.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    pub(crate) fn set_usage(&self, usage: Usage) {
        self.usage.set(usage);
        self.note_change();
    }

    pub(crate) fn journal(&self) -> Option<JournalRecord> {
        self.journal.get()
    }

    /// The journal is on this device from now on, or on the members.
    pub(crate) fn set_journal(&self, device: Option<[u8; 16]>) {
        let state = JournalState::InService;
        let record = |uuid| JournalRecord { uuid, state, since_event: 0 };
        self.journal.set(device.map(record));
        self.note_change();
    }

    /// The journal was on a device, and is on the members from now on.
    pub(crate) fn lose_journal(&self) {
        let lost = |it| JournalRecord { state: JournalState::Lost, ..it };
        self.journal.set(self.journal.get().map(lost));
        self.note_change();
    }

    pub(crate) fn is_replay_due(&self) -> bool {
        self.is_replay_due.get()
    }

    pub(crate) fn replay_is_done(&self) {
        self.is_replay_due.set(false);
    }

    /// Has the record stored whatever it says: a member may be an event behind, or have one copy.
    pub(crate) fn must_store(&self) {
        self.is_due.set(true);
        self.note_change();
    }

    pub(crate) fn close(&self) {
        self.is_closed.set(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }
}

impl<D: BlockDevice> Inner<D> {
    /// Waits until all members in service say durably what is true now: which of them are lost. To be
    /// awaited between a change of members and its acknowledgement, and before anything that relies on
    /// a member being out. Costs nothing when there is no news.
    ///
    /// # Errors
    /// When a member does not take its superblock and cannot be left out.
    pub(crate) async fn settled(self: &Rc<Self>) -> IoResult<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        loop {
            if let Some(error) = durable.broken.get() {
                return Err(error);
            }
            // Also what became news while it waited: a transaction is begun without waiting again.
            if durable.stored.get() >= durable.changes.get() {
                return Ok(());
            }
            let wait = durable.progress.wait();
            self.begin_to_store();
            wait.await;
        }
    }

    /// Has the news stored by a task of its own, if none is at it: it goes on when nobody waits.
    pub(crate) fn begin_to_store(self: &Rc<Self>) {
        let Some(durable) = &self.durable else { return };
        if !durable.is_storing.replace(true) {
            let inner = self.clone();
            drop(self.handle.spawn(async move { inner.store_news().await }));
        }
    }

    async fn store_news(self: Rc<Self>) {
        let Some(durable) = &self.durable else { return };
        while durable.broken.get().is_none() && durable.stored.get() < durable.changes.get() {
            let changes = durable.changes.get();
            match self.store_record().await {
                Ok(()) => durable.stored.set(changes),
                Err(error) => durable.broken.set(Some(error)),
            }
            durable.progress.notify();
        }
        durable.is_storing.set(false);
        durable.progress.notify();
        self.watch.tell();
        self.begin_to_use_spares();
    }

    /// Tells the members who they are.
    pub(crate) fn name_members(&self, record: &ArrayRecord) {
        for (member, record) in self.members.iter().zip(&record.members) {
            member.set_uuid(record.uuid);
        }
    }

    /// Members that are lost, and not on record as such.
    pub(crate) fn has_unrecorded_loss(&self) -> bool {
        let Some(durable) = &self.durable else { return false };
        let record = durable.record.borrow();
        let is_used = |member| record.is_in_service(member) || record.is_rebuilding(member);
        (0..record.members.len())
            .any(|member| is_used(member) && !self.members[member].has_device())
    }

    /// Whether something is in doubt that the journal does not settle. Before nothing is, what was made to
    /// match is durable.
    async fn is_in_doubt_on_record(self: &Rc<Self>, durable: &Durable) -> IoResult<bool> {
        let is_in_doubt = durable.is_in_doubt.get() && durable.marks.next_in_doubt(0).is_some();
        if durable.record().is_in_doubt && !is_in_doubt {
            self.flush_members().await?;
        }
        Ok(is_in_doubt)
    }

    async fn store_record(self: &Rc<Self>) -> IoResult<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        self.leave_failing_device().await?;
        // Members often go together, with their shelf. Nothing is acknowledged any more without those
        // that cannot be spared: then none of them is lost on record, and all may come back.
        if self.has_unrecorded_loss() {
            self.flush_members().await?;
        }
        self.check_groups()?;
        let mut next = durable.record();
        next.event += u64::from(!canary::is(Canary::EventNotRaised));
        next.usage = durable.usage.get();
        let is_grown = next.geometry != self.geometry;
        if is_grown {
            next.geometry = self.geometry.clone();
            let (known, since_event) = (next.members.len(), next.event);
            let added = self.members[known..].iter().map(Member::uuid);
            let state = MemberState::Absent;
            next.members.extend(added.map(|uuid| MemberRecord { uuid, state, since_event }));
        }
        let mut is_news = durable.is_due.replace(false)
            || is_grown
            || next.usage != durable.record.borrow().usage;
        let journal = durable.journal.get();
        let is_same = |one: JournalRecord, other: JournalRecord| {
            (one.uuid, one.state) == (other.uuid, other.state)
        };
        let is_as_before = match (journal, next.journal_device) {
            (Some(now), Some(before)) => is_same(now, before),
            (now, before) => now.is_none() && before.is_none(),
        };
        if !is_as_before {
            let since_event = next.event;
            next.journal_device = journal.map(|it| JournalRecord { since_event, ..it });
            is_news = true;
        }
        next.is_in_doubt = self.is_in_doubt_on_record(durable).await?;
        let reshape = self.moving.as_ref().map(|moving| moving.record());
        is_news |= next.reshape != reshape;
        next.reshape = reshape;
        let (mut is_loss, mut is_join) = (false, is_grown);
        for (member, record) in self.members.iter().zip(&mut next.members) {
            let (state, uuid) = (member.state(record.state), member.uuid());
            if (record.state, record.uuid) != (state, uuid) {
                is_loss |= record.state == MemberState::InService && state != record.state;
                is_join |= record.uuid != uuid || state == MemberState::Rebuilding;
                (record.state, record.uuid, record.since_event) = (state, uuid, next.event);
                is_news = true;
            }
        }
        if !is_news {
            return Ok(());
        }
        if is_loss {
            // First: a member that the record calls lost comes back by the regions that are marked.
            self.mark_what_may_be_missing().await?;
        }
        if is_join && !canary::is(Canary::JoinBeforeMap) {
            // First: what it lacks is known before anybody takes it for a member.
            self.store_whole_map().await?;
        }
        let before = durable.record();
        let is_new = |member: &usize| {
            before.members.get(*member).map(|it| it.uuid) != Some(next.members[*member].uuid)
        };
        // Before any member says that it has the journal, or may be started without it.
        self.write_journal_label(&next).await;
        // Nobody is sent away on record before the one in his place can be known by his.
        let (new, old): (Vec<usize>, Vec<usize>) = (0..next.members.len()).partition(is_new);
        self.write_record(&next, new.clone()).await?;
        self.write_record(&next, old).await?;
        // Not earlier: until they say so, whoever is lost would be believed.
        durable.record.replace(next);
        self.dismiss_departed(&before, new).await;
        Ok(())
    }

    /// Tells devices that made place for their copies that they are out.
    async fn dismiss_departed(&self, before: &ArrayRecord, members: Vec<usize>) {
        for member in members {
            let Some((device, uuid)) = self.members[member].take_departed() else { continue };
            let mut array = before.clone();
            array.members[member].uuid = uuid;
            let device_sectors = device.limits().sectors;
            dismiss(&*device, Superblock { array, member, device_sectors }).await;
        }
    }

    /// Writes the record to those members that it speaks of as such. Who does not take it is lost, which
    /// is news.
    async fn write_record(
        self: &Rc<Self>,
        record: &ArrayRecord,
        members: Vec<usize>,
    ) -> IoResult<()> {
        let is_used =
            |member: &usize| record.is_in_service(*member) || record.is_rebuilding(*member);
        let used = members.into_iter().filter(is_used);
        let writes = used.map(|member| self.clone().write_own(member, record.clone()));
        let results = together(&self.handle, writes.collect()).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.check_groups()
    }

    async fn write_own(self: Rc<Self>, member: usize, array: ArrayRecord) -> IoResult<()> {
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        if self.members[member].uuid() != array.members[member].uuid {
            // It came when the record was on its way: the next one is about it.
            return Ok(());
        }
        let device_sectors = device.limits().sectors;
        self.counters.add(|counts| counts.metadata_writes += 2);
        let superblock = Superblock { array, member, device_sectors };
        let mut result = write_superblock(&*device, &superblock).await;
        if let Err(error) = result
            && self.may_try_again(member, &device, error)
        {
            result = write_superblock(&*device, &superblock).await;
        }
        self.settle(member, &device, result)
    }

    /// Whether a member is out, or does not have all of it yet: what is written now must be known
    /// when it comes back.
    pub(crate) fn is_degraded(&self) -> bool {
        self.members.iter().any(|member| !member.is_online())
    }
}
