//! The gate that stops the requests of a volume while what is below them changes.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{IoError, IoResult};
use voltier_ring::Signal;

/// Requests pass a gate; whoever closes it waits until none is inside.
#[derive(Default)]
pub(crate) struct Gate {
    inside: Cell<u64>,
    closed: Cell<bool>,
    ended: Cell<bool>,
    changed: Signal,
}

/// A request inside.
pub(crate) struct Inside(Rc<Gate>);

/// The gate is closed and nobody inside, until this is dropped.
pub(crate) struct Closed(Rc<Gate>);

impl Gate {
    /// Whether requests wait to enter.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Enters, after waiting while the gate is closed; an error when it never opens again.
    pub(crate) async fn enter(self: &Rc<Self>) -> IoResult<Inside> {
        if self.closed.get() {
            self.changed.until(|| !self.closed.get() || self.ended.get()).await;
            if self.ended.get() {
                return Err(IoError::Gone);
            }
        }
        self.inside.set(self.inside.get() + 1);
        Ok(Inside(self.clone()))
    }

    /// Closes the gate and waits until nobody is inside.
    pub(crate) async fn close(self: &Rc<Self>) -> Closed {
        self.changed.until(|| !self.closed.get()).await;
        self.closed.set(true);
        let closed = Closed(self.clone());
        self.changed.until(|| self.inside.get() == 0).await;
        closed
    }
}

impl Closed {
    /// Leaves the gate closed, for ever: who waits there hears so. One that waited on would hold the drives.
    pub(crate) fn for_ever(self) {
        self.0.ended.set(true);
        self.0.changed.notify();
        std::mem::forget(self);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let inside = self.0.inside.get() - 1;
        self.0.inside.set(inside);
        if inside == 0 && self.0.closed.get() {
            self.0.changed.notify();
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.closed.set(false);
        self.0.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn closing_waits_for_who_is_inside_and_keeps_others_out() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        executor.block_on(async move {
            let gate = Rc::new(Gate::default());
            let inside = gate.enter().await.unwrap();
            let closer = {
                let (gate, log, handle) = (gate.clone(), log.clone(), handle.clone());
                handle.clone().spawn(async move {
                    let _closed = gate.close().await;
                    log.borrow_mut().push("closed");
                    handle.sleep(1).await;
                })
            };
            handle.yield_now().await;
            let late = {
                let (gate, log) = (gate.clone(), log.clone());
                handle.spawn(async move {
                    let _inside = gate.enter().await.unwrap();
                    log.borrow_mut().push("late");
                })
            };
            handle.yield_now().await;
            log.borrow_mut().push("leaving");
            drop(inside);
            closer.await;
            late.await;
        });
        assert_eq!(*seen.borrow(), ["leaving", "closed", "late"]);
    }
}
