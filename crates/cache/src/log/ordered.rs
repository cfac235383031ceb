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

use voltier_block::Nanos;

use crate::canary::{self, Canary};
use crate::clock::{Moment, WallNanos};
use crate::format::position::Position;
use crate::format::record::RecordHead;
use crate::numbers::{Line, Slot};

/// A version of a line that the origin has to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) slot: Slot,
    pub(crate) crc: u32,
    pub(crate) mask: Option<u128>,
}

/// Where a record is in the log.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) sequence: u64,
    pub(super) epoch: u64,
    pub(super) at: Position,
}

/// The dirty lines of one record.
struct Group {
    place: Place,
    /// When it was formed: the wall time, 0 if that is not known.
    wall_ns: WallNanos,
    /// The same on the ring's clock, which may have begun later.
    born_ns: i64,
    /// Nobody knows how long before.
    is_older: bool,
    versions: Vec<(Line, Version)>,
}

/// How old something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// The age, in nanoseconds.
    pub ns: Nanos,
    /// It is from before the last start, and nobody knows how much older it is.
    pub is_older: bool,
}

/// A completed flush of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPoint {
    /// The opening of the cache that served it. Numbers of a later opening may begin anew.
    pub generation: u64,
    /// Grows with every flush before which something was written.
    pub number: u64,
    /// When it was complete, in nanoseconds since 1970, or a little earlier; 0 if that is not known.
    pub wall_ns: u64,
}

/// Versions that the origin lacks, in the order of the log.
#[derive(Default)]
struct OrderedQueue {
    groups: VecDeque<Group>,
    /// Versions of a line in records before this number are not written.
    dropped: BTreeMap<Line, u64>,
    /// The newest flush that the origin has, and those after it.
    cuts: VecDeque<FlushPoint>,
    /// The wall time of the last record that was replayed.
    replayed_wall_ns: WallNanos,
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

    /// Adds the dirty lines of a record that is formed now.
    pub(super) fn push(&mut self, place: Place, now: Moment, versions: Vec<(Line, Version)>) {
        if let Some(queue) = &mut self.0 {
            queue.push(place, now.wall_ns, now.ns as i64, versions);
        }
    }

    /// Adds the dirty lines of a record that a replay has read.
    pub(super) fn push_replayed(
        &mut self,
        place: Place,
        head: &RecordHead,
        versions: Vec<(Line, Version)>,
    ) {
        if let Some(queue) = &mut self.0 {
            queue.push_replayed(place, head, versions);
        }
    }

    /// What was replayed has the ages that it has now.
    pub(super) fn begin_time(&mut self, now: Moment) {
        if let Some(queue) = &mut self.0 {
            queue.begin_time(now);
        }
    }

    /// A flush of a client is complete: what comes now is of this epoch.
    pub(super) fn cut(&mut self, generation: u64, epoch: u64, wall_ns: WallNanos) {
        if let Some(queue) = &mut self.0 {
            queue.cut(FlushPoint { generation, number: epoch, wall_ns });
        }
    }

    /// The newest flush that the origin has, where what comes next is of this epoch.
    pub(super) fn shipped_flush(&self, epoch: u64) -> Option<FlushPoint> {
        self.0.as_ref()?.shipped_flush(epoch)
    }

    /// The age of the oldest record below `below` of which the origin lacks something.
    pub(super) fn oldest_age(&self, below: u64, now_ns: Nanos) -> Option<Age> {
        self.0.as_ref()?.oldest_age(below, now_ns)
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
    fn push(
        &mut self,
        place: Place,
        wall_ns: WallNanos,
        born_ns: i64,
        versions: Vec<(Line, Version)>,
    ) {
        if !versions.is_empty() {
            self.groups.push_back(Group { place, wall_ns, born_ns, is_older: false, versions });
        }
    }

    fn push_replayed(&mut self, place: Place, head: &RecordHead, versions: Vec<(Line, Version)>) {
        let (number, generation) = (place.epoch, head.generation.get());
        if number > 0 && self.cuts.back().is_none_or(|last| last.number < number) {
            // The flush was after the record before: nobody is promised more than the origin has.
            self.cut(FlushPoint { generation, number, wall_ns: self.replayed_wall_ns });
        }
        self.replayed_wall_ns = head.wall_ns.get();
        self.push(place, head.wall_ns.get(), 0, versions);
    }

    fn begin_time(&mut self, now: Moment) {
        // A group is at least as old as those behind it, whatever clocks said.
        let mut age_ns = 0;
        for group in self.groups.iter_mut().rev() {
            group.is_older = group.wall_ns == 0 || now.wall_ns == 0;
            if !group.is_older {
                age_ns = age_ns.max(now.wall_ns.saturating_sub(group.wall_ns));
            }
            group.born_ns = (now.ns as i64).saturating_sub_unsigned(age_ns);
        }
    }

    fn cut(&mut self, flush: FlushPoint) {
        self.cuts.push_back(flush);
        self.forget_cuts(flush.number);
    }

    /// Forgets flushes before the newest one that the origin has.
    fn forget_cuts(&mut self, epoch: u64) {
        let epoch = self.groups.front().map_or(epoch, |group| group.place.epoch);
        while self.cuts.get(1).is_some_and(|next| next.number <= epoch) {
            self.cuts.pop_front();
        }
    }

    fn shipped_flush(&self, epoch: u64) -> Option<FlushPoint> {
        if canary::is(Canary::FlushToldEarly) {
            return self.cuts.back().copied();
        }
        let epoch = self.groups.front().map_or(epoch, |group| group.place.epoch);
        self.cuts.iter().take_while(|cut| cut.number <= epoch).last().copied()
    }

    fn oldest_age(&self, below: u64, now_ns: Nanos) -> Option<Age> {
        let oldest = self.groups.front().filter(|group| group.place.sequence < below)?;
        let ns = u64::try_from((now_ns as i64).saturating_sub(oldest.born_ns)).unwrap_or(0);
        Some(Age { ns, is_older: oldest.is_older })
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
        self.groups.front().map(|group| (group.place.sequence, group.place.at))
    }

    fn batch(&self, below: u64, lines_max: usize) -> Option<OrderedBatch> {
        let epoch = self.groups.front()?.place.epoch;
        let mut batch = OrderedBatch { versions: BTreeMap::new(), last_sequence: 0 };
        for group in &self.groups {
            let (sequence, enough) = (group.place.sequence, batch.versions.len() >= lines_max);
            let later = group.place.epoch != epoch && !canary::is(Canary::EpochsMixed);
            if later || sequence >= below || enough {
                break;
            }
            batch.last_sequence = sequence;
            for (line, version) in &group.versions {
                let dropped = self.dropped.get(line).is_some_and(|at| *at > sequence);
                if !dropped {
                    batch.versions.insert(*line, *version);
                }
            }
        }
        (batch.last_sequence > 0).then_some(batch)
    }

    fn written(&mut self, last_sequence: u64) {
        while self.groups.front().is_some_and(|group| group.place.sequence <= last_sequence) {
            self.groups.pop_front();
        }
        if self.groups.is_empty() {
            self.dropped.clear();
        }
        self.forget_cuts(self.cuts.back().map_or(0, |last| last.number));
    }

    fn undo(&mut self, first_sequence: u64) {
        self.groups.retain(|group| group.place.sequence < first_sequence);
        self.dropped.retain(|_, sequence| *sequence < first_sequence);
    }

    fn memory_bytes(&self) -> usize {
        let versions = self.groups.iter().map(|group| group.versions.capacity()).sum::<usize>();
        versions * size_of::<(Line, Version)>()
            + self.groups.capacity() * size_of::<Group>()
            + self.cuts.capacity() * size_of::<FlushPoint>()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::numbers::{Segment, SegmentSlot};

    const VERSION: Version = Version { slot: Slot(1), crc: 0, mask: None };

    fn place(sequence: u64, epoch: u64) -> Place {
        let (segment, slot, next_segment) = (Segment(0), SegmentSlot(0), Segment(1));
        let at = Position { segment, unit: 0, slot, next_segment, next_segment_unit: 0 };
        Place { sequence, epoch, at }
    }

    fn replayed(order: &mut Order, sequence: u64, epoch: u64, generation: u64, wall_ns: u64) {
        let head = RecordHead {
            generation: generation.into(),
            wall_ns: wall_ns.into(),
            ..RecordHead::new_zeroed()
        };
        order.push_replayed(place(sequence, epoch), &head, vec![(Line(sequence), VERSION)]);
    }

    #[test]
    fn what_was_replayed_is_as_old_as_its_records_say_and_no_younger_than_what_follows() {
        let mut order = Order::new(true);
        for (sequence, wall_ns) in [(1, 0), (2, 900), (3, 5000), (4, 700)] {
            replayed(&mut order, sequence, 3, 1, wall_ns);
        }
        // The ring's clock is younger than what it counts from.
        order.begin_time(Moment { ns: 50, wall_ns: 1000 });
        let mut ages = Vec::new();
        for sequence in 1..5 {
            let age = order.oldest_age(u64::MAX, 150).expect("a version waits");
            ages.push((age.ns, age.is_older));
            order.written(sequence);
        }
        assert_eq!(ages, [(400, true), (400, false), (400, false), (400, false)]);
        assert_eq!(order.oldest_age(u64::MAX, 150), None);
        order.push(place(5, 3), Moment { ns: 160, wall_ns: 1110 }, vec![(Line(1), VERSION)]);
        assert_eq!(order.oldest_age(5, 200), None, "nobody was told of it yet");
        assert_eq!(order.oldest_age(6, 200), Some(Age { ns: 40, is_older: false }));
        assert_eq!(order.oldest_age(6, 100), Some(Age { ns: 0, is_older: false }));
    }

    #[test]
    fn the_newest_flush_that_the_origin_has_is_the_one_before_the_oldest_that_waits() {
        let mut order = Order::new(true);
        replayed(&mut order, 1, 7, 1, 100);
        replayed(&mut order, 2, 8, 1, 200);
        replayed(&mut order, 3, 8, 2, 300);
        order.begin_time(Moment { ns: 0, wall_ns: 400 });
        let shipped = |order: &Order, epoch| {
            order.shipped_flush(epoch).map(|it| (it.generation, it.number, it.wall_ns))
        };
        assert_eq!(shipped(&order, 8), Some((1, 7, 0)), "when it was, nobody knows");
        order.written(1);
        assert_eq!(shipped(&order, 8), Some((1, 8, 100)), "after the record before it");
        order.cut(2, 9, 500);
        order.push(place(4, 9), Moment { ns: 1, wall_ns: 600 }, vec![(Line(1), VERSION)]);
        order.cut(2, 10, 700);
        assert_eq!(shipped(&order, 10), Some((1, 8, 100)));
        order.written(3);
        assert_eq!(shipped(&order, 10), Some((2, 9, 500)));
        order.written(4);
        assert_eq!(shipped(&order, 10), Some((2, 10, 700)));
        assert_eq!(shipped(&Order::new(true), 5), None);
        (11..1000).for_each(|epoch| order.cut(2, epoch, 0));
        assert!(order.memory_bytes() < 4096, "flushes that are over are forgotten");
    }
}
