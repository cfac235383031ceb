//! Locks of the sectors being written, so that a read-modify-write loses nobody's bytes.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use voltier_block::SectorRange;

/// How a writer treats its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Whole blocks are replaced: any order with other such writers will do.
    Replace,
    /// Old content is read and written back: nobody else may write meanwhile.
    Modify,
}

/// A writer that has its range, or waits for it.
struct Entry {
    /// The place in the order of arrival: a writer waits for those before it only, so none waits for ever.
    number: u64,
    range: SectorRange,
    mode: Mode,
    /// Writers before this one that it has to wait for.
    blockers: usize,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, range: SectorRange, mode: Mode) -> bool {
        let both_replace = self.mode == Mode::Replace && mode == Mode::Replace;
        !both_replace && self.range.overlaps(range)
    }
}

#[derive(Default)]
struct Table {
    entries: Vec<Option<Entry>>,
    /// Places of the list that are free.
    vacant: Vec<usize>,
    next_number: u64,
}

impl Table {
    fn enter(&mut self, range: SectorRange, mode: Mode, are_compared: bool) -> usize {
        let is_blocker = |other: &&Entry| other.conflicts(range, mode);
        let blockers =
            if are_compared { self.entries.iter().flatten().filter(is_blocker).count() } else { 0 };
        let entry = Some(Entry { number: self.next_number, range, mode, blockers, waker: None });
        self.next_number += 1;
        match self.vacant.pop() {
            Some(place) => {
                self.entries[place] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        }
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

    /// Takes a writer out, and wakes those that wait for nobody any more.
    fn leave(&mut self, place: usize, are_compared: bool) {
        self.vacant.push(place);
        let Some(left) = self.entries[place].take() else { return };
        if !are_compared {
            return;
        }
        for entry in self.entries.iter_mut().flatten() {
            if entry.number > left.number && entry.conflicts(left.range, left.mode) {
                entry.blockers -= 1;
                if entry.blockers == 0 {
                    entry.waker.take().into_iter().for_each(Waker::wake);
                }
            }
        }
    }
}

/// The ranges of a device under write.
#[derive(Default)]
pub(crate) struct RangeLocks {
    table: RefCell<Table>,
    /// How many entries modify. While there are none, nobody waits and nothing is compared.
    modifying: Cell<usize>,
}

/// A range under write, until dropped.
pub(crate) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    place: usize,
    mode: Mode,
}

impl RangeLocks {
    /// Waits until no writer from before has a part of `range` in a mode that excludes this one.
    pub(crate) async fn lock(&self, range: SectorRange, mode: Mode) -> RangeGuard<'_> {
        if mode == Mode::Modify {
            self.modifying.set(self.modifying.get() + 1);
        }
        let are_compared = self.modifying.get() > 0;
        let place = self.table.borrow_mut().enter(range, mode, are_compared);
        let guard = RangeGuard { locks: self, place, mode };
        if are_compared {
            poll_fn(|context| self.table.borrow_mut().poll(place, context)).await;
        }
        guard
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let locks = self.locks;
        let modifying = locks.modifying.get();
        locks.table.borrow_mut().leave(self.place, modifying > 0);
        locks.modifying.set(modifying - usize::from(self.mode == Mode::Modify));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use voltier_block::Lba;

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
        let mut part = pin!(locks.lock(sectors(8, 1), Mode::Modify));
        let part = poll(&mut part).unwrap();
        let mut same = pin!(locks.lock(sectors(0, 16), Mode::Replace));
        let mut other = pin!(locks.lock(sectors(9, 8), Mode::Replace));
        assert!(poll(&mut same).is_none() && poll(&mut other).is_some());
        drop(part);
        assert!(poll(&mut same).is_some());
    }

    #[test]
    fn writers_of_whole_blocks_never_wait_for_each_other() {
        let locks = RangeLocks::default();
        let mut all =
            [0, 4, 0, 2].map(|start| Box::pin(locks.lock(sectors(start, 4), Mode::Replace)));
        let guards = all.each_mut().map(|lock| poll(&mut lock.as_mut()));
        assert!(guards.iter().all(Option::is_some));
    }

    #[test]
    fn a_part_is_not_kept_waiting_by_writers_that_come_after_it() {
        let locks = RangeLocks::default();
        let mut before = pin!(locks.lock(sectors(0, 8), Mode::Replace));
        let before = poll(&mut before).unwrap();
        let mut part = pin!(locks.lock(sectors(7, 1), Mode::Modify));
        let mut after = pin!(locks.lock(sectors(0, 8), Mode::Replace));
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
        let mut first = pin!(locks.lock(sectors(0, 1), Mode::Modify));
        let first = poll(&mut first).unwrap();
        {
            let mut dropped = Box::pin(locks.lock(sectors(0, 1), Mode::Modify));
            assert!(poll(&mut dropped.as_mut()).is_none());
        }
        drop(first);
        assert_eq!(locks.modifying.get(), 0);
        let mut next = pin!(locks.lock(sectors(0, 1), Mode::Replace));
        assert!(poll(&mut next).is_some());
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
        let mut waiting: Vec<_> =
            (0..WRITERS).map(|_| Box::pin(locks.lock(sectors(3, 1), Mode::Modify))).collect();
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
