//! Where transactions are recorded, and the tasks that write there: batches, labels, the watermark.
//!
//! Records go to the rings of the members, or all of them to that of a device of its own. The members'
//! rings are there in either case, empty while a device takes the records. When the device is lost,
//! what is in place is flushed, the members' rings are labelled as the newest, and the members say
//! durably that the device is out. Only then does the array acknowledge or write in place again.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoError, IoResult, Lba, Payload, SECTOR_BYTES};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::errors::journal::JournalError;
use crate::format::journal_label::{JournalLabel, JournalRecord, JournalState, ring_place};
use crate::format::journal_place::{JournalPlace, device_ring_sectors_min};
use crate::format::journal_record::{
    BatchPlace, Entry, Label, RingIndex, Start, batch_blocks, encode_batch,
};
use crate::format::superblock::ArrayRecord;
use crate::journal::ledger::{Content, Ledger, Pending};
use crate::members::label_copies::write_label;
use crate::members::long_transfer::write_long;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;

/// A device that takes the records of all members.
pub(crate) struct JournalDevice<D> {
    pub(crate) device: Rc<D>,
    pub(crate) uuid: [u8; 16],
    pub(crate) place: JournalPlace,
    /// The device did not take a write; the journal is to leave it.
    is_failing: Cell<bool>,
}

impl<D: BlockDevice> JournalDevice<D> {
    pub(crate) fn new(device: D, label: &JournalLabel) -> Self {
        let (uuid, place) = (label.uuid, label.place());
        Self { device: Rc::new(device), uuid, place, is_failing: Cell::new(false) }
    }
}

/// The label of a device that is to have the journal of this array.
///
/// # Errors
/// When it does not suit.
pub(crate) fn label_for<D: BlockDevice>(
    array: &ArrayRecord,
    device: &D,
    uuid: [u8; 16],
    block_bytes: u32,
) -> Result<JournalLabel, JournalError> {
    if array.places.journal.is_empty() {
        return Err(JournalError::NoJournal);
    }
    let limits = device.limits();
    let (place, needed) = (ring_place(limits.sectors), device_ring_sectors_min(&array.geometry));
    if place.sectors < needed {
        // The ring, what is before it, and the copy behind it.
        let needed_kib = (needed + place.start.0 + 8) / 2;
        return Err(JournalError::TooSmall { has_kib: limits.sectors / 2, needed_kib });
    }
    if limits.block_bytes > block_bytes {
        return Err(JournalError::Blocks { has: limits.block_bytes, array: block_bytes });
    }
    if limits.read_only {
        return Err(JournalError::ReadOnly);
    }
    if device.under_way().count() > 0 {
        return Err(JournalError::Undrained);
    }
    if array.journal_device.is_some_and(|journal| journal.uuid == uuid) {
        return Err(JournalError::Uuid);
    }
    Ok(JournalLabel {
        array: array.uuid,
        name: array.name.clone(),
        uuid,
        event: array.event,
        device_sectors: limits.sectors,
        ring_sectors: place.sectors,
    })
}

/// Where the rings are: on the members, and on a device of the journal's own.
pub(crate) struct Placement<D> {
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    /// The device that takes the journal's records; none while they are on the members.
    device: RefCell<Option<JournalDevice<D>>>,
    /// Empty without redundancy, and until the journal is begun.
    ledger: OnceCell<Ledger>,
}

impl<D: BlockDevice> Placement<D> {
    pub(crate) fn new(members: &Rc<MemberSet<D>>, membership: &Rc<Membership>) -> Self {
        Self {
            members: members.clone(),
            membership: membership.clone(),
            device: RefCell::default(),
            ledger: OnceCell::new(),
        }
    }

    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        self.ledger.get()
    }

    /// The ledger of an array with a journal that was begun.
    pub(super) fn in_service(&self) -> &Ledger {
        self.ledger.get().expect("only an array with a journal has rings")
    }

    /// Begins the journal. Once.
    pub(super) fn begin(&self, ledger: Ledger) {
        assert!(self.ledger.set(ledger).is_ok(), "an array has one journal");
    }

    /// Puts another device in the place of the one that takes the records.
    pub(super) fn replace_device(
        &self,
        device: Option<JournalDevice<D>>,
    ) -> Option<JournalDevice<D>> {
        self.device.replace(device)
    }

    /// Where the ring of the journal's own device is.
    pub(super) fn device_place(&self) -> Option<JournalPlace> {
        self.device.borrow().as_ref().map(|device| device.place)
    }

    /// Whether a device takes the records, or is about to be left.
    pub(crate) fn is_on_device(&self) -> bool {
        self.device.borrow().is_some()
    }

    pub(super) fn is_device_failing(&self) -> bool {
        self.device.borrow().as_ref().is_some_and(|it| it.is_failing.get())
    }

    /// The device of a ring: a member's, or the journal's own.
    ///
    /// # Errors
    /// `Gone` when it is lost.
    pub(crate) fn device_of_ring(&self, ring: RingIndex) -> IoResult<Rc<D>> {
        if let Some(member) = ring.entry_in(&self.members) {
            return member.device();
        }
        let journal = self.device.borrow();
        let in_use = journal.as_ref().filter(|journal| !journal.is_failing.get());
        in_use.map(|journal| journal.device.clone()).ok_or(IoError::Gone)
    }

    /// The consequence of a failed write to a ring: its member is lost, or the journal leaves its
    /// device.
    pub(crate) fn lose_ring_on_error(
        &self,
        ring: RingIndex,
        device: &Rc<D>,
        result: IoResult<()>,
    ) -> IoResult<()> {
        if let Some(member) = ring.member() {
            return self.members.lose_on_error(member, device, result);
        }
        if result.is_err() {
            self.lose_device(device);
        }
        Ok(())
    }

    /// Rings that take records.
    pub(crate) fn rings_in_use(&self) -> Vec<RingIndex> {
        if self.is_on_device() {
            return vec![RingIndex::DEVICE];
        }
        let online = self.members.indexes().filter(|member| self.members[*member].is_online());
        online.map(RingIndex::of).collect()
    }

    pub(crate) fn lose_device(&self, device: &Rc<D>) {
        let journal = self.device.borrow();
        let Some(journal) = journal.as_ref().filter(|it| Rc::ptr_eq(&it.device, device)) else {
            return;
        };
        if journal.is_failing.replace(true) {
            return;
        }
        self.membership.note_change();
        if let Some(journal) = self.ledger() {
            journal.notify();
        }
    }

    /// The device of an array that is being put together; none if it has none, or it is not there.
    pub(crate) fn take_device(&self, device: Option<(D, JournalLabel)>, is_lost: bool) {
        if let Some((device, label)) = device {
            self.device.replace(Some(JournalDevice::new(device, &label)));
        } else if is_lost && let Some(durable) = self.membership.durable() {
            durable.lose_journal();
        }
    }

    /// Tells the journal device the newest event, if there is one in service.
    pub(crate) async fn write_device_label(self: &Rc<Self>, record: &ArrayRecord) {
        let Some((device, uuid, place)) =
            self.device.borrow().as_ref().and_then(|it| {
                (!it.is_failing.get()).then(|| (it.device.clone(), it.uuid, it.place))
            })
        else {
            return;
        };
        let label = JournalLabel {
            array: record.uuid,
            name: record.name.clone(),
            uuid,
            event: record.event,
            device_sectors: device.limits().sectors,
            ring_sectors: place.sectors,
        };
        self.members.counters().add(|counts| counts.metadata_writes += 2);
        if write_label(&*device, &label).await.is_err() {
            self.lose_device(&device);
        }
    }

    /// The state of the journal device now: also what is not on record yet.
    pub(crate) fn record_now(&self) -> Option<JournalRecord> {
        let record = self.membership.durable()?.journal()?;
        let in_use = self.device.borrow();
        let is_failing = in_use.as_ref().is_none_or(|it| it.is_failing.get());
        let state = if is_failing { JournalState::Lost } else { JournalState::InService };
        Some(JournalRecord { state, ..record })
    }
}

/// The tasks that write to the rings.
pub(crate) struct JournalWriter<D> {
    handle: Handle,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    placement: Rc<Placement<D>>,
}

impl<D: BlockDevice> JournalWriter<D> {
    pub(super) fn new(
        handle: &Handle,
        members: &Rc<MemberSet<D>>,
        membership: &Rc<Membership>,
        placement: &Rc<Placement<D>>,
    ) -> Self {
        Self {
            handle: handle.clone(),
            members: members.clone(),
            membership: membership.clone(),
            placement: placement.clone(),
        }
    }

    /// Writes what waits for a ring, batch after batch: what arrives while one is on its way
    /// goes out with the next.
    pub(super) async fn write_queue(self: Rc<Self>, ring: RingIndex) {
        loop {
            let journal = self.placement.in_service();
            let batch = journal.ring(ring).borrow_mut().take_batch();
            if batch.is_empty() {
                journal.progress.notify();
                return;
            }
            let device = self.placement.device_of_ring(ring);
            if let Err(error) = self.write_batch(ring, &batch).await {
                // Without its ring a member is of no use: it is lost, or the journal is.
                if let (Ok(device), Ok(())) = (device, journal.check()) {
                    let left = self.placement.lose_ring_on_error(ring, &device, Err(error));
                    left.unwrap_or_else(|error| journal.fail(error));
                }
                let waiting = journal.ring(ring).borrow_mut().close();
                drop(waiting);
            }
            drop(batch);
        }
    }

    async fn write_batch(self: &Rc<Self>, ring: RingIndex, batch: &[Pending]) -> IoResult<()> {
        let journal = self.placement.in_service();
        let data: Vec<_> = batch
            .iter()
            .flat_map(|pending| match &pending.content {
                Content::Data(data) => data.pieces(),
                Content::Zeroes { .. } => &[],
            })
            .cloned()
            .collect();
        let bytes: usize = data.iter().map(|piece| piece.len()).sum();
        let blocks = batch_blocks(bytes as u64 / SECTOR_BYTES);
        let block = self.make_room(ring, blocks).await?;
        let entries: Vec<Entry> = batch.iter().map(Pending::entry).collect();
        let last_number = batch.last().map_or(0, |last| last.number);
        let watermark = journal.transactions.borrow().watermark;
        let (place, range, is_half_full) = {
            let mut ring = journal.ring(ring).borrow_mut();
            let sequence = ring.append(block, blocks, last_number);
            let place = BatchPlace { block, life: ring.life(), sequence };
            (place, ring.place().range_of(block, blocks), ring.is_half_full(watermark))
        };
        if is_half_full && journal.can_advance() {
            // Early enough that writers seldom wait for it.
            self.handle.spawn(self.clone().advance_watermark());
        }
        let bounds = journal.transactions.borrow().bounds();
        let payload = encode_batch(journal.owner(ring), place, bounds, &entries, data);
        let durability = if canary::is(Canary::RecordNotDurable) {
            Durability::Cached
        } else {
            Durability::Durable
        };
        self.members.counters().add(|counts| counts.journal_writes += 1);
        self.write_ring(ring, range.start, payload, durability).await
    }

    /// A member is tried once more. A device of the journal's own is not: the members take over.
    fn may_try_again(&self, ring: RingIndex, device: &Rc<D>, error: IoError) -> bool {
        ring.member().is_some_and(|member| self.members.may_try_again(member, device, error))
    }

    async fn write_ring(
        self: &Rc<Self>,
        ring: RingIndex,
        at: Lba,
        payload: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let device = self.placement.device_of_ring(ring)?;
        match write_long(&*device, at, payload.clone(), durability).await {
            Err(error) if self.may_try_again(ring, &device, error) => {
                Box::pin(write_long(&*device, at, payload, durability)).await
            }
            result => result,
        }
    }

    /// Waits until so many blocks of a ring may be written over; the first of them.
    async fn make_room(self: &Rc<Self>, ring: RingIndex, blocks: u64) -> IoResult<u64> {
        let journal = self.placement.in_service();
        loop {
            journal.check()?;
            self.placement.device_of_ring(ring)?;
            if let Some(block) = journal.ring(ring).borrow().room_for(blocks) {
                return Ok(block);
            }
            let watermark = if canary::is(Canary::RoomReusedEarly) {
                u64::MAX >> 2
            } else {
                journal.transactions.borrow().watermark
            };
            let has_dead = journal.ring(ring).borrow().has_dead(watermark);
            if has_dead {
                // Durable before the room is used again: else a replay would miss records of some
                // members of transactions that it takes to be needed.
                let start = journal.ring(ring).borrow_mut().free_below(watermark);
                if canary::is(Canary::RoomReusedEarly) {
                    continue;
                }
                self.write_label(ring, start).await?;
            } else if journal.can_advance() {
                self.clone().advance_watermark().await;
            } else {
                journal.progress.wait().await;
            }
        }
    }

    pub(super) async fn write_label(
        self: &Rc<Self>,
        ring: RingIndex,
        start: Start,
    ) -> IoResult<()> {
        let journal = self.placement.in_service();
        let label = Label::encode(journal.owner(ring), start);
        let at = journal.ring(ring).borrow().place().label_lba(start.number);
        self.members.counters().add(|counts| counts.journal_writes += 1);
        self.write_ring(ring, at, Payload::One(label), Durability::Durable).await
    }

    /// Flushes the members, so that the room of what is in place may be used again.
    async fn advance_watermark(self: Rc<Self>) {
        let journal = self.placement.in_service();
        if !journal.can_advance() {
            return;
        }
        let candidate = journal.transactions.borrow().candidate();
        journal.is_advancing.set(true);
        self.members.counters().add(|counts| counts.watermark_flushes += 1);
        let result = if canary::is(Canary::WatermarkBeforeFlush) {
            Ok(())
        } else {
            self.membership.flush(&self.members).await
        };
        journal.is_advancing.set(false);
        match result {
            Ok(()) => journal.transactions.borrow_mut().raise_watermark(candidate),
            Err(error) => journal.fail(error),
        }
        journal.progress.notify();
    }

    /// Says in the members' rings that nothing in them, or anywhere else, is needed.
    pub(super) async fn empty_member_rings(
        self: &Rc<Self>,
        journal: &Ledger,
        life: u64,
        watermark: u64,
    ) -> IoResult<()> {
        for member in self.members.indexes() {
            let ring = RingIndex::of(member);
            if !self.members[member].is_online() {
                continue;
            }
            let start = journal.ring(ring).borrow_mut().begin_life(life, watermark);
            let written = self.write_label(ring, start).await;
            self.members.lose_on_error_now(member, written)?;
        }
        self.members.check_groups()
    }
}
