//! Exact first-in-first-out order: a queue of line numbers, as many bits each as the largest one has.
//!
//! The queue names lines, not slots, so hits and relocations cost nothing. A line evicted by us is taken
//! out at its known place; a line invalidated by others leaves a stale entry behind, which is counted.
//! Entries of one line stand in the order of their insertion. So the oldest entries of a line are the
//! stale ones, as many as are counted of it.
//!
//! Stale entries are squeezed out by a pass that moves a gap from the old end to the young end, a
//! few steps per operation:
//!
//! ```text
//! head ... squeezed ... write   gap   read ... not yet ... tail
//! ```
//!
//! A pass honours the counts that existed when it began (`old`). Counts made meanwhile (`new`) may
//! concern entries on either side of the gap, and wait for the next pass.

use super::lines::{FAR_LOOKS_MAX, Lines, NEAR_LOOKS_MAX};
use super::packed::{PackedLines, StaleLines};

use crate::memory::NoMemory;
use crate::numbers::{Line, Slot};

/// Entries a pass handles per operation. A pass over `33/32 C` entries then takes `C/124`
/// operations, before `C/64` further entries or `3C/256` further counts could fill what is left.
const PASS_STEPS: u32 = 128;

/// Positions only grow; an entry is stored at its position modulo the ring's length.
#[derive(Debug)]
pub(super) struct Fifo {
    entries: PackedLines,
    head: u64,
    write: u64,
    read: u64,
    tail: u64,
    passing: bool,
    /// A pass begins when this many positions are in use.
    crowded: u64,
    old: StaleLines,
    new: StaleLines,
    hands: Hands,
}

/// The hands of the search, as in the lru list, and the entry that was chosen last.
#[derive(Debug, Default)]
struct Hands {
    near: Option<u64>,
    far: Option<u64>,
    chosen: Option<(u64, Line)>,
}

impl Fifo {
    pub(super) fn new(capacity_lines: u64, line_count: u64) -> Result<Self, NoMemory> {
        let slack = capacity_lines / 32 + 32;
        let (length, stale_max) = Self::lengths(capacity_lines);
        let (length, stale_max) = (length as usize, stale_max as usize);
        Ok(Self {
            entries: PackedLines::new(length, line_count)?,
            head: 0,
            write: 0,
            read: 0,
            tail: 0,
            passing: false,
            crowded: capacity_lines + slack / 2,
            old: StaleLines::new(stale_max, line_count)?,
            new: StaleLines::new(stale_max, line_count)?,
            hands: Hands::default(),
        })
    }

    /// Entries of the queue, and of each set of stale lines.
    fn lengths(capacity_lines: u64) -> (u64, u64) {
        (capacity_lines + capacity_lines / 32 + 32, capacity_lines / 64 + 32)
    }

    pub(super) fn bytes_for(capacity_lines: u64, line_count: u64) -> u64 {
        let (length, stale_max) = Self::lengths(capacity_lines);
        PackedLines::bytes_for(length, line_count)
            + 2 * PackedLines::bytes_for(stale_max, line_count)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes() + self.old.heap_bytes() + self.new.heap_bytes()
    }

    pub(super) fn insert(&mut self, line: Line) {
        self.squeeze();
        if self.is_full() {
            self.finish_passes();
        }
        assert!(!self.is_full(), "more lines are cached than the capacity given to fifo");
        self.put(self.tail, Some(line));
        self.tail += 1;
    }

    pub(super) fn remove(&mut self, line: Line) {
        self.squeeze();
        if let Some((position, chosen)) = self.hands.chosen.take()
            && chosen == line
        {
            self.put(position, None);
            return;
        }
        if self.new.len() == self.new.limit() {
            self.finish_passes();
        }
        self.new.add(line);
    }

    pub(super) fn victim(&mut self, lines: &impl Lines) -> Option<Slot> {
        self.hands.chosen = None;
        let (near, far) = match (self.hands.near, self.hands.far) {
            (Some(near), Some(far)) if near < far => {
                match self.look(near, far, NEAR_LOOKS_MAX, lines) {
                    Ok(slot) => return slot,
                    Err(stopped) => (stopped, far),
                }
            }
            (_, far) => match self.look_from_oldest(lines) {
                Ok(slot) => return slot,
                Err(stopped) => (stopped, far.unwrap_or(stopped).max(stopped)),
            },
        };
        self.hands.near = Some(near);
        match self.look(far, self.tail, FAR_LOOKS_MAX, lines) {
            Ok(slot) => slot,
            Err(stopped) => {
                self.hands.far = if stopped < self.tail { Some(stopped) } else { None };
                None
            }
        }
    }

    /// Looks from the head until a line may go: its slot, or the position where it stopped.
    ///
    /// The look meets the entries of every line oldest first, and so can tell the stale ones. The few
    /// live entries on its way are pushed up to where the look stops, so no dead one is met twice.
    fn look_from_oldest(&mut self, lines: &impl Lines) -> Result<Option<Slot>, u64> {
        let mut passed = [Line(0); NEAR_LOOKS_MAX as usize];
        let mut count = 0;
        let mut at = self.head;
        let mut found = None;
        while at < self.tail && count < passed.len() {
            if let Some(line) = self.get(at)
                && !self.take_stale(at, line)
            {
                found = lines.slot_of(line).filter(|&slot| lines.evictable(slot));
                if found.is_some() {
                    self.hands.chosen = Some((at, line));
                    break;
                }
                passed[count] = line;
                count += 1;
            }
            at = self.after(at);
        }
        self.head = at - count as u64;
        for (position, &line) in (self.head..at).zip(&passed) {
            self.put(position, Some(line));
        }
        if at >= self.read {
            self.read = self.head;
            self.write = self.head;
        }
        self.hands.near = None;
        self.hands.far = self.hands.far.map(|far| far.max(at));
        if found.is_some() { Ok(found) } else { Err(at) }
    }

    /// Looks at entries from `at` up to `end`. The look cannot tell a stale entry of a line from
    /// a live one, and passes over both.
    fn look(
        &mut self,
        mut at: u64,
        end: u64,
        looks: u32,
        lines: &impl Lines,
    ) -> Result<Option<Slot>, u64> {
        for _ in 0..looks {
            if at >= end {
                break;
            }
            if let Some(line) = self.get(at)
                && !self.new.contains(line)
                && !self.old.contains(line)
                && let Some(slot) = lines.slot_of(line)
                && lines.evictable(slot)
            {
                self.hands.chosen = Some((at, line));
                let hand =
                    if end == self.tail { &mut self.hands.far } else { &mut self.hands.near };
                *hand = Some(at);
                return Ok(Some(slot));
            }
            at = self.after(at);
        }
        Err(at)
    }

    /// Whether the oldest entry of `line`, at `at`, is stale. A pass has already taken the counts
    /// in `old` away from what it squeezed.
    fn take_stale(&mut self, at: u64, line: Line) -> bool {
        at >= self.read && self.old.take(line) || self.new.take(line)
    }

    /// A few steps of a pass, if one is under way or due.
    fn squeeze(&mut self) {
        if !self.passing {
            let crowded = self.tail - self.head >= self.crowded;
            if !crowded && self.new.len() < self.new.limit() / 2 {
                return;
            }
            self.begin_pass();
        }
        self.steps(u64::from(PASS_STEPS));
    }

    fn begin_pass(&mut self) {
        assert!(self.old.len() == 0, "a pass finds every stale entry it knew of");
        std::mem::swap(&mut self.old, &mut self.new);
        self.write = self.head;
        self.read = self.head;
        self.passing = true;
    }

    fn steps(&mut self, count: u64) {
        let end = self.tail.min(self.read + count);
        while self.read < end {
            let (from, to) = (self.read, self.write);
            let kept = self.get(from).filter(|&line| !self.old.take(line));
            self.read += 1;
            if from != to || kept.is_none() {
                self.put(from, None);
                self.put(to, kept);
                self.hands.follow(from, if kept.is_some() { to } else { from + 1 });
            }
            self.write += u64::from(kept.is_some());
        }
        if self.read == self.tail {
            self.hands.follow(self.tail, self.write);
            self.tail = self.write;
            self.read = self.write;
            self.passing = false;
        }
    }

    /// The last resort when a small queue fills before a pass gets round, at most two passes.
    fn finish_passes(&mut self) {
        if self.passing {
            self.steps(u64::MAX - self.read);
        }
        self.begin_pass();
        self.steps(u64::MAX - self.read);
    }

    fn is_full(&self) -> bool {
        self.tail - self.head == self.entries.len() as u64
    }

    /// The position after `position` in the order.
    fn after(&self, position: u64) -> u64 {
        if position + 1 == self.write { self.read } else { position + 1 }
    }

    #[inline]
    fn get(&self, position: u64) -> Option<Line> {
        self.entries.get((position % self.entries.len() as u64) as usize)
    }

    #[inline]
    fn put(&mut self, position: u64, line: Option<Line>) {
        let index = (position % self.entries.len() as u64) as usize;
        self.entries.set(index, line);
    }
}

impl Hands {
    /// Keeps what points at an entry that moves pointing at it.
    fn follow(&mut self, from: u64, to: u64) {
        for hand in [&mut self.near, &mut self.far] {
            if *hand == Some(from) {
                *hand = Some(to);
            }
        }
        if let Some((position, _)) = &mut self.chosen
            && *position == from
        {
            *position = to;
        }
    }
}
