//! The journal's state in memory: all transactions, the room of every ring, and what waits to be
//! written there. Pure bookkeeping.
//!
//! Batches follow each other; one that does not fit before the end goes to block 0. The walk of a
//! replay does the same: the next batch is where the last one ends, or at block 0, or nowhere.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use voltier_block::{IoError, IoResult, Lba, Payload, SECTOR_BYTES};
use voltier_ring::Signal;

use crate::format::journal_place::{BATCH_BLOCKS_MAX, JournalOptions, JournalPlace};
use crate::format::journal_record::{
    BLOCK_SECTORS, Bounds, ENTRIES_MAX, Entry, Owner, RingIndex, Start, batch_blocks,
};
use crate::geometry::numbers::MemberIndex;

/// The journal's knowledge of all transactions.
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
    pub(super) fn end_all(&mut self) {
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

    /// The ring of a member, or that of the device.
    pub(super) fn ring(&self, ring: RingIndex) -> &RefCell<Ring> {
        ring.entry_in(&self.rings).unwrap_or(&self.device_ring)
    }

    pub(super) fn owner(&self, ring: RingIndex) -> Owner {
        self.options.owner(ring, self.ring(ring).borrow().place())
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

/// New content of a run of sectors of a member.
#[derive(Clone)]
pub(crate) enum Content {
    Data(Payload),
    Zeroes { sectors: u64 },
}

/// The change of a transaction to one member.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) member: MemberIndex,
    /// Where in the member's data area.
    pub(crate) at: Lba,
    pub(crate) content: Content,
}

/// Rings that a transaction still waits for.
#[derive(Default)]
pub(crate) struct Outstanding {
    rings: Cell<usize>,
    done: Signal,
}

impl Outstanding {
    pub(crate) fn of(rings: usize) -> Rc<Self> {
        Rc::new(Self { rings: Cell::new(rings), done: Signal::new() })
    }

    fn one_less(&self) {
        self.rings.set(self.rings.get() - 1);
        if self.rings.get() == 0 {
            self.done.notify();
        }
    }

    pub(crate) async fn wait(&self) {
        self.done.until(|| self.rings.get() == 0).await;
    }
}

/// A piece on its way to a ring. Dropped when it is there, or never will be.
pub(crate) struct Pending {
    pub(crate) number: u64,
    /// The member that it is for, in the ring of a device; none in that member's own.
    pub(crate) member: Option<MemberIndex>,
    pub(crate) participants: u64,
    pub(crate) at: Lba,
    pub(crate) content: Content,
    pub(crate) outstanding: Rc<Outstanding>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.outstanding.one_less();
    }
}

impl Pending {
    fn data_sectors(&self) -> u64 {
        match &self.content {
            Content::Data(data) => data.len() as u64 / SECTOR_BYTES,
            Content::Zeroes { .. } => 0,
        }
    }

    pub(crate) fn entry(&self) -> Entry {
        let (sectors, has_data) = match &self.content {
            Content::Data(data) => (data.len() as u64 / SECTOR_BYTES, true),
            Content::Zeroes { sectors } => (*sectors, false),
        };
        let entry = Entry::new(self.number, self.participants, self.at.0, sectors, has_data);
        self.member.map_or(entry, |member| entry.on_device(member))
    }
}

/// A batch that a replay may need.
struct Live {
    block: u64,
    sequence: u64,
    /// The highest transaction in it.
    last_number: u64,
}

/// One member's ring in service.
pub(crate) struct Ring {
    place: JournalPlace,
    /// The longest batch of several records, in blocks.
    batch_blocks_max: u64,
    life: u64,
    label_number: u64,
    /// Where the next batch goes, if it fits there.
    head: u64,
    next_sequence: u64,
    /// Oldest first: all that the newest label does not give up.
    live: VecDeque<Live>,
    queue: VecDeque<Pending>,
    /// Whether a task writes batches.
    has_writer: bool,
}

impl Ring {
    /// An empty ring of a new life, its labels written up to this number.
    pub(crate) fn new(
        place: JournalPlace,
        batch_blocks_max: u64,
        life: u64,
        label_number: u64,
    ) -> Self {
        Self {
            place,
            batch_blocks_max,
            life,
            label_number,
            head: 0,
            next_sequence: 1,
            live: VecDeque::new(),
            queue: VecDeque::new(),
            has_writer: false,
        }
    }

    /// Queues a piece; whether a task has to be started that writes it.
    #[must_use]
    pub(crate) fn push(&mut self, pending: Pending) -> bool {
        self.queue.push_back(pending);
        !std::mem::replace(&mut self.has_writer, true)
    }

    /// Takes what goes out together next; with nothing left the task ends.
    pub(crate) fn take_batch(&mut self) -> Vec<Pending> {
        let mut batch = Vec::new();
        let mut sectors = 0;
        while let Some(number) = self.queue.front().map(|next| next.number) {
            // One batch has all pieces of a transaction in a ring: all of them are there, or none.
            let whole = self.queue.iter().take_while(|pending| pending.number == number);
            let (count, more) = whole.fold((0, 0), |(count, sectors), pending| {
                (count + 1, sectors + pending.data_sectors())
            });
            sectors += more;
            let is_full =
                batch.len() + count > ENTRIES_MAX || batch_blocks(sectors) > self.batch_blocks_max;
            if is_full && !batch.is_empty() {
                break;
            }
            batch.extend(self.queue.drain(..count));
        }
        self.has_writer = !batch.is_empty();
        batch
    }

    /// Gives up what waits: the ring takes no more.
    pub(crate) fn close(&mut self) -> VecDeque<Pending> {
        std::mem::take(&mut self.queue)
    }

    /// Whether nothing waits and nothing is on its way.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.has_writer
    }

    /// Where a batch of so many blocks can go now.
    pub(crate) fn room_for(&self, blocks: u64) -> Option<u64> {
        let end = self.place.blocks();
        let Some(tail) = self.live.front().map(|oldest| oldest.block) else {
            return Some(if self.head + blocks <= end { self.head } else { 0 });
        };
        if self.head <= tail {
            return (self.head + blocks <= tail).then_some(self.head);
        }
        let places = [(self.head, end), (0, tail)];
        places.iter().find(|(start, end)| start + blocks <= *end).map(|(start, _)| *start)
    }

    /// Whether more than half of the ring is in use, by what a label with this watermark would not free:
    /// that much is to be flushed for.
    pub(crate) fn is_half_full(&self, watermark: u64) -> bool {
        let (end, head) = (self.place.blocks(), self.head);
        let dead = self.live.partition_point(|batch| batch.last_number < watermark);
        let used = self.live.get(dead).map_or(0, |oldest| {
            if head > oldest.block { head - oldest.block } else { head + end - oldest.block }
        });
        used * 2 > end
    }

    /// Takes note of a batch that is on its way; its number in this life.
    pub(crate) fn append(&mut self, block: u64, blocks: u64, last_number: u64) -> u64 {
        let sequence = self.next_sequence;
        self.live.push_back(Live { block, sequence, last_number });
        self.next_sequence += 1;
        self.head = block + blocks;
        sequence
    }

    /// Whether a label with this watermark would make room.
    pub(crate) fn has_dead(&self, watermark: u64) -> bool {
        self.live.front().is_some_and(|oldest| oldest.last_number < watermark)
    }

    /// Forgets what is below the watermark; the label that says so, to be durable before its room is
    /// used again.
    pub(crate) fn free_below(&mut self, watermark: u64) -> Start {
        while self.has_dead(watermark) {
            self.live.pop_front();
        }
        self.label_number += 1;
        let head = if self.head < self.place.blocks() { self.head } else { 0 };
        let oldest = self.live.front().map(|oldest| (oldest.block, oldest.sequence));
        let tail = oldest.unwrap_or((head, self.next_sequence));
        Start { life: self.life, number: self.label_number, tail, watermark }
    }

    /// Begins anew in another life, with nothing in it that is needed; the label that says so.
    pub(crate) fn begin_life(&mut self, life: u64, watermark: u64) -> Start {
        assert!(self.is_at_rest(), "nothing is on its way to a ring that begins anew");
        (self.life, self.head, self.next_sequence) = (life, 0, 1);
        self.live.clear();
        self.label_number += 1;
        Start { life, number: self.label_number, tail: (0, 1), watermark }
    }

    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    pub(crate) fn place(&self) -> JournalPlace {
        self.place
    }
}

#[cfg(test)]
mod tests {
    use voltier_block::Prng;

    use super::*;
    use crate::format::journal_record::BLOCK_SECTORS;

    #[test]
    fn no_batch_lies_over_one_that_a_replay_may_need_and_the_walk_finds_all() {
        let mut dice = Prng::new(5);
        for blocks in [4, 7, 16, 33] {
            let place = JournalPlace { start: Lba(0), sectors: (blocks + 2) * BLOCK_SECTORS };
            let mut ring = Ring::new(place, 4, 1, 2);
            // Blocks of the live batches, by the number of the batch.
            let mut held: VecDeque<(u64, std::ops::Range<u64>)> = VecDeque::new();
            let mut tail = (0, 1);
            for number in 1..2000 {
                let length = 1 + dice.below(blocks.min(4));
                let room = loop {
                    match ring.room_for(length) {
                        Some(room) => break room,
                        None => {
                            let watermark = number - dice.below(held.len() as u64);
                            tail = ring.free_below(watermark).tail;
                            held.retain(|(number, _)| *number >= watermark);
                        }
                    }
                };
                let new = room..room + length;
                assert!(new.end <= blocks);
                assert!(held.iter().all(|(_, old)| old.end <= new.start || new.end <= old.start));
                ring.append(room, length, number);
                held.push_back((number, new));
                let mut at = tail.0;
                for (count, (_, batch)) in held.iter().enumerate() {
                    assert!(batch.start == at || batch.start == 0);
                    assert!(count > 0 || tail.1 == held[0].0, "numbers here are sequences too");
                    at = batch.end;
                }
            }
        }
    }
}
