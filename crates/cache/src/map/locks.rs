//! Order among requests that touch the same lines: striped reader-writer locks, no allocation
//! unless somebody really waits.
//!
//! A request takes the stripes of all its lines in ascending order of stripe, so two requests never
//! wait for each other. Two lines may share a stripe; the cost is a wait in vain, once in hundreds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::numbers::Line;

/// Stripes: with 256 lines in flight, one request in 256 meets a stranger on its stripe.
const STRIPE_COUNT: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    Exclusive,
}

/// The locks of one cache.
pub(crate) struct LineLocks {
    /// Readers, or -1 for a writer.
    stripes: Vec<Cell<i32>>,
    waiting: RefCell<BTreeMap<u32, VecDeque<Waker>>>,
}

/// Lines locked until dropped.
pub(crate) struct LineGuard {
    locks: Rc<LineLocks>,
    held: Held,
    access: Access,
}

/// Stripes of one request: most requests touch one or two lines.
enum Held {
    One(u32),
    Many(Vec<u32>),
}

impl Held {
    fn stripes(&self) -> &[u32] {
        match self {
            Held::One(one) => std::slice::from_ref(one),
            Held::Many(many) => many,
        }
    }
}

fn stripe_of(line: Line) -> u32 {
    // Neighbouring lines get neighbouring stripes: a large request takes distinct ones.
    (line.0 % STRIPE_COUNT as u64) as u32
}

impl LineLocks {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            stripes: vec![Cell::new(0); STRIPE_COUNT],
            waiting: RefCell::new(BTreeMap::new()),
        })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        STRIPE_COUNT * size_of::<Cell<i32>>()
    }

    /// Stripes that are held, and stripes that somebody waits for.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let held = self.stripes.iter().filter(|stripe| stripe.get() != 0).count();
        (held, self.waiting.borrow().len())
    }

    fn is_free(&self, stripe: u32, access: Access) -> bool {
        let held = self.stripes[stripe as usize].get();
        match access {
            Access::Shared => held >= 0,
            Access::Exclusive => held == 0,
        }
    }

    fn try_take(&self, stripe: u32, access: Access) -> bool {
        let free = self.is_free(stripe, access);
        if free {
            let cell = &self.stripes[stripe as usize];
            cell.set(if access == Access::Shared { cell.get() + 1 } else { -1 });
        }
        free
    }

    async fn take(&self, stripe: u32, access: Access) {
        if self.try_take(stripe, access) {
            return;
        }
        poll_fn(|context| {
            if self.try_take(stripe, access) {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            waiting.entry(stripe).or_default().push_back(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn give(&self, stripe: u32, access: Access) {
        let cell = &self.stripes[stripe as usize];
        cell.set(if access == Access::Shared { cell.get() - 1 } else { 0 });
        if cell.get() != 0 || self.waiting.borrow().is_empty() {
            return;
        }
        // Everybody tries again, in the order of their arrival: the tasks' queue is first come.
        let waiting = self.waiting.borrow_mut().remove(&stripe);
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }

    /// The stripes of lines `first..=last`, two or more, in the order in which all take them.
    fn stripes_of(first: Line, last: Line) -> Vec<u32> {
        let mut stripes: Vec<u32> = if last - first >= STRIPE_COUNT as u64 {
            (0..STRIPE_COUNT as u32).collect()
        } else {
            first.through(last).map(stripe_of).collect()
        };
        stripes.sort_unstable();
        stripes
    }

    /// Locks the lines `first..=last` if nobody else has one of them.
    pub(crate) fn try_lock(
        self: &Rc<Self>,
        first: Line,
        last: Line,
        access: Access,
    ) -> Option<LineGuard> {
        let held = if first == last {
            Held::One(stripe_of(first))
        } else {
            Held::Many(Self::stripes_of(first, last))
        };
        if !held.stripes().iter().all(|stripe| self.is_free(*stripe, access)) {
            return None;
        }
        for stripe in held.stripes() {
            assert!(self.try_take(*stripe, access), "a stripe of a request comes once");
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
            let stripe = stripe_of(first);
            self.take(stripe, access).await;
            return LineGuard { locks: self.clone(), held: Held::One(stripe), access };
        }
        let stripes = Self::stripes_of(first, last);
        let mut guard = LineGuard { locks: self.clone(), held: Held::Many(Vec::new()), access };
        for stripe in stripes {
            self.take(stripe, access).await;
            // Held as it grows: a request dropped here gives back what it has.
            if let Held::Many(held) = &mut guard.held {
                held.push(stripe);
            }
        }
        guard
    }
}

impl Drop for LineGuard {
    fn drop(&mut self) {
        for stripe in self.held.stripes() {
            self.locks.give(*stripe, self.access);
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
