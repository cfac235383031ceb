//! The life of a segment: free, open, closed, empty, and free again when nothing needs it.

use std::collections::VecDeque;

use crate::index::Index;

/// Free segments that only reclaiming may use: moving the lines of one victim takes at most two.
pub(crate) const RECLAIM_RESERVE: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Free,
    Open,
    Closed,
    /// No line lives in it since the log was at this sequence number.
    Empty { since: u64 },
}

struct Segment {
    life: Life,
    /// The last record in it: replay needs the segment until a checkpoint is past this.
    last_sequence: u64,
    /// Reads under way in it.
    pins: u32,
}

pub(crate) struct Segments {
    all: Vec<Segment>,
    free: VecDeque<u32>,
    /// Sequence number from which a replay would begin now.
    pub(crate) replay_sequence: u64,
}

impl Segments {
    /// All free.
    pub(crate) fn new(count: u32) -> Self {
        let free = |_| Segment { life: Life::Free, last_sequence: 0, pins: 0 };
        Self { all: (0..count).map(free).collect(), free: (0..count).collect(), replay_sequence: 0 }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.all.len() * size_of::<Segment>() + self.free.len() * 4
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes a free segment for the log.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        let segment = self.free.pop_front()?;
        self.all[segment as usize].life = Life::Open;
        Some(segment)
    }

    /// Marks a segment as used by a log that is being replayed.
    pub(crate) fn claim(&mut self, segment: u32, last_sequence: u64, open: bool) {
        self.free.retain(|free| *free != segment);
        let it = &mut self.all[segment as usize];
        it.life = if open { Life::Open } else { Life::Closed };
        it.last_sequence = it.last_sequence.max(last_sequence);
    }

    /// Marks every segment with live lines as closed: after loading.
    pub(crate) fn claim_live(&mut self, index: &Index) {
        for (number, segment) in self.all.iter_mut().enumerate() {
            if segment.life == Life::Free && index.live_in(number as u32) > 0 {
                segment.life = Life::Closed;
            }
        }
        let all = &self.all;
        self.free.retain(|free| all[*free as usize].life == Life::Free);
    }

    pub(crate) fn note_record(&mut self, segment: u32, sequence: u64) {
        self.all[segment as usize].last_sequence = sequence;
    }

    pub(crate) fn close(&mut self, segment: u32) {
        self.all[segment as usize].life = Life::Closed;
    }

    pub(crate) fn pin(&mut self, segment: u32) {
        self.all[segment as usize].pins += 1;
    }

    pub(crate) fn unpin(&mut self, segment: u32) {
        self.all[segment as usize].pins -= 1;
    }

    /// Frees what can be freed. `next_sequence` is the log's next record; every record below
    /// `durable_sequence` is on the medium: what emptied a segment must be, before it is reused.
    pub(crate) fn collect(&mut self, index: &Index, next_sequence: u64, durable_sequence: u64) {
        for (number, segment) in self.all.iter_mut().enumerate() {
            let number = number as u32;
            if segment.life == Life::Closed && index.live_in(number) == 0 {
                segment.life = Life::Empty { since: next_sequence };
            }
            if let Life::Empty { since } = segment.life
                && since <= durable_sequence
                && segment.pins == 0
                && segment.last_sequence < self.replay_sequence
            {
                segment.life = Life::Free;
                self.free.push_back(number);
            }
        }
    }

    /// Empty segments that wait for a flush, and such that wait for a checkpoint.
    pub(crate) fn waiting(&self, durable_sequence: u64) -> (usize, usize) {
        let mut waiting = (0, 0);
        for segment in &self.all {
            if let Life::Empty { since } = segment.life {
                waiting.0 += usize::from(since > durable_sequence);
                waiting.1 += usize::from(segment.last_sequence >= self.replay_sequence);
            }
        }
        waiting
    }

    /// Segments that a replay would walk.
    pub(crate) fn in_replay(&self) -> usize {
        let used = self.all.iter().filter(|segment| segment.life != Life::Free);
        used.filter(|segment| segment.last_sequence >= self.replay_sequence).count()
    }

    /// The closed segment with the fewest live lines: the cheapest to empty.
    pub(crate) fn victim(&self, index: &Index, usable: impl Fn(u32) -> bool) -> Option<u32> {
        let closed = |number: &u32| self.all[*number as usize].life == Life::Closed;
        (0..self.all.len() as u32)
            .filter(closed)
            .filter(|number| usable(*number))
            .min_by_key(|number| index.live_in(*number))
    }
}
