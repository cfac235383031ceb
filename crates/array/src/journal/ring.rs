//! A ring of the journal in memory: its room, what waits to be written there, and what a replay may need of
//! it. Pure bookkeeping.
//!
//! Batches follow each other; one that does not fit before the end goes to block 0. The scan of a
//! replay does the same: the next batch is where the last one ends, or at block 0, or nowhere.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use voltier_block::{Lba, Payload, SECTOR_BYTES};
use voltier_ring::Signal;

use crate::format::journal_place::JournalPlace;
use crate::format::journal_record::{ENTRIES_MAX, Entry, Start, batch_blocks};
use crate::geometry::numbers::MemberIndex;

/// Lives that are left out when that of a ring is not known. No ring of a member that was away can be so far
/// ahead of the others.
pub(super) const LIVES_LEFT_OUT: u64 = 1 << 32;

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

    /// The ring of a device that is not there.
    pub(crate) fn none() -> Self {
        Self::new(JournalPlace::NONE, 1, 0, 0)
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

    /// Whether more than half of the ring is in use, by what a label with this watermark would not free.
    /// So full a ring is to be flushed for.
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
    fn no_batch_lies_over_one_that_a_replay_may_need_and_the_scan_finds_all() {
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
