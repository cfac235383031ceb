//! Changes that a server has answered and no flush has covered: a server that dies may lose them.
//!
//! Nothing in the protocol says whether the server behind a new connection is the one that took the changes, or
//! has started since and lost them with its memory. Linux's own client does not ask, and a flush there vouches
//! for writes that are gone. To fail the next flush would be safe, and would end file systems after every cut of
//! the network. So the changes are kept, with copies of their data, until a flush has covered them. After a cut
//! they are made again, in their order, before anything else goes to the server: then it does not matter which
//! server that is. The room for them is bounded; when half of it is full, the drive is flushed.

use std::collections::{BTreeMap, VecDeque};

use voltier_block::{Buf, MIB, Payload, SectorRange};

/// Data that are kept at most, in bytes, apart from requests under way.
const BYTES_MAX: u64 = 64 * MIB;
/// Changes that are kept at most.
const CHANGES_MAX: usize = 1 << 16;

/// A change of a range.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// These data.
    Write(Payload),
    /// Zeroes, with the flags of the request.
    Zeroes(u16),
    /// The content is given up.
    Trim,
}

impl Change {
    /// Bytes of memory that the change holds.
    fn bytes(&self) -> u64 {
        match self {
            Change::Write(data) => data.len() as u64,
            Change::Zeroes(_) | Change::Trim => 0,
        }
    }
}

/// A change that is kept.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) range: SectorRange,
    pub(super) change: Change,
    /// It was durable when it was answered, and has to be when it has been made again.
    pub(super) is_durable: bool,
}

/// Which change came last where: ranges that do not overlap, by their first sectors, with their ends.
#[derive(Default)]
struct Latest(BTreeMap<u64, (u64, u64)>);

impl Latest {
    /// Puts a change over all before it.
    fn put(&mut self, range: SectorRange, number: u64) {
        let (start, end) = (range.start.0, range.end().0);
        if let Some((before, (its_end, its))) = self.0.range(..start).next_back()
            && *its_end > start
        {
            let (before, its_end, its) = (*before, *its_end, *its);
            self.0.insert(before, (start, its));
            if its_end > end {
                self.0.insert(end, (its_end, its));
            }
        }
        while let Some((inside, (its_end, its))) = self.0.range(start..end).next() {
            let (inside, its_end, its) = (*inside, *its_end, *its);
            self.0.remove(&inside);
            if its_end > end {
                self.0.insert(end, (its_end, its));
            }
        }
        self.0.insert(start, (end, number));
    }

    /// Whether a change from this number on is anywhere in a range.
    fn has(&self, range: SectorRange, first: u64) -> bool {
        let (start, end) = (range.start.0, range.end().0);
        let before = self.0.range(..start).next_back().filter(|(_, (its_end, _))| *its_end > start);
        let mut there = before.into_iter().chain(self.0.range(start..end));
        there.any(|(_, (_, number))| *number >= first)
    }

    /// Forgets the changes before a number, when they are most of all.
    fn forget_before(&mut self, first: u64, kept: usize) {
        if kept == 0 {
            self.0.clear();
        } else if self.0.len() > 4 * kept + 64 {
            self.0.retain(|_, (_, number)| *number >= first);
        }
    }
}

/// The changes in the order of their answers.
#[derive(Default)]
pub(super) struct Unflushed {
    /// The first one has the number `next - changes.len()`.
    changes: VecDeque<Kept>,
    latest: Latest,
    bytes: u64,
    next: u64,
}

impl Unflushed {
    /// Keeps a change that has been answered. The data are copied: what they lie in may be much larger.
    pub(super) fn push(&mut self, range: SectorRange, change: Change, is_durable: bool) {
        let change = match change {
            Change::Write(data) => {
                let mut copy = Buf::new(data.len());
                data.copy_to(0, &mut copy);
                Change::Write(copy.into())
            }
            other => other,
        };
        self.bytes += change.bytes();
        self.latest.put(range, self.next);
        self.next += 1;
        self.changes.push_back(Kept { range, change, is_durable });
    }

    /// The number of the change to come: a flush that begins now covers all before it.
    pub(super) fn mark(&self) -> u64 {
        self.next
    }

    /// Forgets the changes before a mark: they are durable.
    pub(super) fn forget_before(&mut self, mark: u64) {
        while self.first() < mark
            && let Some(kept) = self.changes.pop_front()
        {
            self.bytes -= kept.change.bytes();
        }
        self.latest.forget_before(self.first(), self.changes.len());
    }

    /// The number of the first change that is kept.
    fn first(&self) -> u64 {
        self.next - self.changes.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether a change of this range would be over one that is kept.
    pub(super) fn overlaps(&self, range: SectorRange) -> bool {
        self.latest.has(range, self.first())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether it is time for a flush.
    pub(super) fn is_half_full(&self) -> bool {
        self.bytes > BYTES_MAX / 2 || self.changes.len() > CHANGES_MAX / 2
    }

    /// Whether changes are to wait for a flush.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX || self.changes.len() > CHANGES_MAX
    }

    /// Changes from the one in this place on, at most so many, that do not overlap: they may be made at once.
    pub(super) fn apart_from(&self, place: usize, most: usize) -> Vec<Kept> {
        let mut apart: Vec<Kept> = Vec::new();
        for kept in self.changes.iter().skip(place).take(most) {
            if apart.iter().any(|other| other.range.overlaps(kept.range)) {
                break;
            }
            apart.push(kept.clone());
        }
        apart
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::{Bytes, Lba};

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Lba(start), count)
    }

    fn write(byte: u8) -> Change {
        Change::Write(Payload::from(Bytes::copy_of(&[byte; 512])))
    }

    #[test]
    fn a_flush_covers_what_was_answered_before_it_began() {
        let mut kept = Unflushed::default();
        kept.push(range(0, 1), write(1), false);
        let mark = kept.mark();
        kept.push(range(1, 1), write(2), false);
        kept.forget_before(mark);
        assert_eq!((kept.len(), kept.bytes), (1, 512));
        kept.forget_before(mark);
        assert_eq!(kept.len(), 1, "an older flush covers nothing more");
        kept.forget_before(kept.mark());
        assert!(kept.is_empty() && kept.bytes == 0);
    }

    #[test]
    fn changes_of_the_same_sectors_are_made_one_after_the_other() {
        let mut kept = Unflushed::default();
        for (start, count) in [(0, 1), (1, 2), (4, 1), (2, 1), (0, 8)] {
            kept.push(range(start, count), Change::Trim, false);
        }
        let mut place = 0;
        let mut rounds = Vec::new();
        while place < kept.len() {
            let apart = kept.apart_from(place, 16).len();
            rounds.push(apart);
            place += apart;
        }
        assert_eq!(rounds, [3, 1, 1]);
        assert_eq!(kept.apart_from(0, 2).len(), 2);
    }

    #[test]
    fn whether_a_change_is_over_a_kept_one_is_known_as_if_all_were_looked_at() {
        let mut kept = Unflushed::default();
        let mut dice = voltier_block::Prng::new(7);
        let mut draw = || range(dice.below(200), 1 + dice.below(20));
        let mut lookups = voltier_block::Prng::new(8);
        for round in 0..20_000_u64 {
            kept.push(draw(), Change::Trim, false);
            if lookups.one_in(3) {
                let first = kept.first();
                kept.forget_before(first + lookups.below(2 + kept.len() as u64));
            }
            if round % 500 == 0 {
                kept.forget_before(kept.mark());
                assert!(kept.latest.0.is_empty());
            }
            let asked = range(lookups.below(220), 1 + lookups.below(8));
            let is_over = kept.changes.iter().any(|it| it.range.overlaps(asked));
            assert_eq!(kept.overlaps(asked), is_over, "round {round}: {asked:?}");
            assert!(kept.latest.0.len() <= 4 * kept.len() + 66, "round {round}");
        }
    }

    #[test]
    fn room_is_bounded_in_bytes_and_in_changes() {
        let mut kept = Unflushed::default();
        for _ in 0..=CHANGES_MAX {
            kept.push(range(0, 1), Change::Zeroes(0), false);
        }
        assert!(kept.is_full() && kept.is_half_full());
        let mut kept = Unflushed::default();
        kept.push(range(0, 65 * 2048), Change::Write(Payload::zeroes(65 * MIB, MIB)), false);
        assert!(kept.is_full());
    }
}
