//! The life of a segment: open, closed, prepared, and open again.
//!
//! The log reuses the free slots of a segment, steps over its live lines, and moves nothing. So the log
//! writes no more than its heads beside the data, however full the cache is. Heads of lines larger than
//! a unit share slots, so a segment's room is always whole slots. Before slots are reused, what emptied
//! them must be durable, no read may be under way in them, and no replay may begin before the segment's
//! last record.

use std::collections::VecDeque;
use std::ops::Range;

use crate::canary::{self, Canary};
use crate::format::geometry::Geometry;
use crate::map::index::Index;
use crate::numbers::Slot;

/// Segments tried at once: when that many have no room, looking further costs more than making some.
const CANDIDATES_MAX: usize = 64;

/// The outcome of an attempt to prepare a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparing {
    /// The segment is free as soon as the log is durable up to here.
    Begun,
    /// Reads of an earlier round are under way in it.
    Read,
    /// The segment has not one slot for heads and one for a line.
    NoRoom,
}

/// The slots of a segment that may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeSlots {
    words: Vec<u64>,
    /// Three quarters of the segment are free.
    pub(crate) roomy: bool,
}

impl FreeSlots {
    /// No slots at all: before the log's place is known.
    pub(crate) fn none() -> Self {
        Self { words: Vec::new(), roomy: false }
    }

    /// All slots in which no line lives.
    pub(crate) fn of(segment: u32, index: &Index, geometry: &Geometry) -> Self {
        let slots = geometry.slots_per_segment;
        let mut words = vec![0; slots.div_ceil(64) as usize];
        for slot in 0..slots {
            if !index.is_used(Slot(segment * slots + slot)) {
                words[slot as usize / 64] |= 1 << (slot % 64);
            }
        }
        Self { words, roomy: index.live_in(segment) <= slots / 4 }
    }

    /// How many slots are free.
    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    fn is_free(&self, slot: u32) -> bool {
        self.words[slot as usize / 64] & 1 << (slot % 64) != 0
    }

    /// The first free slot at or after `from`.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let mut rest = u64::MAX << (from % 64);
        for (number, word) in self.words.iter().enumerate().skip(from as usize / 64) {
            if word & rest != 0 {
                return Some(number as u32 * 64 + (word & rest).trailing_zeros());
            }
            rest = u64::MAX;
        }
        None
    }

    /// The first free slot at or after `from` for heads, if there is one for a line behind it.
    pub(crate) fn head_place(&self, from: u32) -> Option<u32> {
        self.next(from).filter(|slot| self.next(slot + 1).is_some())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// May be opened.
    Free,
    Open,
    Closed,
    /// Free as soon as the log is durable up to this number and older reads are over.
    Preparing {
        since: u64,
    },
}

struct Segment {
    life: Life,
    /// All its lines are in the index; until then it is left alone.
    known: bool,
    /// The last record in it: replay needs the segment until a checkpoint is past this.
    last_sequence: u64,
    /// Reads under way, in two rounds: preparing begins a new one and waits for the old.
    pins: [u32; 2],
    round: u8,
    /// Fixed when it is prepared; lines that leave later wait for the next time.
    free_slots: Option<FreeSlots>,
}

pub(crate) struct Segments {
    all: Vec<Segment>,
    free: VecDeque<u32>,
    /// Sequence number from which a replay would begin now.
    pub(crate) replay_sequence: u64,
}

impl Segments {
    /// All closed, until `learn` says which are free.
    pub(crate) fn new(count: u32) -> Self {
        let closed = |_| Segment {
            life: Life::Closed,
            known: false,
            last_sequence: 0,
            pins: [0; 2],
            round: 0,
            free_slots: None,
        };
        let all = (0..count).map(closed).collect();
        Self { all, free: VecDeque::new(), replay_sequence: 0 }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let maps = self.all.iter().filter_map(|segment| segment.free_slots.as_ref());
        self.all.len() * size_of::<Segment>()
            + self.free.len() * 4
            + maps.map(|map| map.words.len() * 8).sum::<usize>()
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes a free segment for the log, and the slots it may write.
    pub(crate) fn take_free(&mut self) -> Option<(u32, FreeSlots)> {
        let number = self.free.pop_front()?;
        let segment = &mut self.all[number as usize];
        segment.life = Life::Open;
        let slots = segment.free_slots.take().expect("a free segment was prepared");
        Some((number, slots))
    }

    /// Notes a record that a replay found.
    pub(crate) fn note_replayed(&mut self, segment: u32, sequence: u64) {
        let last = &mut self.all[segment as usize].last_sequence;
        *last = (*last).max(sequence);
    }

    /// Says which segments the log stands in.
    pub(crate) fn set_open(&mut self, open: [u32; 2]) {
        for number in open {
            self.all[number as usize].life = Life::Open;
        }
    }

    /// The lines of these segments are in the index now. Empty ones outside the replay are prepared: what
    /// emptied them while the map was loaded is in records below `next_sequence`, durable or not.
    pub(crate) fn learn(
        &mut self,
        learned: Range<u32>,
        next_sequence: u64,
        index: &Index,
        geometry: &Geometry,
    ) {
        for number in learned {
            let segment = &mut self.all[number as usize];
            let is_replayed = segment.last_sequence >= self.replay_sequence;
            segment.known = true;
            if segment.life == Life::Closed && index.live_in(number) == 0 && !is_replayed {
                // A segment that is still read stays closed: the log finds it empty later.
                let _ = self.prepare(number, next_sequence, index, geometry);
            }
        }
    }

    pub(crate) fn note_record(&mut self, segment: u32, sequence: u64) {
        self.all[segment as usize].last_sequence = sequence;
    }

    pub(crate) fn close(&mut self, segment: u32) {
        self.all[segment as usize].life = Life::Closed;
    }

    /// Keeps the segment's slots as they are; the round to give back to `unpin`.
    #[inline]
    pub(crate) fn pin(&mut self, segment: u32) -> u8 {
        let segment = &mut self.all[segment as usize];
        segment.pins[segment.round as usize] += 1;
        segment.round
    }

    /// Ends a read; true when somebody who prepares the segment may have waited for it.
    #[inline]
    pub(crate) fn unpin(&mut self, segment: u32, round: u8) -> bool {
        let segment = &mut self.all[segment as usize];
        segment.pins[round as usize] -= 1;
        segment.round != round && segment.pins[round as usize] == 0
    }

    /// Begins to prepare a closed segment. Records below `next_sequence` tell of every slot that is dead
    /// in the segment now.
    pub(crate) fn prepare(
        &mut self,
        number: u32,
        next_sequence: u64,
        index: &Index,
        geometry: &Geometry,
    ) -> Preparing {
        let segment = &mut self.all[number as usize];
        assert_eq!(segment.life, Life::Closed);
        let other = 1 - segment.round;
        if segment.pins[other as usize] > 0 {
            return Preparing::Read;
        }
        let free_slots = FreeSlots::of(number, index, geometry);
        if free_slots.head_place(0).is_none() {
            return Preparing::NoRoom;
        }
        segment.round = other;
        segment.life = Life::Preparing { since: next_sequence };
        segment.free_slots = Some(free_slots);
        Preparing::Begun
    }

    /// Frees prepared segments whose conditions hold now.
    pub(crate) fn collect(&mut self, durable_sequence: u64) {
        for (number, segment) in self.all.iter_mut().enumerate() {
            if let Life::Preparing { since } = segment.life
                && since <= durable_sequence
                && (segment.pins[1 - segment.round as usize] == 0 || canary::is(Canary::PinIgnored))
            {
                segment.life = Life::Free;
                self.free.push_back(number as u32);
            }
        }
    }

    /// Whether no read is under way anywhere; else which segment is pinned.
    pub(crate) fn audit_pins(&self) -> Result<(), String> {
        match self.all.iter().position(|segment| segment.pins != [0; 2]) {
            None => Ok(()),
            Some(number) => Err(format!("segment {number} is pinned: {:?}", self.all[number].pins)),
        }
    }

    /// Whether every segment is in one life only, and what the log may write is under no line.
    pub(crate) fn audit_lives(&self, index: &Index, geometry: &Geometry) -> Result<(), String> {
        let open = self.all.iter().filter(|segment| segment.life == Life::Open).count();
        if open != 2 {
            return Err(format!("{open} segments are open, not two"));
        }
        for (number, segment) in self.all.iter().enumerate() {
            let listed = self.free.iter().filter(|free| **free as usize == number).count();
            if listed != usize::from(segment.life == Life::Free) {
                return Err(format!(
                    "segment {number}, {:?}, is listed {listed} times",
                    segment.life
                ));
            }
            let dead = FreeSlots::of(number as u32, index, geometry);
            let slots = 0..geometry.slots_per_segment;
            let alive = |free: &FreeSlots| {
                slots.into_iter().find(|it| free.is_free(*it) && !dead.is_free(*it))
            };
            if let Some(slot) = segment.free_slots.as_ref().and_then(alive) {
                return Err(format!("slot {slot} of segment {number} is free and has a line"));
            }
        }
        Ok(())
    }

    /// Segments being prepared.
    pub(crate) fn preparing(&self) -> usize {
        let preparing = |segment: &&Segment| matches!(segment.life, Life::Preparing { .. });
        self.all.iter().filter(preparing).count()
    }

    /// Segments that a replay would walk.
    pub(crate) fn in_replay(&self) -> usize {
        self.all.iter().filter(|segment| segment.last_sequence >= self.replay_sequence).count()
    }

    /// Closed segments that may be prepared, emptiest first, with at most `live_max` live lines. And
    /// whether a checkpoint would give a better one.
    pub(crate) fn candidates(&self, index: &Index, live_max: u32) -> (Vec<u32>, bool) {
        let mut usable: Vec<(u32, u32)> = Vec::new();
        let mut best_in_replay = u32::MAX;
        for (number, segment) in self.all.iter().enumerate() {
            let live = index.live_in(number as u32);
            if !segment.known || segment.life != Life::Closed || live > live_max {
                continue;
            }
            if segment.last_sequence < self.replay_sequence
                || canary::is(Canary::SegmentReusedEarly)
            {
                usable.push((live, number as u32));
            } else {
                best_in_replay = best_in_replay.min(live);
            }
        }
        usable.sort_unstable();
        // A segment in the replay is worth a checkpoint if it has far fewer live lines.
        let best = usable.first().map_or(u32::MAX, |first| first.0);
        let checkpoint_pays = best_in_replay < best / 2;
        usable.truncate(CANDIDATES_MAX);
        (usable.into_iter().map(|(_, number)| number).collect(), checkpoint_pays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_loading_finds_empty_is_free_when_what_emptied_it_is_durable() {
        let options = crate::config::FormatOptions {
            line_size: crate::config::LineSize::new(2048).unwrap(),
            policy: crate::policy::PolicyKind::Lru,
            uuid: [1; 16],
        };
        let geometry = Geometry::plan(&options, 160 << 20, 1 << 20).unwrap();
        let (index, mut segments) = (Index::new(&geometry), Segments::new(geometry.segment_count));
        segments.replay_sequence = 1;
        segments.learn(0..3, 7, &index, &geometry);
        segments.collect(6);
        assert_eq!(segments.free_count(), 0, "the records that emptied them may be lost");
        segments.collect(7);
        assert_eq!(segments.free_count(), 3);
    }

    #[test]
    fn free_slots_are_found_across_words_and_heads_leave_room_for_a_line() {
        let free = FreeSlots { words: vec![1 << 3 | 1 << 63, 0, 1 << 1], roomy: false };
        assert_eq!((free.next(0), free.next(3), free.next(4)), (Some(3), Some(3), Some(63)));
        assert_eq!((free.next(64), free.next(130), free.next(192)), (Some(129), None, None));
        assert_eq!((free.head_place(4), free.head_place(64)), (Some(63), None));
    }
}
