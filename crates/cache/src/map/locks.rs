//! Order among requests that touch the same lines: reader-writer locks in buckets, no allocation
//! unless somebody really waits.
//!
//! A request takes the buckets of all its lines in ascending order of bucket, so two requests never
//! wait for each other. Two lines may share a bucket; the cost is a wait in vain, once in hundreds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::numbers::Line;

/// Buckets: with 256 lines in flight, one request in 256 meets a stranger on its bucket.
const BUCKET_COUNT: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    Exclusive,
}

/// The locks of one cache.
pub(crate) struct LineLocks {
    /// Readers, or -1 for a writer.
    buckets: Vec<Cell<i32>>,
    waiting: RefCell<BTreeMap<u32, VecDeque<Waker>>>,
}

/// Lines locked until dropped.
pub(crate) struct LineGuard {
    locks: Rc<LineLocks>,
    held: Held,
    access: Access,
}

/// Buckets of one request: most requests touch one or two lines.
enum Held {
    One(u32),
    Many(Vec<u32>),
}

impl Held {
    fn buckets(&self) -> &[u32] {
        match self {
            Held::One(one) => std::slice::from_ref(one),
            Held::Many(many) => many,
        }
    }
}

fn bucket_of(line: Line) -> u32 {
    // Neighbouring lines get neighbouring buckets: a large request takes distinct ones.
    (line.0 % BUCKET_COUNT as u64) as u32
}

impl LineLocks {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            buckets: vec![Cell::new(0); BUCKET_COUNT],
            waiting: RefCell::new(BTreeMap::new()),
        })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        BUCKET_COUNT * size_of::<Cell<i32>>()
    }

    /// Buckets that are held, and buckets that somebody waits for.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let held = self.buckets.iter().filter(|bucket| bucket.get() != 0).count();
        (held, self.waiting.borrow().len())
    }

    fn is_free(&self, bucket: u32, access: Access) -> bool {
        let held = self.buckets[bucket as usize].get();
        match access {
            Access::Shared => held >= 0,
            Access::Exclusive => held == 0,
        }
    }

    fn try_take(&self, bucket: u32, access: Access) -> bool {
        let free = self.is_free(bucket, access);
        if free {
            let cell = &self.buckets[bucket as usize];
            cell.set(if access == Access::Shared { cell.get() + 1 } else { -1 });
        }
        free
    }

    async fn take(&self, bucket: u32, access: Access) {
        if self.try_take(bucket, access) {
            return;
        }
        poll_fn(|context| {
            if self.try_take(bucket, access) {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            let list = waiting.entry(bucket).or_default();
            if !list.iter().any(|known| known.will_wake(context.waker())) {
                list.push_back(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn give(&self, bucket: u32, access: Access) {
        let cell = &self.buckets[bucket as usize];
        cell.set(if access == Access::Shared { cell.get() - 1 } else { 0 });
        if cell.get() != 0 || self.waiting.borrow().is_empty() {
            return;
        }
        // Everybody tries again, in the order of their arrival: the tasks' queue is first come.
        let waiting = self.waiting.borrow_mut().remove(&bucket);
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }

    /// The buckets of lines `first..=last`, two or more, in the order in which all take them.
    fn buckets_of(first: Line, last: Line) -> Vec<u32> {
        let mut buckets: Vec<u32> = if last - first >= BUCKET_COUNT as u64 {
            (0..BUCKET_COUNT as u32).collect()
        } else {
            first.through(last).map(bucket_of).collect()
        };
        buckets.sort_unstable();
        buckets
    }

    /// Locks the lines `first..=last` if nobody else has one of them.
    pub(crate) fn try_lock(
        self: &Rc<Self>,
        first: Line,
        last: Line,
        access: Access,
    ) -> Option<LineGuard> {
        let held = if first == last {
            Held::One(bucket_of(first))
        } else {
            Held::Many(Self::buckets_of(first, last))
        };
        if !held.buckets().iter().all(|bucket| self.is_free(*bucket, access)) {
            return None;
        }
        for bucket in held.buckets() {
            assert!(self.try_take(*bucket, access), "a bucket of a request comes once");
        }
        Some(LineGuard { locks: self.clone(), held, access })
    }

    /// Locks the lines `first..=last`.
    pub(crate) async fn lock(
        self: &Rc<Self>,
        first: Line,
        last: Line,
        access: Access,
    ) -> LineGuard {
        if first == last {
            let bucket = bucket_of(first);
            self.take(bucket, access).await;
            return LineGuard { locks: self.clone(), held: Held::One(bucket), access };
        }
        let buckets = Self::buckets_of(first, last);
        let mut guard = LineGuard { locks: self.clone(), held: Held::Many(Vec::new()), access };
        for bucket in buckets {
            self.take(bucket, access).await;
            // Held as it grows: a request dropped here gives back what it has.
            if let Held::Many(held) = &mut guard.held {
                held.push(bucket);
            }
        }
        guard
    }
}

impl Drop for LineGuard {
    fn drop(&mut self) {
        for bucket in self.held.buckets() {
            self.locks.give(*bucket, self.access);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn a_writer_waits_for_readers_and_the_next_reader_for_the_writer() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let locks = LineLocks::new();
        let log = Rc::new(RefCell::new(Vec::new()));
        let (outer, seen) = (handle.clone(), log.clone());
        executor.block_on(async move {
            let reader = locks.lock(Line(5), Line(9), Access::Shared).await;
            let writer = {
                let (locks, log) = (locks.clone(), log.clone());
                outer.spawn(async move {
                    let _guard = locks.lock(Line(9), Line(12), Access::Exclusive).await;
                    log.borrow_mut().push("writer");
                })
            };
            outer.yield_now().await;
            log.borrow_mut().push("reader");
            drop(reader);
            writer.await;
            drop(locks.lock(Line(9), Line(9), Access::Exclusive).await);
        });
        assert_eq!(*seen.borrow(), ["reader", "writer"]);
    }
}
