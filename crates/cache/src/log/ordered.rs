//! Ordered destaging: the origin holds a prefix of the writes at any moment, cut at a flush.
//!
//! Records are grouped by epoch, the number of completed flushes before them. All of one epoch goes to
//! the origin before anything of the next. Within an epoch order does not matter, because no client was
//! promised any. A line overwritten in a later epoch is written out in both versions. The older one
//! stays in the log until then, because the replay begins no later than the oldest group.
//!
//! So a lost SSD leaves an origin with everything up to some flush and any part of what came after. A
//! disk with a volatile cache leaves just that after a power cut, and every file system can take it.

use std::collections::{BTreeMap, VecDeque};

use crate::canary::{self, Canary};
use crate::format::position::Position;
use crate::numbers::{Line, Slot};

/// A version of a line that the origin has to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) slot: Slot,
    pub(crate) crc: u32,
    pub(crate) mask: Option<u128>,
}

/// The dirty lines of one record.
struct Group {
    sequence: u64,
    epoch: u64,
    at: Position,
    versions: Vec<(Line, Version)>,
}

/// Versions that the origin lacks, in the order of the log.
#[derive(Default)]
struct OrderedQueue {
    groups: VecDeque<Group>,
    /// Versions of a line in records before this number are not written.
    dropped: BTreeMap<Line, u64>,
}

/// Versions that may be written in any order, newest of each line, and the last record among them.
pub(crate) struct OrderedBatch {
    pub(crate) versions: BTreeMap<Line, Version>,
    pub(crate) last_sequence: u64,
}

/// The order of destaging: kept in ordered mode, and of no account else.
pub(crate) struct Order(Option<OrderedQueue>);

impl Order {
    pub(super) fn new(is_kept: bool) -> Self {
        Self(is_kept.then(OrderedQueue::default))
    }

    pub(super) fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Begins or ends ordered mode.
    pub(super) fn keep(&mut self, is_kept: bool) {
        *self = Self::new(is_kept);
    }

    /// Whether versions wait.
    pub(super) fn waits(&self) -> bool {
        self.0.as_ref().is_some_and(|queue| !queue.is_empty())
    }

    /// The oldest record that is needed, and where it is: a replay begins no later.
    pub(super) fn oldest(&self) -> Option<(u64, Position)> {
        self.0.as_ref()?.oldest()
    }

    /// About `lines_max` lines of the oldest epoch, of records below `below`.
    pub(super) fn batch(&self, below: u64, lines_max: usize) -> Option<OrderedBatch> {
        self.0.as_ref()?.batch(below, lines_max)
    }

    /// Adds the dirty lines of a record.
    pub(super) fn push(
        &mut self,
        sequence: u64,
        epoch: u64,
        at: Position,
        versions: Vec<(Line, Version)>,
    ) {
        if let Some(queue) = &mut self.0 {
            queue.push(sequence, epoch, at, versions);
        }
    }

    /// Versions of a line before record `sequence` are not to be written: the line was discarded, or (in
    /// a replay) the origin has them.
    pub(super) fn drop_line(&mut self, line: Line, sequence: u64) {
        if let Some(queue) = &mut self.0 {
            queue.drop_line(line, sequence);
        }
    }

    /// The origin has everything up to this record.
    pub(super) fn written(&mut self, last_sequence: u64) {
        if let Some(queue) = &mut self.0 {
            queue.written(last_sequence);
        }
    }

    /// Records from this one on are not on the SSD: forgets their versions and drops.
    pub(super) fn undo(&mut self, first_sequence: u64) {
        if let Some(queue) = &mut self.0 {
            queue.undo(first_sequence);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OrderedQueue::memory_bytes)
    }
}

impl OrderedQueue {
    fn push(&mut self, sequence: u64, epoch: u64, at: Position, versions: Vec<(Line, Version)>) {
        if !versions.is_empty() {
            self.groups.push_back(Group { sequence, epoch, at, versions });
        }
    }

    fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    fn drop_line(&mut self, line: Line, sequence: u64) {
        if !self.groups.is_empty() {
            self.dropped.insert(line, sequence);
        }
    }

    fn oldest(&self) -> Option<(u64, Position)> {
        self.groups.front().map(|group| (group.sequence, group.at))
    }

    fn batch(&self, below: u64, lines_max: usize) -> Option<OrderedBatch> {
        let epoch = self.groups.front()?.epoch;
        let mut batch = OrderedBatch { versions: BTreeMap::new(), last_sequence: 0 };
        for group in &self.groups {
            let enough = batch.versions.len() >= lines_max;
            let later = group.epoch != epoch && !canary::is(Canary::EpochsMixed);
            if later || group.sequence >= below || enough {
                break;
            }
            batch.last_sequence = group.sequence;
            for (line, version) in &group.versions {
                let dropped = self.dropped.get(line).is_some_and(|at| *at > group.sequence);
                if !dropped {
                    batch.versions.insert(*line, *version);
                }
            }
        }
        (batch.last_sequence > 0).then_some(batch)
    }

    fn written(&mut self, last_sequence: u64) {
        while self.groups.front().is_some_and(|group| group.sequence <= last_sequence) {
            self.groups.pop_front();
        }
        if self.groups.is_empty() {
            self.dropped.clear();
        }
    }

    fn undo(&mut self, first_sequence: u64) {
        self.groups.retain(|group| group.sequence < first_sequence);
        self.dropped.retain(|_, sequence| *sequence < first_sequence);
    }

    fn memory_bytes(&self) -> usize {
        let versions = self.groups.iter().map(|group| group.versions.capacity()).sum::<usize>();
        versions * size_of::<(Line, Version)>() + self.groups.capacity() * size_of::<Group>()
    }
}
