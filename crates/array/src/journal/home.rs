//! Where transactions are recorded: in the rings of the members, or all of them on a device of its own.
//!
//! The members' rings are there in either case, empty while a device takes the records. When it is lost,
//! what is in place is flushed, the members' rings are marked as the newest, and the members say
//! durably that the device is out; only then is anything acknowledged or written in place again.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, IoResult};

use crate::array::{Array, ArrayError, Inner};
use crate::durable::Durable;
use crate::grow::GrowError;
use crate::journal::device::{
    JournalLabel, JournalRecord, JournalState, erase_label, ring_place, write_label,
};
use crate::journal::format::{Label, Start};
use crate::journal::ring::Ring;
use crate::journal::{Journal, JournalPlace, batch_blocks_max, device_ring_sectors_min};
use crate::superblock::ArrayRecord;

/// A device that takes the records of all members.
pub(crate) struct JournalDevice<D> {
    pub(crate) device: Rc<D>,
    pub(crate) uuid: [u8; 16],
    pub(crate) place: JournalPlace,
    /// It did not take a write; the journal is to leave it.
    is_failing: Cell<bool>,
}

/// Why a device cannot take the journal: one line for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// There is no journal to be put anywhere.
    #[error("the array has no journal: only one made with consistency `journal`, and parity, has")]
    NoJournal,
    /// The device is too small.
    #[error("the device has {has_kib} KiB and a journal of this array needs {needed_kib} KiB")]
    TooSmall {
        /// Its size, in KiB.
        has_kib: u64,
        /// The least it must have.
        needed_kib: u64,
    },
    /// Its blocks are larger than those of the array.
    #[error("the device has blocks of {has} bytes and the array of {array}: take another device")]
    Blocks {
        /// Its block, in bytes.
        has: u32,
        /// The array's.
        array: u32,
    },
    /// It cannot be written.
    #[error("the device is read-only: make it writable, or take another")]
    ReadOnly,
    /// It has the uuid of the one before.
    #[error("the journal device has this uuid already: give the new one a uuid of its own")]
    Uuid,
    /// It failed while it was taken in.
    #[error("{0}, at the journal device: take another")]
    Device(IoError),
    /// It cannot be read, and only it has what was begun.
    #[error(
        "the journal device is damaged, and the array was not stopped: leave it out and force the \
         start, then check the data"
    )]
    Damaged,
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

impl<D: BlockDevice> Inner<D> {
    /// Whether a device takes the records, or is about to be left.
    pub(crate) fn is_journal_on_device(&self) -> bool {
        self.journal_device.borrow().is_some()
    }

    fn is_journal_device_failing(&self) -> bool {
        self.journal_device.borrow().as_ref().is_some_and(|it| it.is_failing.get())
    }

    /// The device of a ring: a member's, or the journal's own.
    ///
    /// # Errors
    /// `Gone` when it is lost.
    pub(super) fn device_of_ring(&self, ring: usize) -> IoResult<Rc<D>> {
        if ring < self.members.len() {
            return self.device_of(ring);
        }
        let journal = self.journal_device.borrow();
        let in_use = journal.as_ref().filter(|journal| !journal.is_failing.get());
        in_use.map(|journal| journal.device.clone()).ok_or(IoError::Gone)
    }

    /// What a failed write to a ring means: its member is lost, or the journal leaves its device.
    pub(super) fn settle_ring(
        &self,
        ring: usize,
        device: &Rc<D>,
        result: IoResult<()>,
    ) -> IoResult<()> {
        if ring < self.members.len() {
            return self.settle(ring, device, result);
        }
        if result.is_err() {
            self.lose_journal_device(device);
        }
        Ok(())
    }

    /// Rings that take records.
    pub(super) fn rings_in_use(&self) -> Vec<usize> {
        let members = self.members.len();
        if self.is_journal_on_device() {
            return vec![members];
        }
        (0..members).filter(|member| self.members[*member].is_online()).collect()
    }

    pub(super) fn lose_journal_device(&self, device: &Rc<D>) {
        let journal = self.journal_device.borrow();
        let Some(journal) = journal.as_ref().filter(|it| Rc::ptr_eq(&it.device, device)) else {
            return;
        };
        if journal.is_failing.replace(true) {
            return;
        }
        if let Some(durable) = &self.durable {
            durable.note_change();
        }
        if let Some(journal) = self.journal.get() {
            journal.notify();
        }
    }

    /// The device of an array that is being put together; none if it has none, or it is not there.
    pub(crate) fn take_journal_device(&self, device: Option<(D, JournalLabel)>, is_lost: bool) {
        if let Some((device, label)) = device {
            self.journal_device.replace(Some(JournalDevice::new(device, &label)));
        } else if is_lost && let Some(durable) = &self.durable {
            durable.lose_journal();
        }
    }

    /// Has the journal leave a device that failed. What the device had is in place and flushed then, or was
    /// never begun; the members are still to be told, which is news.
    ///
    /// # Errors
    /// When what it had cannot be brought in place: it is needed at the next start.
    pub(crate) async fn leave_failing_device(self: &Rc<Self>) -> IoResult<()> {
        let is_failing = self.is_journal_device_failing();
        let Some(durable) = self.durable.as_ref().filter(|_| is_failing) else { return Ok(()) };
        match self.journal.get() {
            Some(journal) => {
                // Nothing new begins: whoever would waits for the news.
                journal.progress.until(|| journal.committing.get() == 0).await;
                journal.check()?;
                self.flush_members().await?;
                // Their labels must be true also if the news is never told, and the device is there at the
                // next start: a member that is lost just now, and not on record, lacks what is settled here.
                let watermark = journal.transactions.borrow().watermark;
                self.empty_member_rings(journal, journal.next_life(), watermark).await?;
                journal.transactions.borrow_mut().settle_all();
                journal.epoch.set(journal.epoch.get() + 1);
            }
            // Before anything was redone only a stop in order leaves nothing on it.
            None if durable.is_replay_due() => return Err(IoError::Gone),
            None => {}
        }
        self.journal_device.take();
        durable.lose_journal();
        if let Some(journal) = self.journal.get() {
            journal.notify();
        }
        Ok(())
    }

    /// Says in the members' rings that nothing in them, or anywhere else, is needed.
    async fn empty_member_rings(
        self: &Rc<Self>,
        journal: &Journal,
        life: u64,
        watermark: u64,
    ) -> IoResult<()> {
        for member in 0..self.members.len() {
            if !self.members[member].is_online() {
                continue;
            }
            let start = journal.rings[member].borrow_mut().begin_life(life, watermark);
            let written = self.write_label(member, start).await;
            self.settle_now(member, written)?;
        }
        self.check_groups()
    }

    /// Tells the journal device the newest event, if there is one in service.
    pub(crate) async fn write_journal_label(self: &Rc<Self>, record: &ArrayRecord) {
        let Some((device, uuid, place)) =
            self.journal_device.borrow().as_ref().and_then(|it| {
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
        self.counters.add(|counts| counts.metadata_writes += 2);
        if write_label(&*device, &label).await.is_err() {
            self.lose_journal_device(&device);
        }
    }

    /// What the journal device is now: also what is not on record yet.
    pub(crate) fn journal_now(&self) -> Option<JournalRecord> {
        let record = self.durable.as_ref()?.journal()?;
        let in_use = self.journal_device.borrow();
        let is_failing = in_use.as_ref().is_none_or(|it| it.is_failing.get());
        let state = if is_failing { JournalState::Lost } else { JournalState::InService };
        Some(JournalRecord { state, ..record })
    }

    /// Puts the journal on another device, or back on the members.
    async fn move_journal(self: &Rc<Self>, new: Option<(D, [u8; 16])>) -> Result<(), ArrayError> {
        let (Some(durable), Some(journal)) = (&self.durable, self.journal.get()) else {
            return Err(JournalError::NoJournal.into());
        };
        self.settled().await.map_err(ArrayError::Io)?;
        let new = match new {
            Some((device, uuid)) => {
                let label = label_for(&durable.record(), &device, uuid, self.limits.block_bytes)?;
                Some((JournalDevice::new(device, &label), label))
            }
            None => None,
        };
        let _pause = self.pause_journal().await.map_err(ArrayError::Io)?;
        let ring = loop {
            let epoch = journal.epoch.get();
            let ring = self.begin_life_on(durable, journal, new.as_ref()).await?;
            if journal.epoch.get() == epoch && !self.is_journal_device_failing() {
                break ring;
            }
            // The device before has failed meanwhile. That it is left, too, begins a life, and must not
            // take away what comes after it.
            self.settled().await.map_err(ArrayError::Io)?;
        };
        let moved_to = new.as_ref().map(|(new, _)| new.uuid);
        if let Some(ring) = ring {
            journal.device_ring.replace(ring);
        }
        journal.epoch.set(journal.epoch.get() + 1);
        let old = self.journal_device.replace(new.map(|(new, _)| new));
        durable.set_journal(moved_to);
        self.settled().await.map_err(ArrayError::Io)?;
        if let Some(old) = old {
            // If that fails it is a stale one: nobody takes it for more.
            let _ = erase_label(&*old.device).await;
        }
        if moved_to.is_some() && !self.is_journal_on_device() {
            return Err(JournalError::Device(IoError::Gone).into());
        }
        Ok(())
    }

    /// Makes all rings empty, with that of a new device, if there is one: above all lives, so that what is
    /// left anywhere of an earlier use is void. Nothing is under way.
    async fn begin_life_on(
        self: &Rc<Self>,
        durable: &Durable,
        journal: &Journal,
        new: Option<&(JournalDevice<D>, JournalLabel)>,
    ) -> Result<Option<Ring>, ArrayError> {
        let watermark = journal.transactions.borrow().watermark;
        let life = journal.next_life();
        let ring = match new {
            Some((new, label)) => {
                let device_failed = |error| ArrayError::from(JournalError::Device(error));
                let made = self.make_device_ring(journal, new, life, watermark).await;
                let ring = made.map_err(device_failed)?;
                let label = JournalLabel { event: durable.record().event, ..label.clone() };
                write_label(&*new.device, &label).await.map_err(device_failed)?;
                Some(ring)
            }
            None => None,
        };
        self.empty_member_rings(journal, life, watermark).await.map_err(ArrayError::Io)?;
        Ok(ring)
    }

    async fn make_device_ring(
        &self,
        journal: &Journal,
        new: &JournalDevice<D>,
        life: u64,
        watermark: u64,
    ) -> IoResult<Ring> {
        let owner = journal.options.owner(self.members.len(), new.place);
        for number in [1, 2] {
            let label = Label::encode(owner, Start { life, number, tail: (0, 1), watermark });
            self.counters.add(|counts| counts.journal_writes += 1);
            let at = new.place.label_lba(number);
            new.device.write(at, label.into(), voltier_block::Durability::Durable).await?;
        }
        let blocks = batch_blocks_max(new.place, new.device.limits().max_transfer_bytes);
        Ok(Ring::new(new.place, blocks, life, 2))
    }
}

impl<D: BlockDevice> Array<D> {
    /// Puts the journal on a device of its own, whatever it holds, or with `None` back on the members, while
    /// the array serves. `uuid` is a new one, for the device. The device before is a plain one then.
    ///
    /// # Errors
    /// When the device does not suit or fails: the array serves on, with the journal where it was or,
    /// if the device failed in the last moment, on the members.
    pub async fn set_journal(&self, device: Option<(D, [u8; 16])>) -> Result<(), ArrayError> {
        // The shape stays as it is meanwhile: its rings would be those of another array.
        let inner = self.0.enter().await;
        if inner.moving.is_some() {
            return Err(GrowError::Reshaping.into());
        }
        inner.move_journal(device).await
    }
}
