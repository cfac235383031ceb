//! The journal's state in memory: all transactions, and the rings that they are recorded in. Bookkeeping: the
//! ledger knows no device. Transactions, pauses and flushes tell the ledger what changes.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::BTreeSet;

use voltier_block::{IoError, IoResult};
use voltier_ring::Signal;

use crate::format::journal_place::{BATCH_BLOCKS_MAX, JournalPlace};
use crate::format::journal_record::{BLOCK_SECTORS, Bounds, ENTRIES_MAX, Owner, RingIndex};
use crate::geometry::numbers::MemberIndex;
use crate::journal::ring::Ring;

/// The journal's knowledge of all transactions.
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

    fn end_all(&mut self) {
        self.unrecorded.clear();
        self.open.clear();
        self.watermark = self.next_number;
    }

    fn bounds(&self) -> Bounds {
        let recorded_below = self.unrecorded.first().copied().unwrap_or(self.next_number);
        Bounds { watermark: self.watermark, recorded_below }
    }
}

/// Transactions stand still until this is dropped.
pub(crate) struct Pause<'a>(&'a Ledger);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.pauses.set(self.0.pauses.get() - 1);
        self.0.notify();
    }
}

/// The rings of a journal and the transactions in them.
pub(crate) struct Ledger {
    /// Identity of the array: records of another one are not taken.
    array: [u8; 16],
    transactions: RefCell<Transactions>,
    /// One a member.
    rings: Vec<RefCell<Ring>>,
    /// That of a device of its own, without room while there is none.
    device_ring: RefCell<Ring>,
    /// Grows when transactions go elsewhere: records from before are not looked at any more.
    moves: Cell<u64>,
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

impl Ledger {
    /// The ledger of a journal that begins. The journal has a ring for each member and that of its own
    /// device, and its first transaction has this number.
    pub(super) fn new(
        array: [u8; 16],
        rings: Vec<Ring>,
        device_ring: Ring,
        next_number: u64,
    ) -> Self {
        let transactions = Transactions {
            next_number,
            unrecorded: BTreeSet::new(),
            open: BTreeSet::new(),
            watermark: next_number,
        };
        Self {
            array,
            transactions: RefCell::new(transactions),
            rings: rings.into_iter().map(RefCell::new).collect(),
            device_ring: RefCell::new(device_ring),
            moves: Cell::new(0),
            committing: Cell::new(0),
            progress: Signal::new(),
            is_advancing: Cell::new(false),
            pauses: Cell::new(0),
            failed: Cell::new(None),
        }
    }

    /// The journal of an array that takes over, with further members; the first of them may have a ring.
    /// Nothing is under way in this one, and nothing is left of it.
    pub(crate) fn grown(&self, members: usize, added: Option<Ring>) -> Self {
        let (_, place) = self.next_ring();
        // Nobody knows the life of a ring that is not made yet: its member takes no part.
        let empty = || Ring::new(place, 1, 0, 0);
        let mut rings: Vec<Ring> = self.rings.iter().map(|ring| ring.replace(empty())).collect();
        rings.extend(added);
        rings.resize_with(members, empty);
        let next_number = self.transactions.borrow().next_number;
        let grown = Self::new(self.array, rings, Ring::none(), next_number);
        grown.transactions.swap(&self.transactions);
        grown.failed.set(self.failed.get());
        grown
    }

    /// A replay has brought the members to what the rings said: the journal begins anew, as that one. Nothing
    /// is under way.
    pub(super) fn begin_anew(&self, new: Self) {
        assert_eq!(self.rings.len(), new.rings.len(), "a replay makes a ring for each member");
        self.transactions.swap(&new.transactions);
        for (own, new) in self.rings.iter().zip(&new.rings) {
            own.swap(new);
        }
        self.device_ring.swap(&new.device_ring);
        self.note_move();
        self.failed.set(None);
        self.notify();
    }

    /// The ring that comes next, and where that ring is to be.
    pub(super) fn next_ring(&self) -> (RingIndex, JournalPlace) {
        let place = self.rings[0].borrow().place();
        (RingIndex::of(MemberIndex(self.rings.len())), place)
    }

    /// A life that no ring has had.
    pub(super) fn next_life(&self) -> u64 {
        let all = self.rings.iter().chain([&self.device_ring]);
        let lives = all.map(|ring| ring.borrow().life());
        lives.max().unwrap_or(0) + 1
    }

    fn of_ring(&self, ring: RingIndex) -> &RefCell<Ring> {
        ring.entry_in(&self.rings).unwrap_or(&self.device_ring)
    }

    /// The ring of a member, or that of the device.
    pub(super) fn ring(&self, ring: RingIndex) -> Ref<'_, Ring> {
        self.of_ring(ring).borrow()
    }

    /// The same, to change it.
    pub(super) fn ring_mut(&self, ring: RingIndex) -> RefMut<'_, Ring> {
        self.of_ring(ring).borrow_mut()
    }

    /// Another ring in the place of one.
    pub(super) fn replace_ring(&self, ring: RingIndex, new: Ring) {
        self.of_ring(ring).replace(new);
    }

    /// The owner that a ring names, in labels and batches.
    pub(super) fn owner(&self, ring: RingIndex) -> Owner {
        self.owner_at(ring, self.ring(ring).place())
    }

    /// The same of a ring that is to be at a place.
    pub(super) fn owner_at(&self, ring: RingIndex, place: JournalPlace) -> Owner {
        place.owner(self.array, ring)
    }

    /// # Errors
    /// Why nothing can be journalled any more.
    pub(crate) fn check(&self) -> IoResult<()> {
        self.failed.get().map_or(Ok(()), Err)
    }

    /// A change is neither in place nor given up: the next replay decides which, and until then nothing
    /// is journalled that would need its room.
    pub(super) fn fail(&self, error: IoError) {
        if self.failed.get().is_none() {
            self.failed.set(Some(error));
        }
        self.notify();
    }

    /// A transaction begins; its number.
    pub(super) fn begin(&self) -> u64 {
        self.transactions.borrow_mut().begin()
    }

    /// A transaction is recorded where nobody looks any more, and nothing of it is in place.
    pub(super) fn forget(&self, number: u64) {
        self.transactions.borrow_mut().forget(number);
        self.notify();
    }

    /// A transaction is in all of its rings: in-place writes begin.
    pub(super) fn begin_commit(&self, number: u64) {
        self.transactions.borrow_mut().unrecorded.remove(&number);
        self.committing.set(self.committing.get() + 1);
    }

    /// In-place writes of a transaction are over.
    pub(super) fn end_commit(&self) {
        self.committing.set(self.committing.get() - 1);
        self.notify();
    }

    /// A transaction is in place, and all losses that it met are on record.
    pub(super) fn end(&self, number: u64) {
        self.transactions.borrow_mut().open.remove(&number);
        self.notify();
    }

    /// Every transaction so far is durable in place, or nothing of it is.
    pub(super) fn end_all(&self) {
        self.transactions.borrow_mut().end_all();
    }

    /// How often transactions went elsewhere.
    pub(super) fn moves(&self) -> u64 {
        self.moves.get()
    }

    /// Transactions go elsewhere from now on.
    pub(super) fn note_move(&self) {
        self.moves.set(self.moves.get() + 1);
    }

    /// Every transaction below is durable in place.
    pub(super) fn watermark(&self) -> u64 {
        self.transactions.borrow().watermark
    }

    /// The first transaction that is not in place: a flush from now on covers all before it.
    pub(super) fn candidate(&self) -> u64 {
        self.transactions.borrow().candidate()
    }

    pub(super) fn raise_watermark(&self, to: u64) {
        let mut transactions = self.transactions.borrow_mut();
        transactions.watermark = transactions.watermark.max(to);
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.transactions.borrow().bounds()
    }

    /// Whether a flush now would raise the watermark, and none is under way.
    pub(super) fn can_advance(&self) -> bool {
        let transactions = self.transactions.borrow();
        let is_of_use = transactions.watermark < transactions.candidate();
        is_of_use && !self.is_advancing.get() && self.failed.get().is_none()
    }

    /// Begins to raise the watermark, if that is of use; to which transaction.
    pub(super) fn begin_advance(&self) -> Option<u64> {
        let is_of_use = self.can_advance();
        is_of_use.then(|| {
            self.is_advancing.set(true);
            self.candidate()
        })
    }

    /// All members were flushed since, or not: the journal has failed then.
    pub(super) fn end_advance(&self, candidate: u64, result: IoResult<()>) -> IoResult<()> {
        self.is_advancing.set(false);
        if result.is_ok() {
            self.raise_watermark(candidate);
        }
        self.notify();
        result
    }

    /// Keeps transactions from beginning.
    pub(super) fn pause(&self) -> Pause<'_> {
        self.pauses.set(self.pauses.get() + 1);
        Pause(self)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pauses.get() > 0
    }

    /// Waits until transactions may begin.
    pub(super) async fn unpaused(&self) {
        self.progress.until(|| !self.is_paused()).await;
    }

    /// Whether no transaction is under way, nor anything for one.
    fn is_at_rest(&self) -> bool {
        let mut all = self.rings.iter().chain([&self.device_ring]);
        let rings = all.all(|ring| ring.borrow().is_at_rest());
        rings && !self.is_advancing.get() && self.transactions.borrow().open.is_empty()
    }

    /// Waits until no transaction is under way, nor anything for one.
    ///
    /// # Errors
    /// When the journal has failed.
    pub(super) async fn at_rest(&self) -> IoResult<()> {
        self.progress.until(|| self.check().is_err() || self.is_at_rest()).await;
        self.check()
    }

    /// Waits until no in-place writes are under way.
    pub(super) async fn commits_ended(&self) {
        self.progress.until(|| self.committing.get() == 0).await;
    }

    /// Waits until all transactions so far have ended: those behind have this number or a higher one.
    ///
    /// # Errors
    /// When the journal has failed.
    pub(super) async fn drained(&self) -> IoResult<u64> {
        let next_number = self.transactions.borrow().next_number;
        let is_drained = || self.candidate() >= next_number;
        self.progress.until(|| self.check().is_err() || is_drained()).await;
        self.check().map(|()| next_number)
    }

    /// Waits until something changes that a writer of a ring may wait for.
    pub(super) async fn progress(&self) {
        self.progress.wait().await;
    }

    /// Something changed that a writer of a ring may wait for.
    pub(crate) fn notify(&self) {
        self.progress.notify();
    }

    /// The most sectors that one transaction should bring to each member of a group of so many: rings hold
    /// four such ones.
    pub(crate) fn run_sectors_max(&self, width: usize) -> u64 {
        let sectors = |place: JournalPlace| {
            (BATCH_BLOCKS_MAX.min(place.blocks() / 4)).saturating_sub(1) * BLOCK_SECTORS
        };
        let of_members = self.rings.iter().map(|ring| sectors(ring.borrow().place())).min();
        let device = self.device_ring.borrow().place();
        // A device takes all of it in one ring.
        let of_device = (device != JournalPlace::NONE).then(|| sectors(device) / width as u64);
        of_members.into_iter().chain(of_device).min().unwrap_or(0)
    }

    /// Rows of so many members whose pieces one batch can name, whatever of them is left out.
    pub(crate) fn run_rows_max(width: usize) -> u64 {
        (ENTRIES_MAX / width) as u64
    }
}
