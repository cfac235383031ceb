//! Where transactions are recorded: in the rings of the members, or all of them in that of a device of the
//! journal's own.
//!
//! The members' rings are there in either case, empty while a device takes the records. When the device is
//! lost, the journal flushes what is in place and labels the members' rings as the newest. The members then
//! say durably that the device is out. Only then does the array acknowledge or write in place again.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use voltier_block::{Buf, DriveControl, IoError, IoResult};

use crate::errors::journal::JournalError;
use crate::format::journal_label::{JournalLabel, ring_place};
use crate::format::journal_place::{JournalPlace, device_ring_sectors_min};
use crate::format::journal_record::{BLOCK_BYTES, LABEL_COPIES, Label, Owner, RingIndex};
use crate::format::superblock::{ArrayRecord, JournalDeviceRecord, JournalState};
use crate::journal::ledger::Ledger;
use crate::members::label_copies::write_label;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;

/// A device that takes the records of all members.
pub(crate) struct JournalDevice<D> {
    pub(super) device: Rc<D>,
    pub(super) uuid: [u8; 16],
    pub(super) place: JournalPlace,
}

impl<D: DriveControl> JournalDevice<D> {
    pub(crate) fn new(device: D, label: &JournalLabel) -> Self {
        Self { device: Rc::new(device), uuid: label.uuid, place: label.place() }
    }
}

/// The label of a device that is to have the journal of this array.
///
/// # Errors
/// When the device does not suit.
pub(crate) fn label_for<D: DriveControl>(
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

/// A copy of the label of a ring, if that is whole and of this ring.
///
/// # Errors
/// The device's.
pub(super) async fn read_label(
    device: &impl DriveControl,
    place: JournalPlace,
    owner: Owner,
    copy: u64,
) -> IoResult<Option<Label>> {
    let block = device.read(place.label_lba(copy), Buf::new(BLOCK_BYTES)).await?;
    let label = Label::decode(&block, owner);
    Ok(label.filter(|label| label.number.get() % LABEL_COPIES == copy))
}

/// The rings that take the records.
enum Rings<D> {
    /// The members'; `lost` is the device that had the records and was given up, while the members say so.
    Members { lost: Option<[u8; 16]> },
    /// That of a device.
    Device(JournalDevice<D>),
    /// That of a device that did not take a write: the journal is to leave it.
    Failing(JournalDevice<D>),
}

impl<D> Rings<D> {
    /// The device that takes the records, or is about to be left.
    fn device(&self) -> Option<&JournalDevice<D>> {
        match self {
            Self::Members { .. } => None,
            Self::Device(own) | Self::Failing(own) => Some(own),
        }
    }

    /// The device, unless it is about to be left.
    fn device_in_use(&self) -> Option<&JournalDevice<D>> {
        if let Self::Device(own) = self { Some(own) } else { None }
    }

    /// The device did not take a write.
    fn failing(self) -> Self {
        if let Self::Device(own) = self { Self::Failing(own) } else { self }
    }

    /// The device as the members are to name it: one that is about to be left is in service until it is left.
    fn identity(&self) -> Option<([u8; 16], JournalState)> {
        match self {
            Self::Members { lost } => lost.map(|uuid| (uuid, JournalState::Lost)),
            Self::Device(own) | Self::Failing(own) => Some((own.uuid, JournalState::InService)),
        }
    }
}

/// Where the rings are, and who takes the records.
pub(crate) struct Placement<D> {
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    rings: RefCell<Rings<D>>,
    /// Empty without redundancy, and until the journal is begun.
    ledger: OnceCell<Ledger>,
}

impl<D: DriveControl> Placement<D> {
    /// The placement of an array that is put together: until [`take_device`](Self::take_device) brings the
    /// device on record, that is lost.
    pub(super) fn new(members: &Rc<MemberSet<D>>, membership: &Rc<Membership>) -> Self {
        let on_record = membership.durable().and_then(|durable| durable.record().journal_device);
        let rings = Rings::Members { lost: on_record.map(|journal| journal.uuid) };
        Self::at(members, membership, rings)
    }

    /// The placement of an array that takes over, with other members. Nothing is left of this one.
    pub(super) fn grown(&self, members: &Rc<MemberSet<D>>) -> Self {
        let rings = self.rings.replace(Rings::Members { lost: None });
        Self::at(members, &self.membership, rings)
    }

    fn at(members: &Rc<MemberSet<D>>, membership: &Rc<Membership>, rings: Rings<D>) -> Self {
        let (members, membership) = (members.clone(), membership.clone());
        Self { members, membership, rings: RefCell::new(rings), ledger: OnceCell::new() }
    }

    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        self.ledger.get()
    }

    /// The ledger of an array with a journal that was begun.
    pub(super) fn in_service(&self) -> &Ledger {
        self.ledger.get().expect("only an array with a journal has rings")
    }

    /// Begins the journal: once, and again after each replay of a journal that failed.
    pub(super) fn begin(&self, ledger: Ledger) {
        if let Err(again) = self.ledger.set(ledger) {
            self.in_service().begin_anew(again);
        }
    }

    /// A change is neither in place nor given up: the next replay decides which.
    #[cold]
    pub(super) fn fail(&self, error: IoError) {
        self.in_service().fail(error);
        self.membership.note_failure();
    }

    /// The device of an array that is being put together; none if it has none, or it is not there.
    pub(crate) fn take_device(&self, device: Option<(D, JournalLabel)>, is_lost: bool) {
        if let Some((device, label)) = device {
            self.rings.replace(Rings::Device(JournalDevice::new(device, &label)));
        } else if is_lost {
            self.membership.note_change();
        }
    }

    /// Records go to another device from now on, or to the members; the device from before. Transactions
    /// stand still meanwhile, so no record is on the old place alone when the new one counts.
    pub(super) fn move_to(&self, device: Option<JournalDevice<D>>) -> Option<JournalDevice<D>> {
        let rings = device.map_or(Rings::Members { lost: None }, Rings::Device);
        let before = self.rings.replace(rings);
        self.membership.note_change();
        match before {
            Rings::Members { .. } => None,
            Rings::Device(own) | Rings::Failing(own) => Some(own),
        }
    }

    /// Records go to the members from now on; the device is lost.
    pub(super) fn leave_device(&self) {
        let lost = self.rings.borrow().identity().map(|(uuid, _)| uuid);
        self.rings.replace(Rings::Members { lost });
        self.membership.note_change();
    }

    /// A device did not take a write: the journal is to leave it.
    pub(crate) fn lose_device(&self, device: &Rc<D>) {
        let is_it = |own: &JournalDevice<D>| Rc::ptr_eq(&own.device, device);
        if !self.rings.borrow().device_in_use().is_some_and(is_it) {
            return;
        }
        let before = self.rings.replace(Rings::Members { lost: None });
        self.rings.replace(before.failing());
        self.membership.note_change();
        if let Some(ledger) = self.ledger() {
            ledger.notify();
        }
    }

    /// Where the ring of the journal's own device is.
    pub(super) fn device_place(&self) -> Option<JournalPlace> {
        self.rings.borrow().device().map(|own| own.place)
    }

    /// Whether a device takes the records, or is about to be left.
    pub(crate) fn is_on_device(&self) -> bool {
        self.rings.borrow().device().is_some()
    }

    pub(super) fn is_device_failing(&self) -> bool {
        matches!(&*self.rings.borrow(), Rings::Failing(_))
    }

    /// The device of a ring: a member's, or the journal's own.
    ///
    /// # Errors
    /// `Gone` when it is lost.
    pub(crate) fn device_of_ring(&self, ring: RingIndex) -> IoResult<Rc<D>> {
        if let Some(member) = ring.entry_in(&self.members) {
            return member.device();
        }
        let rings = self.rings.borrow();
        rings.device_in_use().map(|own| own.device.clone()).ok_or(IoError::Gone)
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

    /// Tells the journal device the newest event, if there is one in service.
    pub(crate) async fn write_device_label(&self, record: &ArrayRecord) {
        let own = {
            let rings = self.rings.borrow();
            rings.device_in_use().map(|own| (own.device.clone(), own.uuid, own.place))
        };
        let Some((device, uuid, place)) = own else { return };
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

    /// The journal device as the members are to name it; none if there never was one, or it was left in
    /// order.
    pub(crate) fn identity(&self) -> Option<([u8; 16], JournalState)> {
        self.rings.borrow().identity()
    }

    /// The state of the journal device now: also what is not on record yet.
    pub(crate) fn record_now(&self) -> Option<JournalDeviceRecord> {
        let (uuid, _) = self.identity()?;
        let is_in_use = self.rings.borrow().device_in_use().is_some();
        let state = if is_in_use { JournalState::InService } else { JournalState::Lost };
        let on_record = self.membership.durable()?.record().journal_device;
        let since_event = on_record.filter(|it| it.uuid == uuid).map_or(0, |it| it.since_event);
        Some(JournalDeviceRecord { uuid, state, since_event })
    }
}
