//! Locks of the sectors being written, so that a read-modify-write loses nobody's bytes.

use std::cell::{Cell, RefCell};

use voltier_block::SectorRange;
use voltier_ring::Signal;

/// How a writer treats its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Whole blocks are replaced: any order with other such writers will do.
    Replace,
    /// Old content is read and written back: nobody else may write meanwhile.
    Modify,
}

/// A writer that has its range, or waits for it.
#[derive(Clone, Copy)]
struct Entry {
    /// The place in the order of arrival: a writer waits for those before it only, so none waits for ever.
    number: u64,
    range: SectorRange,
    mode: Mode,
}

#[derive(Default)]
struct Table {
    entries: Vec<Option<Entry>>,
    /// Places of the list that are free.
    vacant: Vec<usize>,
    next_number: u64,
}

impl Table {
    fn enter(&mut self, range: SectorRange, mode: Mode) -> usize {
        let entry = Some(Entry { number: self.next_number, range, mode });
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

    fn is_blocked(&self, place: usize) -> bool {
        let Some(this) = self.entries[place] else { return false };
        self.entries.iter().flatten().any(|other| {
            let both_replace = this.mode == Mode::Replace && other.mode == Mode::Replace;
            other.number < this.number && !both_replace && other.range.overlaps(this.range)
        })
    }
}

/// The ranges of a device under write.
#[derive(Default)]
pub(crate) struct RangeLocks {
    table: RefCell<Table>,
    /// How many entries modify. While there are none, nobody waits and nothing is compared.
    modifying: Cell<usize>,
    released: Signal,
}

/// A range under write, until dropped.
pub(crate) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    place: usize,
    mode: Mode,
}

impl RangeLocks {
    /// Waits until nobody who came before writes to `range` in a way that bears no company.
    pub(crate) async fn lock(&self, range: SectorRange, mode: Mode) -> RangeGuard<'_> {
        let place = self.table.borrow_mut().enter(range, mode);
        let guard = RangeGuard { locks: self, place, mode };
        if mode == Mode::Modify {
            self.modifying.set(self.modifying.get() + 1);
        }
        if self.modifying.get() > 0 {
            self.released.until(|| !self.table.borrow().is_blocked(place)).await;
        }
        guard
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let locks = self.locks;
        {
            let mut table = locks.table.borrow_mut();
            table.entries[self.place] = None;
            table.vacant.push(self.place);
        }
        let modifying = locks.modifying.get();
        if modifying > 0 {
            locks.modifying.set(modifying - usize::from(self.mode == Mode::Modify));
            locks.released.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

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
}
