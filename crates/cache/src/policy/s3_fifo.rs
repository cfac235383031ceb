//! S3-FIFO: a small first-in-first-out queue filters what is used once.
//!
//! After Yang, Zhang, Qiu, Yue and Vinayak, "FIFO queues are all you need for cache eviction" (SOSP
//! 2023). Here the policy is fitted to a log of slots in 1.2 bytes per slot. New lines pass through a
//! small queue (a twentieth of the capacity, kept as line numbers). Lines used at least twice there move
//! to the main part. The others leave, and the policy remembers them as 8-bit fingerprints (the ghost). A
//! line whose fingerprint is remembered goes to the main part at once. The main part is not a queue but a
//! clock hand over the slots, which a log fills in order of writing anyway.
//!
//! There are two departures. While the small queue is full because the cache is still filling, lines go
//! straight to the main part. And a line that is dirty at its turn in the small queue goes round again.
//! So a flood of writes does not spill into the main part.

use super::lines::{Lines, NEAR_LOOKS_MAX};
use super::packed::{PackedLines, scale, spread};

use crate::memory::{self, NoMemory, bytes_of};
use crate::numbers::{Line, Slot};

/// Slots the clock hand passes per call. Within these slots the hand takes the coldest
/// evictable line if none is quite cold. 256 four-bit states are two cache lines of the processor.
const CLOCK_LOOKS_MAX: u32 = 256;

/// Uses in the small queue that move a line to the main part.
const PROMOTING_USES: u8 = 2;

/// Fingerprints in a set of the ghost: one 8-byte load.
const GHOST_WAYS: usize = 8;

#[derive(Debug)]
pub(super) struct S3Fifo {
    states: States,
    small: SmallQueue,
    ghost: Ghost,
    clock: u32,
    /// The slot chosen last, to tell an eviction (remembered) from an invalidation (forgotten).
    chosen: Option<Slot>,
}

impl S3Fifo {
    pub(super) fn new(slots: u32, capacity_lines: u64, line_count: u64) -> Result<Self, NoMemory> {
        Ok(Self {
            states: States::new(slots)?,
            small: SmallQueue::new(capacity_lines, line_count)?,
            ghost: Ghost::new(capacity_lines)?,
            clock: 0,
            chosen: None,
        })
    }

    pub(super) fn bytes_for(slots: u32, capacity_lines: u64, line_count: u64) -> u64 {
        States::length(slots)
            + PackedLines::bytes_for(SmallQueue::length(capacity_lines), line_count)
            + bytes_of::<[u8; GHOST_WAYS]>(Ghost::sets(capacity_lines))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.states.0.capacity()
            + self.small.entries.heap_bytes()
            + self.ghost.sets.capacity() * size_of::<[u8; GHOST_WAYS]>()
    }

    pub(super) fn insert(&mut self, slot: Slot, line: Line) {
        let known = self.ghost.take(line);
        let small = !known && self.small.push(line);
        self.states.set(slot, State { small, uses: 0 });
    }

    #[inline]
    pub(super) fn touch(&mut self, slot: Slot) {
        let state = self.states.get(slot);
        if state.uses < State::USES_MAX {
            self.states.set(slot, State { uses: state.uses + 1, ..state });
        }
    }

    #[inline]
    pub(super) fn relocate(&mut self, from: Slot, to: Slot) {
        let state = self.states.get(from);
        self.states.set(from, State::default());
        self.states.set(to, state);
        if self.chosen == Some(from) {
            self.chosen = Some(to);
        }
    }

    pub(super) fn remove(&mut self, slot: Slot, line: Line) {
        if self.states.get(slot).small && self.chosen == Some(slot) {
            // The evicted entry is the oldest: without it there is room for the line that comes.
            if self.small.oldest() == Some(line) {
                self.small.pop();
            }
            self.ghost.put(line);
        }
        self.states.set(slot, State::default());
        self.chosen = None;
    }

    pub(super) fn victim(&mut self, lines: &impl Lines) -> Option<Slot> {
        self.chosen = if self.small.is_full() {
            self.oldest_of_small(lines).or_else(|| self.coldest_of_main(lines))
        } else {
            self.coldest_of_main(lines).or_else(|| self.oldest_of_small(lines))
        };
        self.chosen
    }

    /// The oldest line of the small queue that was not used; the entry stays until it is removed.
    fn oldest_of_small(&mut self, lines: &impl Lines) -> Option<Slot> {
        for _ in 0..NEAR_LOOKS_MAX {
            let line = self.small.oldest()?;
            if let Some(slot) = lines.slot_of(line)
                && let state @ State { small: true, .. } = self.states.get(slot)
            {
                if state.uses >= PROMOTING_USES {
                    self.states.set(slot, State::default());
                } else if lines.evictable(slot) {
                    return Some(slot);
                } else {
                    self.small.pop();
                    self.small.push(line);
                    continue;
                }
            }
            self.small.pop();
        }
        None
    }

    /// The first unused line of the main part at the clock hand, or the least used within reach.
    fn coldest_of_main(&mut self, lines: &impl Lines) -> Option<Slot> {
        let slots = lines.slots();
        let mut coldest: Option<(u8, Slot)> = None;
        for _ in 0..CLOCK_LOOKS_MAX.min(slots.saturating_mul(1 + u32::from(State::USES_MAX))) {
            let slot = Slot(self.clock);
            let next = self.clock + 1;
            let state = self.states.get(slot);
            if !state.small && lines.evictable(slot) {
                if state.uses == 0 {
                    return Some(slot);
                }
                if coldest.is_none_or(|(uses, _)| state.uses < uses) {
                    coldest = Some((state.uses, slot));
                }
            }
            if !state.small && state.uses > 0 {
                self.states.set(slot, State { uses: state.uses - 1, ..state });
            }
            self.clock = if next >= slots { 0 } else { next };
        }
        coldest.map(|(_, slot)| slot)
    }
}

/// The memory of the line in a slot, in four bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    small: bool,
    uses: u8,
}

impl State {
    const USES_MAX: u8 = 3;
    const SMALL: u8 = 4;
}

#[derive(Debug)]
struct States(Vec<u8>);

impl States {
    fn new(slots: u32) -> Result<Self, NoMemory> {
        Ok(Self(memory::zeroes(Self::length(slots))?))
    }

    fn length(slots: u32) -> u64 {
        slots.div_ceil(2).into()
    }

    #[inline]
    fn get(&self, slot: Slot) -> State {
        let bits = self.0[slot.index() / 2] >> (slot.0 % 2 * 4);
        State { small: bits & State::SMALL != 0, uses: bits & State::USES_MAX }
    }

    #[inline]
    fn set(&mut self, slot: Slot, state: State) {
        let shift = slot.0 % 2 * 4;
        let bits = state.uses | if state.small { State::SMALL } else { 0 };
        let byte = &mut self.0[slot.index() / 2];
        *byte = *byte & !(0xf << shift) | bits << shift;
    }
}

/// Lines in the order of their insertion; those that left since are still in it until popped.
#[derive(Debug)]
struct SmallQueue {
    entries: PackedLines,
    head: usize,
    length: usize,
}

impl SmallQueue {
    fn new(capacity_lines: u64, line_count: u64) -> Result<Self, NoMemory> {
        let entries = PackedLines::new(Self::length(capacity_lines) as usize, line_count)?;
        Ok(Self { entries, head: 0, length: 0 })
    }

    fn length(capacity_lines: u64) -> u64 {
        (capacity_lines / 20).max(1)
    }

    /// Victims come from here then. Entries of lines that others took out count until they are met.
    fn is_full(&self) -> bool {
        self.length == self.entries.len()
    }

    fn oldest(&self) -> Option<Line> {
        if self.length == 0 { None } else { self.entries.get(self.head) }
    }

    fn pop(&mut self) {
        self.head = if self.head + 1 == self.entries.len() { 0 } else { self.head + 1 };
        self.length -= 1;
    }

    /// False if it is full.
    fn push(&mut self, line: Line) -> bool {
        if self.is_full() {
            return false;
        }
        let end = self.head + self.length;
        let index = if end >= self.entries.len() { end - self.entries.len() } else { end };
        self.entries.set(index, Some(line));
        self.length += 1;
        true
    }
}

/// Fingerprints of the lines that left the small queue, newest first in each set. A set is full of
/// others after as many evictions as the ghost is long, so age needs no record. A line never seen
/// is taken for a known one once in thirty times: it then begins in the main part.
#[derive(Debug)]
struct Ghost {
    sets: Vec<[u8; GHOST_WAYS]>,
}

impl Ghost {
    fn new(capacity_lines: u64) -> Result<Self, NoMemory> {
        Ok(Self { sets: memory::zeroes(Self::sets(capacity_lines))? })
    }

    /// Three eighths of the lines are remembered.
    fn sets(capacity_lines: u64) -> u64 {
        (capacity_lines / 8 * 3 / GHOST_WAYS as u64).max(1)
    }

    fn place(&mut self, line: Line) -> (&mut [u8; GHOST_WAYS], u8) {
        let spread = spread(line);
        let set = scale(spread, self.sets.len());
        (&mut self.sets[set], (spread as u8).max(1))
    }

    fn put(&mut self, line: Line) {
        let (set, fingerprint) = self.place(line);
        set.copy_within(0..GHOST_WAYS - 1, 1);
        set[0] = fingerprint;
    }

    /// Whether the line is remembered; it is forgotten thereby.
    fn take(&mut self, line: Line) -> bool {
        let (set, fingerprint) = self.place(line);
        let Some(way) = set.iter().position(|&known| known == fingerprint) else { return false };
        set.copy_within(way + 1.., way);
        set[GHOST_WAYS - 1] = 0;
        true
    }
}
