//! Order among requests to the same sectors: ranges that a request holds until it has ended.
//!
//! A range is held in one of two modes. Exclusive ranges that overlap follow one another in the order of their
//! arrival. Shared ones may be held at the same time, but not beside an exclusive one.
//!
//! Ranges that meet nobody are to cost next to nothing. So exclusive ones are also counted by the places
//! they cover, and only a range whose places are counted already is compared with all others.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use voltier_block::{Lba, SectorRange};

/// How a request holds its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeMode {
    /// In any order with others of this mode.
    Shared,
    /// Alone: nobody else holds any of it meanwhile.
    Exclusive,
}

/// Sectors of a place.
const PLACE_SECTORS: u64 = 8;
/// Places that are counted; a power of two. Distant ranges share a counter, and are then compared in vain.
const PLACES: usize = 1024;
/// Ranges over more places are counted as long ones, which may be anywhere.
const PLACES_OF_RANGE_MAX: u64 = 64;

/// How many exclusive ranges cover each place.
#[derive(Default)]
struct Covered {
    /// Empty until there is one.
    places: Vec<u32>,
    /// Ranges that are too long to count by places.
    long: usize,
}

/// The places of a range; none if it is long.
fn places_of(range: SectorRange) -> Option<impl Iterator<Item = usize>> {
    let first = range.start.0 / PLACE_SECTORS;
    let end = range.end().0.div_ceil(PLACE_SECTORS);
    let places = (first..end).map(|place| place as usize % PLACES);
    (end - first <= PLACES_OF_RANGE_MAX).then_some(places)
}

impl Covered {
    /// Whether an exclusive range may overlap with this one.
    fn may_meet(&self, range: SectorRange) -> bool {
        if self.places.is_empty() {
            return self.long > 0;
        }
        match places_of(range) {
            Some(mut places) => self.long > 0 || places.any(|place| self.places[place] > 0),
            None => true,
        }
    }

    fn add(&mut self, range: SectorRange) {
        let Some(places) = places_of(range) else {
            self.long += 1;
            return;
        };
        self.places.resize(PLACES, 0);
        places.for_each(|place| self.places[place] += 1);
    }

    fn remove(&mut self, range: SectorRange) {
        match places_of(range) {
            Some(places) => places.for_each(|place| self.places[place] -= 1),
            None => self.long -= 1,
        }
    }
}

/// A change that has its range, or waits for it.
struct Entry {
    /// The place in the order of arrival: a change waits for those before it only, so none waits for ever.
    number: u64,
    range: SectorRange,
    /// The range as it was at first, by which it is counted.
    counted: SectorRange,
    mode: RangeMode,
    /// Changes before this one that it has to wait for.
    blockers: usize,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, range: SectorRange, mode: RangeMode) -> bool {
        let both_shared = self.mode == RangeMode::Shared && mode == RangeMode::Shared;
        !both_shared && self.range.overlaps(range)
    }
}

#[derive(Default)]
struct Table {
    entries: Vec<Option<Entry>>,
    /// Places of the list that are free.
    vacant: Vec<usize>,
    next_number: u64,
    covered: Covered,
    /// How many entries there are of each mode.
    shared: usize,
    exclusive: usize,
    /// How many entries wait.
    waiting: usize,
}

impl Table {
    /// Whether any entry may be in the way.
    fn may_wait(&self, range: SectorRange, mode: RangeMode) -> bool {
        let beside_shared = mode == RangeMode::Exclusive && self.shared > 0;
        beside_shared || (self.exclusive > 0 && self.covered.may_meet(range))
    }

    /// The place of a new entry, and whether the entry waits.
    fn enter(&mut self, range: SectorRange, mode: RangeMode) -> (usize, bool) {
        let is_blocker = |other: &&Entry| other.conflicts(range, mode);
        let blockers = if self.may_wait(range, mode) {
            self.entries.iter().flatten().filter(is_blocker).count()
        } else {
            0
        };
        match mode {
            RangeMode::Shared => self.shared += 1,
            RangeMode::Exclusive => {
                self.exclusive += 1;
                self.covered.add(range);
            }
        }
        self.waiting += usize::from(blockers > 0);
        let (number, counted) = (self.next_number, range);
        let entry = Some(Entry { number, range, counted, mode, blockers, waker: None });
        self.next_number += 1;
        let place = match self.vacant.pop() {
            Some(place) => {
                self.entries[place] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        (place, blockers > 0)
    }

    fn poll(&mut self, place: usize, context: &Context<'_>) -> Poll<()> {
        match &mut self.entries[place] {
            Some(entry) if entry.blockers > 0 => {
                entry.waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Takes a change out, and wakes those that wait for nobody any more.
    fn leave(&mut self, place: usize) {
        self.vacant.push(place);
        let Some(left) = self.entries[place].take() else { return };
        match left.mode {
            RangeMode::Shared => self.shared -= 1,
            RangeMode::Exclusive => {
                self.exclusive -= 1;
                self.covered.remove(left.counted);
            }
        }
        self.waiting -= usize::from(left.blockers > 0);
        if self.waiting > 0 {
            self.unblock(|entry| {
                entry.number > left.number && entry.conflicts(left.range, left.mode)
            });
        }
    }

    /// Lets a change give the front of its range up.
    fn advance(&mut self, place: usize, to: Lba) {
        let Some(entry) = &mut self.entries[place] else { return };
        let (before, number, mode) = (entry.range, entry.number, entry.mode);
        let start = to.clamp(before.start, before.end());
        let after = SectorRange::new(start, before.end().0 - start.0);
        entry.range = after;
        if self.waiting > 0 {
            self.unblock(|entry| {
                let is_freed = entry.conflicts(before, mode) && !entry.conflicts(after, mode);
                entry.number > number && is_freed
            });
        }
    }

    /// Entries wait for one less each, and wake when that was the last.
    fn unblock(&mut self, is_freed: impl Fn(&Entry) -> bool) {
        for entry in self.entries.iter_mut().flatten().filter(|entry| is_freed(entry)) {
            entry.blockers -= 1;
            if entry.blockers == 0 {
                self.waiting -= 1;
                entry.waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }
}

/// The ranges of a device under change.
#[derive(Default)]
pub struct RangeLocks {
    table: RefCell<Table>,
}

/// A range under change, until dropped.
pub struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    place: usize,
}

impl RangeLocks {
    /// Waits until no change from before has a part of `range` in a mode that excludes this one.
    pub async fn lock(&self, range: SectorRange, mode: RangeMode) -> RangeGuard<'_> {
        let (place, waits) = self.table.borrow_mut().enter(range, mode);
        // Made before the wait: a change that is dropped while it waits gives its place back.
        let guard = RangeGuard { locks: self, place };
        if waits {
            poll_fn(|context| self.table.borrow_mut().poll(place, context)).await;
        }
        guard
    }
}

impl RangeGuard<'_> {
    /// The range up to this sector has been changed: others need not wait for it any more.
    pub fn advance(&self, to: Lba) {
        self.locks.table.borrow_mut().advance(self.place, to);
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.locks.table.borrow_mut().leave(self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// The guard, if the lock is to be had now; else the wait goes on.
    fn poll<'a>(
        lock: &mut std::pin::Pin<&mut impl Future<Output = RangeGuard<'a>>>,
    ) -> Option<RangeGuard<'a>> {
        match lock.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    fn sectors(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Lba(start), count)
    }

    #[test]
    fn a_writer_of_whole_blocks_waits_for_a_part_of_the_same_blocks_and_for_no_other() {
        let locks = RangeLocks::default();
        let mut part = pin!(locks.lock(sectors(8, 1), RangeMode::Exclusive));
        let part = poll(&mut part).unwrap();
        let mut same = pin!(locks.lock(sectors(0, 16), RangeMode::Shared));
        let mut other = pin!(locks.lock(sectors(9, 8), RangeMode::Shared));
        assert!(poll(&mut same).is_none() && poll(&mut other).is_some());
        drop(part);
        assert!(poll(&mut same).is_some());
    }

    #[test]
    fn writers_of_whole_blocks_never_wait_for_each_other() {
        let locks = RangeLocks::default();
        let mut all =
            [0, 4, 0, 2].map(|start| Box::pin(locks.lock(sectors(start, 4), RangeMode::Shared)));
        let guards = all.each_mut().map(|lock| poll(&mut lock.as_mut()));
        assert!(guards.iter().all(Option::is_some));
    }

    #[test]
    fn a_part_is_not_kept_waiting_by_writers_that_come_after_it() {
        let locks = RangeLocks::default();
        let mut before = pin!(locks.lock(sectors(0, 8), RangeMode::Shared));
        let before = poll(&mut before).unwrap();
        let mut part = pin!(locks.lock(sectors(7, 1), RangeMode::Exclusive));
        let mut after = pin!(locks.lock(sectors(0, 8), RangeMode::Shared));
        assert!(poll(&mut part).is_none() && poll(&mut after).is_none());
        drop(before);
        let part = poll(&mut part).expect("whoever came before it is done");
        assert!(poll(&mut after).is_none());
        drop(part);
        assert!(poll(&mut after).is_some());
    }

    #[test]
    fn a_wait_that_is_given_up_leaves_nothing_behind() {
        let locks = RangeLocks::default();
        let mut first = pin!(locks.lock(sectors(0, 1), RangeMode::Exclusive));
        let first = poll(&mut first).unwrap();
        {
            let mut dropped = Box::pin(locks.lock(sectors(0, 1), RangeMode::Exclusive));
            assert!(poll(&mut dropped.as_mut()).is_none());
        }
        drop(first);
        assert_eq!(locks.table.borrow().exclusive, 0);
        let mut next = pin!(locks.lock(sectors(0, 1), RangeMode::Shared));
        assert!(poll(&mut next).is_some());
    }

    #[test]
    fn exclusive_ranges_that_overlap_follow_one_another_and_others_do_not_wait() {
        let locks = RangeLocks::default();
        let mut first = pin!(locks.lock(sectors(3, 4), RangeMode::Exclusive));
        let first = poll(&mut first).expect("nobody is before it");
        let mut second = pin!(locks.lock(sectors(6, 4), RangeMode::Exclusive));
        let mut third = pin!(locks.lock(sectors(9, 1), RangeMode::Exclusive));
        let mut beside = pin!(locks.lock(sectors(7, 1), RangeMode::Exclusive));
        // The same counter as the first has, a whole round of places behind.
        let mut far = pin!(locks.lock(sectors(8 * 1024 + 3, 4), RangeMode::Exclusive));
        assert!(poll(&mut second).is_none() && poll(&mut third).is_none());
        assert!(poll(&mut beside).is_none(), "it is behind the second");
        assert!(poll(&mut far).is_some());
        drop(first);
        let second = poll(&mut second).expect("its turn");
        assert!(poll(&mut third).is_none());
        drop(second);
        assert!(poll(&mut third).is_some() && poll(&mut beside).is_some());
    }

    #[test]
    fn a_long_range_gives_up_what_is_done() {
        let locks = RangeLocks::default();
        let mut long = pin!(locks.lock(sectors(0, 1 << 20), RangeMode::Exclusive));
        let long = poll(&mut long).expect("nobody is before it");
        let mut front = pin!(locks.lock(sectors(8, 8), RangeMode::Shared));
        let mut back = pin!(locks.lock(sectors(5000, 8), RangeMode::Shared));
        let mut across = pin!(locks.lock(sectors(4090, 12), RangeMode::Exclusive));
        assert!(poll(&mut front).is_none() && poll(&mut back).is_none());
        assert!(poll(&mut across).is_none());
        long.advance(Lba(4096));
        let mut later = pin!(locks.lock(sectors(100, 8), RangeMode::Exclusive));
        assert!(poll(&mut front).is_some() && poll(&mut later).is_some());
        assert!(poll(&mut back).is_none() && poll(&mut across).is_none());
        drop(long);
        assert!(poll(&mut back).is_some() && poll(&mut across).is_some());
        assert_eq!(locks.table.borrow().covered.long, 0);
    }

    /// Ranges of all lengths, some of them given up in part, against a list that is searched from end to end.
    #[test]
    fn a_range_is_granted_when_no_range_before_it_is_in_the_way_and_not_before() {
        for seed in 0..40 {
            let (locks, mut prng) = (RangeLocks::default(), voltier_block::Prng::new(seed));
            let mut all: Vec<(SectorRange, RangeMode, _, Option<RangeGuard<'_>>)> = Vec::new();
            for _ in 0..400 {
                if prng.one_in(2) && !all.is_empty() {
                    let place = prng.below(all.len() as u64) as usize;
                    if prng.one_in(3)
                        && let (range, _, _, Some(guard)) = &mut all[place]
                    {
                        let done = prng.below(range.count);
                        guard.advance(range.start.plus(done));
                        *range = SectorRange::new(range.start.plus(done), range.count - done);
                    } else {
                        drop(all.remove(place));
                    }
                } else {
                    let longest = *prng.pick(&[1, 16, 100, 2000]);
                    let (end, count) = (*prng.pick(&[30, 9000, 20_000]), 1 + prng.below(longest));
                    let range = sectors(prng.below(end), count);
                    let mode = *prng.pick(&[RangeMode::Shared, RangeMode::Exclusive]);
                    all.push((range, mode, Box::pin(locks.lock(range, mode)), None));
                }
                let mut before: Vec<(SectorRange, RangeMode)> = Vec::new();
                for (range, mode, lock, guard) in &mut all {
                    let excludes = |other: &(SectorRange, RangeMode)| {
                        let both_shared =
                            (other.1, *mode) == (RangeMode::Shared, RangeMode::Shared);
                        other.0.overlaps(*range) && !both_shared
                    };
                    if guard.is_none() {
                        *guard = poll(&mut lock.as_mut());
                        assert_eq!(guard.is_some(), !before.iter().any(excludes), "seed {seed}");
                    }
                    before.push((*range, *mode));
                }
            }
        }
    }

    /// Counts how often a waiting writer is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn of_many_parts_of_one_sector_each_is_woken_once_and_in_its_turn() {
        const WRITERS: usize = 100;
        let locks = RangeLocks::default();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut waiting: Vec<_> = (0..WRITERS)
            .map(|_| Box::pin(locks.lock(sectors(3, 1), RangeMode::Exclusive)))
            .collect();
        let mut guards: Vec<_> =
            waiting.iter_mut().map(|writer| writer.as_mut().poll(&mut context)).collect();
        for turn in 0..WRITERS {
            assert_eq!(woken.0.load(Ordering::Relaxed), turn);
            let others_wait = guards[turn + 1..].iter().all(Poll::is_pending);
            assert!(guards[turn].is_ready() && others_wait);
            guards[turn] = Poll::Pending;
            if let Some(next) = waiting.get_mut(turn + 1) {
                guards[turn + 1] = next.as_mut().poll(&mut context);
            }
        }
    }
}
