//! The life of a segment: open, closed, prepared, and open again.
//!
//! The log reuses the free slots of a segment, steps over its live lines, and moves nothing. So the log
//! writes no more than its heads beside the data, however full the cache is. Heads of lines larger than a
//! unit share slots, so a segment's room is always whole slots. Before slots are reused, what emptied
//! them must be durable, and no read may be under way in them. No replay may begin before the segment's
//! last record.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use voltier_ring::{DrainRounds, Round};

use crate::canary::{self, Canary};
use crate::format::geometry::Geometry;
use crate::map::index::Index;
use crate::memory::{self, NoMemory, bytes_of};
use crate::numbers::{Segment, SegmentSlot, each_segment};

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
    is_roomy: bool,
}

impl FreeSlots {
    /// No slots at all: before the log's place is known.
    pub(crate) fn none() -> Self {
        Self { words: Vec::new(), is_roomy: false }
    }

    /// All slots in which no line lives.
    pub(crate) fn of(segment: Segment, index: &Index, geometry: &Geometry) -> Self {
        let slots = geometry.slots_per_segment;
        let mut words = vec![0; slots.div_ceil(64) as usize];
        for slot in 0..slots {
            if !index.is_used(geometry.slot_in(segment, SegmentSlot(slot))) {
                words[slot as usize / 64] |= 1 << (slot % 64);
            }
        }
        Self { words, is_roomy: index.live_in(segment) <= slots / 4 }
    }

    /// How many slots are free.
    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether three quarters of the segment are free.
    pub(crate) fn is_roomy(&self) -> bool {
        self.is_roomy
    }

    fn is_free(&self, slot: SegmentSlot) -> bool {
        self.words[slot.0 as usize / 64] & 1 << (slot.0 % 64) != 0
    }

    /// The first free slot at or after `from`.
    pub(crate) fn next(&self, from: SegmentSlot) -> Option<SegmentSlot> {
        let mut rest = u64::MAX << (from.0 % 64);
        for (number, word) in self.words.iter().enumerate().skip(from.0 as usize / 64) {
            if word & rest != 0 {
                return Some(SegmentSlot(number as u32 * 64 + (word & rest).trailing_zeros()));
            }
            rest = u64::MAX;
        }
        None
    }

    /// The first free slot at or after `from` for heads, if there is one for a line behind it.
    pub(crate) fn head_slot(&self, from: SegmentSlot) -> Option<SegmentSlot> {
        self.next(from).filter(|slot| self.next(slot.behind()).is_some())
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

struct SegmentState {
    life: Life,
    /// All lines of the segment are in the index; until then the segment is left alone.
    known: bool,
    /// The last record in it: replay needs the segment until a checkpoint is past this.
    last_sequence: u64,
    /// Reads under way: preparing begins a new round and waits for the old one.
    pins: DrainRounds,
    /// Fixed when it is prepared; lines that leave later wait for the next time.
    free_slots: Option<FreeSlots>,
}

pub(crate) struct Segments {
    all: Vec<SegmentState>,
    free: VecDeque<Segment>,
    /// Those being prepared: with them nobody looks at all segments at each step.
    preparing: BTreeSet<Segment>,
    /// Sequence number from which a replay would begin now.
    replay_sequence: u64,
    /// How many segments a replay would walk.
    in_replay: usize,
}

impl Segments {
    /// All closed, until `learn` says which are free.
    pub(crate) fn new(count: u32) -> Result<Self, NoMemory> {
        let closed = |_| SegmentState {
            life: Life::Closed,
            known: false,
            last_sequence: 0,
            pins: DrainRounds::default(),
            free_slots: None,
        };
        let mut all = memory::room_for(count.into())?;
        all.extend((0..count).map(closed));
        Ok(Self {
            all,
            free: VecDeque::new(),
            preparing: BTreeSet::new(),
            replay_sequence: 0,
            in_replay: count as usize,
        })
    }

    /// The memory of so many segments when all are free, as in a new cache.
    pub(crate) fn bytes_for(count: u32, slots_per_segment: u32) -> u64 {
        let words = u64::from(slots_per_segment.div_ceil(64));
        let count = u64::from(count);
        bytes_of::<SegmentState>(count)
            + bytes_of::<Segment>(count)
            + bytes_of::<u64>(count * words)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let maps = self.all.iter().filter_map(|segment| segment.free_slots.as_ref());
        self.all.len() * size_of::<SegmentState>()
            + self.free.len() * size_of::<Segment>()
            + maps.map(|map| map.words.len() * 8).sum::<usize>()
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// A replay begins with the record of this number from now on.
    pub(crate) fn set_replay_sequence(&mut self, sequence: u64) {
        self.replay_sequence = sequence;
        self.in_replay = self.walk_in_replay();
    }

    fn walk_in_replay(&self) -> usize {
        self.all.iter().filter(|state| state.last_sequence >= self.replay_sequence).count()
    }

    /// Number of the record with which a replay would begin now.
    pub(crate) fn replay_sequence(&self) -> u64 {
        self.replay_sequence
    }

    /// Takes a free segment for the log, and the slots it may write.
    pub(crate) fn take_free(&mut self) -> Option<(Segment, FreeSlots)> {
        let segment = self.free.pop_front()?;
        let state = &mut self.all[segment.index()];
        state.life = Life::Open;
        let slots = state.free_slots.take().expect("a free segment was prepared");
        Some((segment, slots))
    }

    /// Notes a record that a replay found.
    pub(crate) fn note_replayed(&mut self, segment: Segment, sequence: u64) {
        let last = self.all[segment.index()].last_sequence;
        self.note_record(segment, last.max(sequence));
    }

    /// Says which segments the log stands in.
    pub(crate) fn set_open(&mut self, open: [Segment; 2]) {
        for segment in open {
            self.all[segment.index()].life = Life::Open;
        }
    }

    /// The lines of these segments are in the index now. Empty ones outside the replay are prepared: what
    /// emptied them while the map was loaded is in records below `next_sequence`, durable or not.
    pub(crate) fn learn(
        &mut self,
        learned: Range<Segment>,
        next_sequence: u64,
        index: &Index,
        geometry: &Geometry,
    ) {
        for segment in each_segment(learned) {
            let state = &mut self.all[segment.index()];
            let is_replayed = state.last_sequence >= self.replay_sequence;
            state.known = true;
            if state.life == Life::Closed && index.live_in(segment) == 0 && !is_replayed {
                // A segment that is still read stays closed: the log finds it empty later.
                let _ = self.prepare(segment, next_sequence, index, geometry);
            }
        }
    }

    pub(crate) fn note_record(&mut self, segment: Segment, sequence: u64) {
        let last = &mut self.all[segment.index()].last_sequence;
        self.in_replay -= usize::from(*last >= self.replay_sequence);
        *last = sequence;
        self.in_replay += usize::from(*last >= self.replay_sequence);
    }

    pub(crate) fn close(&mut self, segment: Segment) {
        self.all[segment.index()].life = Life::Closed;
    }

    /// Keeps the segment's slots as they are; the round to give back to `unpin`.
    #[inline]
    pub(crate) fn pin(&mut self, segment: Segment) -> Round {
        self.all[segment.index()].pins.begin()
    }

    /// Ends a read; true when somebody who prepares the segment may have waited for it.
    #[inline]
    pub(crate) fn unpin(&mut self, segment: Segment, round: Round) -> bool {
        self.all[segment.index()].pins.end(round)
    }

    /// Begins to prepare a closed segment. Records below `next_sequence` tell of every slot that is dead
    /// in the segment now.
    pub(crate) fn prepare(
        &mut self,
        segment: Segment,
        next_sequence: u64,
        index: &Index,
        geometry: &Geometry,
    ) -> Preparing {
        let state = &mut self.all[segment.index()];
        assert_eq!(state.life, Life::Closed);
        if !state.pins.is_drained() {
            return Preparing::Read;
        }
        let free_slots = FreeSlots::of(segment, index, geometry);
        if free_slots.head_slot(SegmentSlot(0)).is_none() {
            return Preparing::NoRoom;
        }
        state.pins.advance();
        state.life = Life::Preparing { since: next_sequence };
        state.free_slots = Some(free_slots);
        self.preparing.insert(segment);
        Preparing::Begun
    }

    /// Frees prepared segments whose conditions hold now.
    pub(crate) fn collect(&mut self, durable_sequence: u64) {
        let Self { all, free, preparing, .. } = self;
        preparing.retain(|segment| {
            let state = &mut all[segment.index()];
            let is_free = matches!(state.life, Life::Preparing { since } if since <= durable_sequence)
                && (state.pins.is_drained() || canary::is(Canary::PinIgnored));
            if is_free {
                state.life = Life::Free;
                free.push_back(*segment);
            }
            !is_free
        });
    }

    /// Whether no read is under way anywhere; else which segment is pinned.
    pub(crate) fn audit_pins(&self) -> Result<(), String> {
        match self.all.iter().position(|state| !state.pins.is_empty()) {
            None => Ok(()),
            Some(number) => Err(format!("segment {number} is pinned: {:?}", self.all[number].pins)),
        }
    }

    /// Whether every segment is in one life only, and what the log may write is under no line.
    pub(crate) fn audit_lives(&self, index: &Index, geometry: &Geometry) -> Result<(), String> {
        let open = self.all.iter().filter(|state| state.life == Life::Open).count();
        if open != 2 {
            return Err(format!("{open} segments are open, not two"));
        }
        let is_preparing =
            |(_, state): &(_, &SegmentState)| matches!(state.life, Life::Preparing { .. });
        if !self.each().filter(is_preparing).map(|it| it.0).eq(self.preparing.iter().copied()) {
            return Err(format!("{:?} are not those being prepared", self.preparing));
        }
        if self.in_replay != self.walk_in_replay() {
            return Err(format!("{} segments are not all in the replay", self.in_replay));
        }
        for (segment, state) in self.each() {
            let listed = self.free.iter().filter(|free| **free == segment).count();
            if listed != usize::from(state.life == Life::Free) {
                return Err(format!(
                    "segment {segment}, {:?}, is listed {listed} times",
                    state.life
                ));
            }
            let dead = FreeSlots::of(segment, index, geometry);
            let mut slots = (0..geometry.slots_per_segment).map(SegmentSlot);
            let alive = |free: &FreeSlots| slots.find(|it| free.is_free(*it) && !dead.is_free(*it));
            if let Some(slot) = state.free_slots.as_ref().and_then(alive) {
                return Err(format!("slot {slot} of segment {segment} is free and has a line"));
            }
        }
        Ok(())
    }

    fn each(&self) -> impl Iterator<Item = (Segment, &SegmentState)> {
        self.all.iter().enumerate().map(|(number, state)| (Segment(number as u32), state))
    }

    /// Segments being prepared.
    pub(crate) fn preparing(&self) -> usize {
        self.preparing.len()
    }

    /// Segments that a replay would scan.
    pub(crate) fn in_replay(&self) -> usize {
        self.in_replay
    }

    /// Whether a segment may be prepared now, if it has room.
    pub(crate) fn is_usable(&self, segment: Segment) -> bool {
        let state = &self.all[segment.index()];
        let is_closed = state.known && state.life == Life::Closed;
        is_closed && state.last_sequence < self.replay_sequence && state.pins.is_drained()
    }

    /// Closed segments that may be prepared, emptiest first, with at most `live_max` live lines. And
    /// whether a checkpoint would give a better one.
    pub(crate) fn candidates(&self, index: &Index, live_max: u32) -> (Vec<Segment>, bool) {
        let mut usable: Vec<(u32, Segment)> = Vec::new();
        let mut best_in_replay = u32::MAX;
        for (segment, state) in self.each() {
            let live = index.live_in(segment);
            if !state.known || state.life != Life::Closed || live > live_max {
                continue;
            }
            if state.last_sequence < self.replay_sequence || canary::is(Canary::SegmentReusedEarly)
            {
                usable.push((live, segment));
            } else {
                best_in_replay = best_in_replay.min(live);
            }
        }
        if usable.len() > CANDIDATES_MAX {
            usable.select_nth_unstable(CANDIDATES_MAX);
            usable.truncate(CANDIDATES_MAX);
        }
        usable.sort_unstable();
        // A segment in the replay is worth a checkpoint if it has far fewer live lines.
        let best = usable.first().map_or(u32::MAX, |first| first.0);
        let checkpoint_pays = best_in_replay < best / 2;
        (usable.into_iter().map(|(_, segment)| segment).collect(), checkpoint_pays)
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
        let (index, mut segments) =
            (Index::new(&geometry).unwrap(), Segments::new(geometry.segment_count).unwrap());
        segments.set_replay_sequence(1);
        segments.learn(Segment(0)..Segment(3), 7, &index, &geometry);
        segments.collect(6);
        assert_eq!(segments.free_count(), 0, "the records that emptied them may be lost");
        segments.collect(7);
        assert_eq!(segments.free_count(), 3);
    }

    #[test]
    fn what_is_counted_is_what_a_walk_finds() {
        let mut segments = Segments::new(50).unwrap();
        let mut prng = voltier_block::Prng::new(8);
        for sequence in 1..2_000 {
            let segment = Segment(prng.below(50) as u32);
            match prng.below(20) {
                0 => segments.set_replay_sequence(prng.below(sequence)),
                1 => segments.note_replayed(segment, prng.below(sequence)),
                _ => segments.note_record(segment, sequence),
            }
            assert_eq!(segments.in_replay(), segments.walk_in_replay());
        }
    }

    #[test]
    fn free_slots_are_found_across_words_and_heads_leave_room_for_a_line() {
        let free = FreeSlots { words: vec![1 << 3 | 1 << 63, 0, 1 << 1], is_roomy: false };
        let next = |from| free.next(SegmentSlot(from)).map(|slot| slot.0);
        assert_eq!((next(0), next(3), next(4)), (Some(3), Some(3), Some(63)));
        assert_eq!((next(64), next(130), next(192)), (Some(129), None, None));
        let head_slot = |from| free.head_slot(SegmentSlot(from)).map(|slot| slot.0);
        assert_eq!((head_slot(4), head_slot(64)), (Some(63), None));
    }
}
