//! What the journal knows of its rings and of all transactions, in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use voltier_block::{IoError, IoResult};
use voltier_ring::Signal;

use crate::format::journal_place::{BATCH_BLOCKS_MAX, JournalOptions, JournalPlace};
use crate::format::journal_record::{BLOCK_SECTORS, Bounds, ENTRIES_MAX, Owner};
use crate::journal::ring::Ring;

/// What the journal knows of all transactions.
pub(super) struct Transactions {
    pub(super) next_number: u64,
    /// Not in the rings of all their members yet.
    pub(super) unrecorded: BTreeSet<u64>,
    /// Not in place yet, or not for good.
    pub(super) open: BTreeSet<u64>,
    /// Every transaction below is durable in place.
    pub(super) watermark: u64,
}

impl Transactions {
    /// The first that is not in place: a flush from now on covers all before it.
    pub(super) fn candidate(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next_number)
    }

    pub(super) fn begin(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.unrecorded.insert(number);
        self.open.insert(number);
        number
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.unrecorded.remove(&number);
        self.open.remove(&number);
    }

    /// Every transaction so far is durable in place, or nothing of it is.
    pub(super) fn settle_all(&mut self) {
        self.unrecorded.clear();
        self.open.clear();
        self.watermark = self.next_number;
    }

    pub(super) fn raise_watermark(&mut self, to: u64) {
        self.watermark = self.watermark.max(to);
    }

    pub(super) fn bounds(&self) -> Bounds {
        let recorded_below = self.unrecorded.first().copied().unwrap_or(self.next_number);
        Bounds { watermark: self.watermark, recorded_below }
    }
}

/// The rings of a journal and the transactions in them.
pub(crate) struct Ledger {
    pub(super) options: JournalOptions,
    pub(super) transactions: RefCell<Transactions>,
    /// One a member.
    pub(super) rings: Vec<RefCell<Ring>>,
    /// That of a device of its own, without room while there is none.
    pub(super) device_ring: RefCell<Ring>,
    /// Grows when transactions go elsewhere: records from before are not looked at any more.
    pub(super) epoch: Cell<u64>,
    /// Transactions whose in-place writes are under way.
    pub(super) committing: Cell<u64>,
    /// A transaction has ended, the watermark has risen, a member or the journal is lost.
    pub(super) progress: Signal,
    pub(super) is_advancing: Cell<bool>,
    /// While there are any, no transaction begins.
    pub(super) pauses: Cell<u32>,
    /// Why nothing can be journalled any more.
    pub(super) failed: Cell<Option<IoError>>,
}

impl Ledger {
    /// The journal of an array that takes over, with further members; the first of them may have a ring.
    /// Nothing is under way in this one, and nothing is left of it.
    pub(crate) fn grown(&self, members: usize, added: Option<Ring>) -> Self {
        let mut options = self.options.clone();
        let place = options.places[0];
        options.places.resize(members, place);
        let life = self.rings[0].borrow().life();
        let empty = || Ring::new(place, 1, life, 0);
        let mut rings: Vec<Ring> = self.rings.iter().map(|ring| ring.replace(empty())).collect();
        rings.extend(added);
        rings.resize_with(members, empty);
        let next_number = self.transactions.borrow().next_number;
        let grown = Self::new(options, rings, next_number);
        grown.transactions.swap(&self.transactions);
        grown.failed.set(self.failed.get());
        grown
    }

    pub(super) fn new(options: JournalOptions, rings: Vec<Ring>, next_number: u64) -> Self {
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
    pub(super) fn next_life(&self) -> u64 {
        let all = self.rings.iter().chain([&self.device_ring]);
        let lives = all.map(|ring| ring.borrow().life());
        lives.max().unwrap_or(0) + 1
    }

    /// The ring of a member, or that of the device: it has the number behind the last member's.
    pub(super) fn ring(&self, ring: usize) -> &RefCell<Ring> {
        self.rings.get(ring).unwrap_or(&self.device_ring)
    }

    pub(super) fn owner(&self, ring: usize) -> Owner {
        self.options.owner(ring, self.ring(ring).borrow().place())
    }

    /// # Errors
    /// Why nothing can be journalled any more.
    pub(crate) fn check(&self) -> IoResult<()> {
        self.failed.get().map_or(Ok(()), Err)
    }

    /// A change is neither in place nor given up: the next replay settles it, and until then nothing
    /// is journalled that would need its room.
    pub(super) fn fail(&self, error: IoError) {
        if self.failed.get().is_none() {
            self.failed.set(Some(error));
        }
        self.progress.notify();
    }

    /// Whether a flush now would raise the watermark, and none is under way.
    pub(super) fn can_advance(&self) -> bool {
        let transactions = self.transactions.borrow();
        let is_of_use = transactions.watermark < transactions.candidate();
        is_of_use && !self.is_advancing.get() && self.failed.get().is_none()
    }

    /// Whether no transaction is under way, nor anything for one.
    pub(super) fn is_at_rest(&self) -> bool {
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
