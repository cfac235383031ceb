//! Changes of the cache's state, as the log makes them durable, and the queues in which they wait for it.

use std::collections::VecDeque;
use std::task::Waker;

use voltier_block::Bytes;

use crate::map::contents::CleanCopy;
use crate::numbers::{Line, Slot};

/// Where a line's data comes from; decides what happens when the line changed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client's write, under the line's lock.
    Write { dirty: bool },
    /// A copy of the origin: dropped if the line is there by now.
    Fill,
}

/// The sender of a change. Changes of each sender keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A request of a client.
    Client,
    /// The cache itself.
    Cache,
}

/// A change of the cache's state, to be made durable by the log.
#[derive(Debug)]
pub(crate) enum Change {
    /// The line's data, one whole line; only the sectors of `mask` count if there is one.
    Data { line: Line, data: Bytes, mask: Option<u128>, source: Source },
    /// The origin has the copy that was in `slot`, with this CRC and mask.
    Clean { line: Line, slot: Slot, crc_bits: u32, mask: Option<u128> },
    /// The line is not to be served from the cache any more.
    Drop { line: Line },
}

impl Change {
    /// The copy that this change calls clean, for the map of a cache whose log has ended.
    pub(crate) fn into_clean_copy(self) -> Option<CleanCopy> {
        match self {
            Self::Clean { line, slot, crc_bits, mask } => {
                Some(CleanCopy { line, slot, crc_bits, mask })
            }
            Self::Data { .. } | Self::Drop { .. } => None,
        }
    }
}

/// Changes of one sender, numbered in order.
#[derive(Default)]
pub(crate) struct Queue {
    changes: VecDeque<Change>,
    bytes: usize,
    /// Number of the last change queued, taken into a record, and acknowledged.
    queued: u64,
    taken: u64,
    acked: u64,
    waiting: VecDeque<(u64, Waker)>,
}

impl Queue {
    pub(crate) fn push(&mut self, change: Change) -> u64 {
        if let Change::Data { data, .. } = &change {
            self.bytes += data.len();
        }
        self.changes.push_back(change);
        self.queued += 1;
        self.queued
    }

    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Number of the last change that a record has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Drops all changes: the log is given up.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.bytes = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// Clears the fills that are queued: a cache that stops does not need them.
    pub(crate) fn forget_fills(&mut self) {
        while let Some(Change::Data { data, source: Source::Fill, .. }) = self.changes.back() {
            self.bytes -= data.len();
            self.queued -= 1;
            self.changes.pop_back();
        }
        for change in &mut self.changes {
            if let Change::Data { line, data, source: Source::Fill, .. } = change {
                self.bytes -= data.len();
                // A drop of the same line keeps the numbers of the changes behind it.
                *change = Change::Drop { line: *line };
            }
        }
    }

    pub(crate) fn wait(&mut self, number: u64, waker: &Waker) {
        // Numbers grow, so waiters mostly arrive in order; a re-poll may not.
        let at = self.waiting.partition_point(|waiter| waiter.0 <= number);
        self.waiting.insert(at, (number, waker.clone()));
    }

    pub(crate) fn pop(&mut self) -> Option<Change> {
        let change = self.changes.pop_front()?;
        if let Change::Data { data, .. } = &change {
            self.bytes -= data.len();
        }
        self.taken += 1;
        Some(change)
    }

    pub(crate) fn ack(&mut self, number: u64) {
        self.acked = self.acked.max(number);
        while self.waiting.front().is_some_and(|waiter| waiter.0 <= self.acked) {
            let (_, waker) = self.waiting.pop_front().expect("has a front");
            waker.wake();
        }
    }

    pub(crate) fn wake_all(&mut self) {
        for (_, waker) in self.waiting.drain(..) {
            waker.wake();
        }
    }
}
