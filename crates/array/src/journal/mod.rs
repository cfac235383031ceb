//! The write-hole journal: what a stripe's members will be written is in rings on these members before
//! it is written in place, so that a crash leaves all of it or nothing, whichever members are lost
//! with it. `docs/adr/0016-write-hole-journal.md` has the protocol and why it holds.
//!
//! - `format`: what is in a ring, byte by byte.
//! - `ring`: the room in a ring and the queue before it.
//! - `pump`: the tasks that write batches, labels, and raise the watermark.
//! - `replay`: what an array does before it serves.
//! - `join`: a member that comes into service.
//! - `device`: the label of a device that takes the records of all members.
//! - `home`: from the members' rings to such a device, and back.
//! - `extents`: of overlapping records the last one.

pub(crate) mod device;
mod extents;
pub(crate) mod format;
pub(crate) mod home;
mod join;
mod pump;
mod replay;
pub(crate) mod ring;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoError, IoResult, Lba, SECTOR_BYTES};
use voltier_ring::Signal;

use crate::array::{ArrayError, Inner};
use crate::canary::{self, Canary};
use crate::geometry::Geometry;
use format::{
    BLOCK_BYTES, BLOCK_SECTORS, Bounds, DEVICE_RING, ENTRIES_MAX, LABEL_COPIES, Owner, batch_blocks,
};
use ring::{Outstanding, Pending, Piece, Ring};

/// Members that a transaction can name: the bits of its mask.
pub const JOURNAL_MEMBERS_MAX: usize = 64;
/// Longest batch of several records, in blocks: 1 MiB, as a drive writes it in one go.
const BATCH_BLOCKS_MAX: u64 = 256;

/// Where the ring of a member is on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// First sector, a multiple of 8.
    pub start: Lba,
    /// Length in sectors; at least [`journal_sectors_min`].
    pub sectors: u64,
}

/// The shortest ring that an array of this geometry works with, in sectors: room for four of its
/// longest records.
pub fn journal_sectors_min(geometry: &Geometry) -> u64 {
    (LABEL_COPIES + 4 * batch_blocks(geometry.chunk_sectors())) * BLOCK_SECTORS
}

/// The shortest ring of a device that takes the records of all members, in sectors: room for four of
/// the longest transactions.
pub(crate) fn device_ring_sectors_min(geometry: &Geometry) -> u64 {
    let transaction = geometry.width() as u64 * geometry.chunk_sectors();
    (LABEL_COPIES + 4 * batch_blocks(transaction)) * BLOCK_SECTORS
}

/// Where the journal is, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// Identity of the array: records of another one are not taken.
    pub array: [u8; 16],
    /// A place for each member, lost ones included.
    pub places: Vec<JournalPlace>,
}

/// How an array with a journal begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalStart {
    /// The members are consistent as they are; what is in the rings is void.
    Create,
    /// The members are as a stop or a crash left them: the journal is replayed.
    Replay,
}

/// What a replay did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Transactions found that are not known to be in place.
    pub transactions: u64,
    /// Of these, those that are not in all rings, so that nothing of them is in place.
    pub incomplete: u64,
    /// Sectors of members written again.
    pub sectors: u64,
    /// Members whose ring is damaged: they were taken out of service.
    pub damaged: Vec<usize>,
}

/// What the journal knows of all transactions.
struct Transactions {
    next_number: u64,
    /// Not in the rings of all their members yet.
    unrecorded: BTreeSet<u64>,
    /// Not in place yet, or not for good.
    open: BTreeSet<u64>,
    /// Every transaction below is durable in place.
    watermark: u64,
}

impl Transactions {
    /// The first that is not in place: a flush from now on covers all before it.
    fn candidate(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next_number)
    }

    fn begin(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.unrecorded.insert(number);
        self.open.insert(number);
        number
    }

    fn forget(&mut self, number: u64) {
        self.unrecorded.remove(&number);
        self.open.remove(&number);
    }

    /// Every transaction so far is durable in place, or nothing of it is.
    fn settle_all(&mut self) {
        self.unrecorded.clear();
        self.open.clear();
        self.watermark = self.next_number;
    }

    fn raise_watermark(&mut self, to: u64) {
        self.watermark = self.watermark.max(to);
    }

    fn bounds(&self) -> Bounds {
        let recorded_below = self.unrecorded.first().copied().unwrap_or(self.next_number);
        Bounds { watermark: self.watermark, recorded_below }
    }
}

/// The journal of an array in service.
pub(crate) struct Journal {
    options: JournalOptions,
    transactions: RefCell<Transactions>,
    /// One a member.
    rings: Vec<RefCell<Ring>>,
    /// That of a device of its own, without room while there is none.
    device_ring: RefCell<Ring>,
    /// Grows when transactions go elsewhere: records from before are not looked at any more.
    epoch: Cell<u64>,
    /// Transactions whose in-place writes are under way.
    committing: Cell<u64>,
    /// A transaction has ended, the watermark has risen, a member or the journal is lost.
    progress: Signal,
    is_advancing: Cell<bool>,
    /// While there are any, no transaction begins.
    pauses: Cell<u32>,
    /// Why nothing can be journalled any more.
    failed: Cell<Option<IoError>>,
}

/// A transaction that is in the journal; it is to be ended.
#[must_use]
pub(crate) struct Transaction(Option<u64>);

impl Transaction {
    /// What in-place writes need: what is in the rings is durable already.
    pub(crate) fn in_place(&self, asked: Durability) -> Durability {
        if self.0.is_some() { Durability::Cached } else { asked }
    }
}

impl Journal {
    fn new(options: JournalOptions, rings: Vec<Ring>, next_number: u64) -> Self {
        let transactions = Transactions {
            next_number,
            unrecorded: BTreeSet::new(),
            open: BTreeSet::new(),
            watermark: next_number,
        };
        Self {
            options,
            transactions: RefCell::new(transactions),
            rings: rings.into_iter().map(RefCell::new).collect(),
            device_ring: RefCell::new(Ring::new(JournalPlace::NONE, 1, 0, 0)),
            epoch: Cell::new(0),
            committing: Cell::new(0),
            progress: Signal::new(),
            is_advancing: Cell::new(false),
            pauses: Cell::new(0),
            failed: Cell::new(None),
        }
    }

    /// A life that no ring has had.
    fn next_life(&self) -> u64 {
        let all = self.rings.iter().chain([&self.device_ring]);
        let lives = all.map(|ring| ring.borrow().life());
        lives.max().unwrap_or(0) + 1
    }

    /// The ring of a member, or that of the device: it has the number behind the last member's.
    fn ring(&self, ring: usize) -> &RefCell<Ring> {
        self.rings.get(ring).unwrap_or(&self.device_ring)
    }

    fn owner(&self, ring: usize) -> Owner {
        self.options.owner(ring, self.ring(ring).borrow().place())
    }

    /// # Errors
    /// Why nothing can be journalled any more.
    pub(crate) fn check(&self) -> IoResult<()> {
        self.failed.get().map_or(Ok(()), Err)
    }

    /// A change is neither in place nor given up: the next replay settles it, and until then nothing
    /// is journalled that would need its room.
    fn fail(&self, error: IoError) {
        if self.failed.get().is_none() {
            self.failed.set(Some(error));
        }
        self.progress.notify();
    }

    /// Whether a flush now would raise the watermark, and none is under way.
    fn can_advance(&self) -> bool {
        let transactions = self.transactions.borrow();
        let is_of_use = transactions.watermark < transactions.candidate();
        is_of_use && !self.is_advancing.get() && self.failed.get().is_none()
    }

    /// Whether no transaction is under way, nor anything for one.
    fn is_at_rest(&self) -> bool {
        let mut all = self.rings.iter().chain([&self.device_ring]);
        let rings = all.all(|ring| ring.borrow().is_at_rest());
        rings && !self.is_advancing.get() && self.transactions.borrow().open.is_empty()
    }

    /// The most sectors that one transaction should bring to each member of a group of so many: rings hold
    /// four such ones.
    pub(crate) fn run_sectors_max(&self, width: usize) -> u64 {
        let sectors = |place: JournalPlace| {
            (BATCH_BLOCKS_MAX.min(place.blocks() / 4)).saturating_sub(1) * BLOCK_SECTORS
        };
        let of_members = self.options.places.iter().map(|place| sectors(*place)).min();
        let device = self.device_ring.borrow().place();
        // A device takes all of it in one ring.
        let of_device = (device != JournalPlace::NONE).then(|| sectors(device) / width as u64);
        of_members.into_iter().chain(of_device).min().unwrap_or(0)
    }

    /// Rows of so many members whose pieces one batch can name, whatever of them is left out.
    pub(crate) fn run_rows_max(width: usize) -> u64 {
        (ENTRIES_MAX / width) as u64
    }

    /// Something changed that a writer of a ring may wait for.
    pub(crate) fn notify(&self) {
        self.progress.notify();
    }
}

impl JournalOptions {
    fn owner(&self, ring: usize, place: JournalPlace) -> Owner {
        let member = if ring == self.places.len() { DEVICE_RING } else { ring };
        Owner { array: self.array, member, blocks: place.blocks() }
    }

    /// # Errors
    /// When the places do not suit the geometry.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), ArrayError> {
        let count = geometry.member_count();
        if count > JOURNAL_MEMBERS_MAX {
            return Err(ArrayError::JournalMembers { members: count });
        }
        let given = self.places.len();
        if given != count {
            return Err(ArrayError::MemberCount { given, expected: count });
        }
        let needed = journal_sectors_min(geometry);
        let fits = |place: &JournalPlace| {
            place.start.0.is_multiple_of(BLOCK_SECTORS) && place.sectors >= needed
        };
        match self.places.iter().position(|place| !fits(place)) {
            Some(member) => {
                let sectors = self.places[member].sectors;
                Err(ArrayError::JournalPlace { member, sectors, needed })
            }
            None => Ok(()),
        }
    }
}

/// The longest batch of several records in a ring of this place on a device with this limit.
fn batch_blocks_max(place: JournalPlace, max_transfer_bytes: u32) -> u64 {
    let transfer = u64::from(max_transfer_bytes) / BLOCK_BYTES as u64;
    BATCH_BLOCKS_MAX.min(place.blocks() / 4).min(transfer)
}

/// The longest single write to a ring, in bytes: a chunk and its head.
pub(crate) const fn longest_record_bytes(geometry: &Geometry) -> u64 {
    batch_blocks(geometry.chunk_sectors()) * BLOCK_SECTORS * SECTOR_BYTES
}

impl<D: BlockDevice> Inner<D> {
    /// Puts what will be written to the members of a group into their rings. When it returns, that is
    /// durable, and in-place writes may begin; they end with [`end_transaction`](Self::end_transaction).
    ///
    /// The caller holds the sectors of the stripe, so that transactions over the same sectors have
    /// the order of their numbers.
    ///
    /// # Errors
    /// When a ring cannot be written and its member cannot be lost, or too many are lost. In-place
    /// writes must not begin then.
    pub(crate) async fn begin_transaction(
        self: &Rc<Self>,
        group: usize,
        pieces: Vec<Piece>,
    ) -> IoResult<Transaction> {
        let Some(journal) = self.journal.get() else { return Ok(Transaction(None)) };
        // A record names the members that have a part of it. If one is left out that a replay takes
        // to be in service, the replay would leave it as it was.
        let mut pieces = Some(pieces);
        loop {
            loop {
                if !canary::is(Canary::LossNotRecorded) {
                    self.losses_recorded().await?;
                }
                if journal.pauses.get() == 0 {
                    break;
                }
                journal.progress.until(|| journal.pauses.get() == 0).await;
            }
            journal.check()?;
            self.check_group(group)?;
            // A device may be lost with the records, the members' rings only with their members.
            let is_on_device = self.is_journal_on_device();
            let epoch = journal.epoch.get();
            let own = if is_on_device { pieces.clone() } else { pieces.take() };
            let own = own.expect("records in the members' rings are never given up");
            // Nothing waits from here to the queues: who is in service now has the record, and numbers
            // ascend in every ring.
            let (number, outstanding) = self.queue_pieces(journal, own);
            if !canary::is(Canary::CommitBeforeRecord) {
                outstanding.wait().await;
            }
            let result = self.losses_recorded().await;
            let result = result.and_then(|()| self.check_group(group));
            let result = result.and_then(|()| journal.check());
            match result {
                Ok(()) if journal.epoch.get() == epoch => {
                    journal.transactions.borrow_mut().unrecorded.remove(&number);
                    journal.committing.set(journal.committing.get() + 1);
                    return Ok(Transaction(Some(number)));
                }
                Ok(()) => {
                    // Nobody looks any more where it is recorded, and nothing of it is in place.
                    journal.transactions.borrow_mut().forget(number);
                    journal.notify();
                }
                Err(error) => {
                    journal.fail(error);
                    return Err(error);
                }
            }
        }
    }

    /// Hands pieces to the rings of the members in service, or to that of the device.
    fn queue_pieces(
        self: &Rc<Self>,
        journal: &Journal,
        mut pieces: Vec<Piece>,
    ) -> (u64, Rc<Outstanding>) {
        pieces.retain(|piece| self.members[piece.member].is_online());
        let participants = pieces.iter().fold(0, |mask, piece| mask | 1 << piece.member);
        let outstanding = Outstanding::of(pieces.len());
        let number = journal.transactions.borrow_mut().begin();
        for Piece { member, at, content } in pieces {
            let outstanding = outstanding.clone();
            let is_on_device = self.is_journal_on_device();
            let ring = if is_on_device { self.members.len() } else { member };
            let member = is_on_device.then_some(member);
            let pending = Pending { number, member, participants, at, content, outstanding };
            if journal.ring(ring).borrow_mut().push(pending) {
                self.handle.spawn(self.clone().pump(ring));
            }
        }
        (number, outstanding)
    }

    /// In-place writes of a transaction are over, with this result; what the client is told. A member
    /// lost in them is on record before.
    pub(crate) async fn end_transaction(
        self: &Rc<Self>,
        transaction: Transaction,
        result: IoResult<()>,
    ) -> IoResult<()> {
        let (Some(journal), Some(number)) = (self.journal.get(), transaction.0) else {
            return match result {
                Ok(()) => self.losses_recorded().await,
                Err(error) => Err(error),
            };
        };
        if let Err(error) = result {
            journal.fail(error);
        }
        // What is in place is flushed when the journal leaves its device, which is news: waited for below.
        journal.committing.set(journal.committing.get() - 1);
        journal.notify();
        let result = match result {
            Ok(()) => self.losses_recorded().await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                journal.transactions.borrow_mut().open.remove(&number);
                journal.notify();
            }
            Err(error) => journal.fail(error),
        }
        result
    }
}
