//! Deadlines, and whom they wake.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

use voltier_block::Nanos;

use crate::domain::Domain;

/// The timers of a core.
#[derive(Default)]
pub(crate) struct Timers {
    armed: RefCell<BTreeMap<(Nanos, u64), (Domain, Waker)>>,
    count: Cell<u64>,
}

impl Timers {
    pub(crate) fn arm(&self, deadline: Nanos, domain: Domain, waker: &Waker) -> Timer<'_> {
        let at = (deadline, self.count.get());
        self.count.set(at.1 + 1);
        let timer = Timer { of: self, at, domain };
        timer.refresh(waker);
        timer
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.armed.borrow().first_key_value().map(|(key, _)| key.0)
    }

    /// Wakes those whose time has come.
    pub(crate) fn fire(&self, now: Nanos) {
        loop {
            let mut armed = self.armed.borrow_mut();
            match armed.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let (_, waker) = entry.remove();
                    drop(armed);
                    waker.wake();
                }
                _ => return,
            }
        }
    }

    /// Nobody of a domain is woken any more.
    pub(crate) fn forget_all(&self, domain: Domain) {
        self.armed.borrow_mut().retain(|_, (own, _)| *own != domain);
    }
}

/// One deadline, until this is dropped.
pub(crate) struct Timer<'a> {
    of: &'a Timers,
    at: (Nanos, u64),
    domain: Domain,
}

impl Timer<'_> {
    pub(crate) fn refresh(&self, waker: &Waker) {
        self.of.armed.borrow_mut().insert(self.at, (self.domain, waker.clone()));
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.of.armed.borrow_mut().remove(&self.at);
    }
}
