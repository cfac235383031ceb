//! Order among requests that touch the same lines: reader-writer locks in buckets, no allocation
//! unless somebody really waits.
//!
//! A request takes the buckets of all its lines in ascending order of bucket, so two requests never
//! wait for each other. Two lines may share a bucket; the cost is a wait in vain, once in hundreds.
//!
//! A bucket is taken in the order of arrival: while a writer waits, readers that come later wait behind the
//! writer. So no stream of readers keeps a writer out for ever. A request must not lock lines that the same
//! request has locked already, not even shared ones.

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
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
    /// The requests that wait for each bucket, in the order of their arrival; no list is empty.
    waiting: RefCell<BTreeMap<u32, VecDeque<Waiter>>>,
    next_ticket: Cell<u64>,
}

/// A request that waits for a bucket.
struct Waiter {
    ticket: u64,
    access: Access,
    waker: Waker,
}

/// Takes a waiter out of the list of its bucket when the request has the bucket, or is dropped.
struct WaiterGuard<'a> {
    locks: &'a LineLocks,
    bucket: u32,
    ticket: u64,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.locks.leave(self.bucket, self.ticket);
    }
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
            next_ticket: Cell::new(0),
        })
    }

    /// The memory of the locks of a cache.
    pub(crate) const fn bytes() -> u64 {
        (BUCKET_COUNT * size_of::<Cell<i32>>()) as u64
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
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

    fn is_waited_for(&self, bucket: u32) -> bool {
        let waiting = self.waiting.borrow();
        !waiting.is_empty() && waiting.contains_key(&bucket)
    }

    fn try_take(&self, bucket: u32, access: Access) -> bool {
        let free = self.is_free(bucket, access);
        if free {
            let cell = &self.buckets[bucket as usize];
            cell.set(if access == Access::Shared { cell.get() + 1 } else { -1 });
        }
        free
    }

    /// Takes a bucket that nobody waits for, if it is free.
    #[inline]
    fn take_now(&self, bucket: u32, access: Access) -> bool {
        !self.is_waited_for(bucket) && self.try_take(bucket, access)
    }

    #[cold]
    async fn take_in_turn(&self, bucket: u32, access: Access) {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let mut guard = None;
        poll_fn(|context| {
            if guard.is_none() {
                let waiter = Waiter { ticket, access, waker: context.waker().clone() };
                self.waiting.borrow_mut().entry(bucket).or_default().push_back(waiter);
                guard = Some(WaiterGuard { locks: self, bucket, ticket });
            }
            if self.is_first(bucket, ticket) && self.try_take(bucket, access) {
                return Poll::Ready(());
            }
            if let Some(list) = self.waiting.borrow_mut().get_mut(&bucket)
                && let Some(own) = list.iter_mut().find(|waiter| waiter.ticket == ticket)
            {
                own.waker.clone_from(context.waker());
            }
            Poll::Pending
        })
        .await;
    }

    fn is_first(&self, bucket: u32, ticket: u64) -> bool {
        let waiting = self.waiting.borrow();
        let first = waiting.get(&bucket).and_then(VecDeque::front);
        first.is_some_and(|first| first.ticket == ticket)
    }

    /// A request has its bucket, or is dropped: the next one may have its turn.
    fn leave(&self, bucket: u32, ticket: u64) {
        if let Entry::Occupied(mut list) = self.waiting.borrow_mut().entry(bucket) {
            list.get_mut().retain(|waiter| waiter.ticket != ticket);
            if list.get().is_empty() {
                list.remove();
            }
        }
        self.wake_first(bucket);
    }

    /// Wakes the request whose turn a bucket is, if the bucket is free for that request.
    fn wake_first(&self, bucket: u32) {
        let waiting = self.waiting.borrow();
        if let Some(first) = waiting.get(&bucket).and_then(VecDeque::front)
            && self.is_free(bucket, first.access)
        {
            first.waker.wake_by_ref();
        }
    }

    fn give(&self, bucket: u32, access: Access) {
        let cell = &self.buckets[bucket as usize];
        cell.set(if access == Access::Shared { cell.get() - 1 } else { 0 });
        if !self.waiting.borrow().is_empty() {
            self.wake_first(bucket);
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

    /// Locks the lines `first..=last` if nobody else has one of them or waits for one.
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
        let is_takeable =
            |bucket: &u32| self.is_free(*bucket, access) && !self.is_waited_for(*bucket);
        if !held.buckets().iter().all(is_takeable) {
            return None;
        }
        for bucket in held.buckets() {
            assert!(self.try_take(*bucket, access), "a bucket of a request comes once");
        }
        Some(LineGuard { locks: self.clone(), held, access })
    }

    /// Locks the lines `first..=last`.
    #[inline]
    pub(crate) async fn lock(
        self: &Rc<Self>,
        first: Line,
        last: Line,
        access: Access,
    ) -> LineGuard {
        // In boxes: a request that finds its one line free carries neither wait along.
        if first != last {
            return Box::pin(self.lock_many(first, last, access)).await;
        }
        let bucket = bucket_of(first);
        if !self.take_now(bucket, access) {
            Box::pin(self.take_in_turn(bucket, access)).await;
        }
        LineGuard { locks: self.clone(), held: Held::One(bucket), access }
    }

    async fn lock_many(self: &Rc<Self>, first: Line, last: Line, access: Access) -> LineGuard {
        let buckets = Self::buckets_of(first, last);
        let mut guard = LineGuard { locks: self.clone(), held: Held::Many(Vec::new()), access };
        for bucket in buckets {
            if !self.take_now(bucket, access) {
                self.take_in_turn(bucket, access).await;
            }
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
    use std::task::Context;

    use voltier_ring::{Executor, NoFiles};

    use super::*;

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

    /// Two readers of a line in turn, each of which locks the line before the other gives it back, for
    /// ever; a writer beside them.
    #[test]
    fn readers_that_never_leave_a_gap_do_not_starve_a_writer() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let locks = LineLocks::new();
        let is_over = Rc::new(Cell::new(false));
        let locked = locks.clone();
        executor.block_on(async move {
            let readers: Vec<_> = [0, 5]
                .into_iter()
                .map(|start_ns| {
                    let (own, locks, is_over) = (handle.clone(), locked.clone(), is_over.clone());
                    handle.spawn(async move {
                        own.sleep(start_ns).await;
                        while !is_over.get() {
                            let _guard = locks.lock(Line(7), Line(7), Access::Shared).await;
                            own.sleep(10).await;
                        }
                    })
                })
                .collect();
            handle.sleep(100).await;
            let (writing, has_written) = (locked.clone(), Rc::new(Cell::new(false)));
            let written = has_written.clone();
            let writer = handle.spawn(async move {
                drop(writing.lock(Line(7), Line(8), Access::Exclusive).await);
                written.set(true);
            });
            handle.sleep(10_000).await;
            assert!(has_written.get(), "the writer has its turn between readers");
            is_over.set(true);
            writer.await;
            for reader in readers {
                reader.await;
            }
        });
        assert_eq!(locks.in_use(), (0, 0));
    }

    #[test]
    fn a_waiting_writer_that_is_dropped_lets_the_readers_behind_it_in() {
        let locks = LineLocks::new();
        let mut context = Context::from_waker(Waker::noop());
        let first = locks.try_lock(Line(1), Line(1), Access::Shared).unwrap();
        let mut writer = Box::pin(locks.lock(Line(1), Line(1), Access::Exclusive));
        let mut reader = Box::pin(locks.lock(Line(1), Line(1), Access::Shared));
        assert!(writer.as_mut().poll(&mut context).is_pending());
        assert!(reader.as_mut().poll(&mut context).is_pending());
        assert!(locks.try_lock(Line(1), Line(1), Access::Shared).is_none());
        drop(writer);
        assert!(reader.as_mut().poll(&mut context).is_ready());
        drop((first, reader));
        assert_eq!(locks.in_use(), (0, 0));
    }
}
