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
pub(crate) struct OrderedQueue {
    groups: VecDeque<Group>,
    /// Versions of a line in records before this number are not written.
    dropped: BTreeMap<Line, u64>,
}

/// Versions that may be written in any order, newest of each line, and the last record among them.
pub(crate) struct OrderedBatch {
    pub(crate) versions: BTreeMap<Line, Version>,
    pub(crate) last_sequence: u64,
}

impl OrderedQueue {
    /// Adds the dirty lines of a record.
    pub(crate) fn push(
        &mut self,
        sequence: u64,
        epoch: u64,
        at: Position,
        versions: Vec<(Line, Version)>,
    ) {
        if !versions.is_empty() {
            self.groups.push_back(Group { sequence, epoch, at, versions });
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Versions of a line before record `sequence` are not to be written: the line was discarded, or (in
    /// a replay) the origin has them.
    pub(crate) fn drop_line(&mut self, line: Line, sequence: u64) {
        if !self.groups.is_empty() {
            self.dropped.insert(line, sequence);
        }
    }

    /// The oldest record that is needed, and where it is: a replay begins no later.
    pub(crate) fn oldest(&self) -> Option<(u64, Position)> {
        self.groups.front().map(|group| (group.sequence, group.at))
    }

    /// About `lines_max` lines of the oldest epoch, of records below `acked`.
    pub(crate) fn batch(&self, acked: u64, lines_max: usize) -> Option<OrderedBatch> {
        let epoch = self.groups.front()?.epoch;
        let mut batch = OrderedBatch { versions: BTreeMap::new(), last_sequence: 0 };
        for group in &self.groups {
            let enough = batch.versions.len() >= lines_max;
            let later = group.epoch != epoch && !canary::is(Canary::EpochsMixed);
            if later || group.sequence >= acked || enough {
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

    /// The origin has everything up to this record.
    pub(crate) fn written(&mut self, last_sequence: u64) {
        while self.groups.front().is_some_and(|group| group.sequence <= last_sequence) {
            self.groups.pop_front();
        }
        if self.groups.is_empty() {
            self.dropped.clear();
        }
    }

    /// Records from this one on are not on the SSD: forgets their versions and drops.
    pub(crate) fn undo(&mut self, first_sequence: u64) {
        self.groups.retain(|group| group.sequence < first_sequence);
        self.dropped.retain(|_, sequence| *sequence < first_sequence);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let versions = self.groups.iter().map(|group| group.versions.capacity()).sum::<usize>();
        versions * size_of::<(Line, Version)>() + self.groups.capacity() * size_of::<Group>()
    }
}
