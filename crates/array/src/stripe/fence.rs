//! Keeps requests out of what is being moved, and waits for those that are in it.
//!
//! Where a request goes is computed from the range it is for, before it waits for anything. So the fence
//! holds ranges: while a part of the volume is moved, requests for any of the part wait, and no others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{IoError, IoResult, SectorRange};
use voltier_ring::Signal;

use crate::canary::{self, Canary};

fn overlap(one: SectorRange, other: SectorRange) -> bool {
    one.start.0 < other.end().0 && other.start.0 < one.end().0
}

/// The ranges of requests under way, and the one that is moved.
#[derive(Default)]
pub(crate) struct Fence {
    closed: Cell<Option<SectorRange>>,
    /// Why what is closed is neither in the old shape nor in the new one.
    error: Cell<Option<IoError>>,
    next_ticket: Cell<u64>,
    inside: RefCell<BTreeMap<u64, SectorRange>>,
    changed: Signal,
}

/// A request inside, until dropped.
pub(crate) struct Pass {
    fence: Rc<Fence>,
    ticket: u64,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.fence.inside.borrow_mut().remove(&self.ticket);
        if self.fence.closed.get().is_some() {
            self.fence.changed.notify();
        }
    }
}

impl Fence {
    fn is_in_the_way(&self, range: SectorRange) -> bool {
        self.closed.get().is_some_and(|closed| overlap(closed, range))
    }

    /// Lets a request in when nothing of its range is being moved.
    ///
    /// # Errors
    /// When what is being moved there can be neither moved on nor read as it was.
    pub(crate) async fn pass(self: &Rc<Self>, range: SectorRange) -> IoResult<Pass> {
        while self.is_in_the_way(range) && !canary::is(Canary::MoveUnfenced) {
            if let Some(error) = self.error.get() {
                return Err(error);
            }
            self.changed.wait().await;
        }
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        self.inside.borrow_mut().insert(ticket, range);
        Ok(Pass { fence: self.clone(), ticket })
    }

    /// Keeps requests out of a range, and waits until none is in it.
    pub(crate) async fn close(&self, range: SectorRange) {
        self.closed.set(Some(range));
        self.error.set(None);
        self.changed.notify();
        let is_empty = || !self.inside.borrow().values().any(|inside| overlap(*inside, range));
        self.changed.until(is_empty).await;
    }

    pub(crate) fn open(&self) {
        self.closed.set(None);
        self.error.set(None);
        self.changed.notify();
    }

    /// A closed range stays so: requests for it fail.
    pub(crate) fn fail(&self, error: IoError) {
        self.error.set(Some(error));
        self.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::Lba;
    use voltier_ring::{Executor, NoFiles};

    const fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Lba(start), count)
    }

    #[test]
    fn who_wants_what_is_moved_waits_and_who_is_in_it_is_waited_for() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let fence = Rc::new(Fence::default());
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        executor.block_on(async move {
            let inside = fence.pass(range(8, 8)).await.expect("open");
            let elsewhere = fence.pass(range(0, 8)).await.expect("open");
            let (same, own) = (fence.clone(), log.clone());
            let worker = handle.spawn(async move {
                same.close(range(8, 16)).await;
                own.borrow_mut().push("closed");
            });
            handle.yield_now().await;
            let pass = |name, range| {
                let (fence, log) = (fence.clone(), log.clone());
                handle.spawn(async move {
                    let result = fence.pass(range).await.map(drop);
                    log.borrow_mut().push(if result.is_ok() { name } else { "refused" });
                })
            };
            let waiting = pass("behind it", range(20, 8));
            pass("beside it", range(24, 8)).await;
            log.borrow_mut().push("the one inside ends");
            drop(inside);
            worker.await;
            drop(elsewhere);
            fence.open();
            waiting.await;
            fence.close(range(0, 8)).await;
            fence.fail(IoError::Medium);
            pass("in what failed", range(7, 1)).await;
            fence.open();
            pass("open again", range(7, 1)).await;
            assert!(fence.inside.borrow().is_empty(), "nothing is kept of what is over");
        });
        let expected =
            ["beside it", "the one inside ends", "closed", "behind it", "refused", "open again"];
        assert_eq!(*seen.borrow(), expected);
    }
}
