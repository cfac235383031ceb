//! An array that changes its shape under its clients.
//!
//! What serves is an [`Inner`]: everything in it follows from one geometry. A shape that changes is a
//! new one, which takes over what the old one had. Between the two nothing is under way: requests
//! wait at the gate, and what is left of those before keeps the old one until it is through.

use std::cell::{Cell, OnceCell};
use std::ops::Deref;
use std::rc::{Rc, Weak};

use voltier_block::{BlockDevice, IoResult, Nanos};
use voltier_ring::Signal;

use crate::array::Inner;

/// How often a change of shape looks whether all that was under way has ended.
const LOOK_NS: Nanos = 100_000;

/// One of them, and the one that came after.
struct Generation<D> {
    inner: Rc<Inner<D>>,
    next: OnceCell<Box<Generation<D>>>,
}

/// The one that serves, behind those that did: they are empty, and kept for who still looks at their
/// geometry.
pub(crate) struct Generations<D> {
    first: Generation<D>,
    /// Requests that are through the gate.
    visits: Cell<u64>,
    is_closed: Cell<bool>,
    opened: Signal,
}

impl<D> Generations<D> {
    fn last(&self) -> &Generation<D> {
        let mut last = &self.first;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }
}

impl<D: BlockDevice> Generations<D> {
    pub(crate) fn new(inner: Inner<D>) -> Rc<Self> {
        Rc::new(Self {
            first: Generation { inner: inner.install(), next: OnceCell::new() },
            visits: Cell::new(0),
            is_closed: Cell::new(false),
            opened: Signal::new(),
        })
    }

    /// Waits while the shape changes, and keeps it as it is until the result is dropped.
    pub(crate) async fn enter(&self) -> Visit<'_, D> {
        while self.is_closed.get() {
            self.opened.until(|| !self.is_closed.get()).await;
        }
        self.visits.set(self.visits.get() + 1);
        Visit(self)
    }

    /// Keeps requests out; none if somebody else does.
    pub(crate) fn close(&self) -> Option<Closed<'_, D>> {
        (!self.is_closed.replace(true)).then(|| Closed(self))
    }
}

impl<D> Deref for Generations<D> {
    type Target = Rc<Inner<D>>;

    fn deref(&self) -> &Rc<Inner<D>> {
        &self.last().inner
    }
}

/// A request inside the gate.
pub(crate) struct Visit<'a, D>(&'a Generations<D>);

impl<D> Deref for Visit<'_, D> {
    type Target = Rc<Inner<D>>;

    fn deref(&self) -> &Rc<Inner<D>> {
        self.0
    }
}

impl<D> Drop for Visit<'_, D> {
    fn drop(&mut self) {
        self.0.visits.set(self.0.visits.get() - 1);
    }
}

/// The gate is closed until this is dropped.
pub(crate) struct Closed<'a, D>(&'a Generations<D>);

impl<D: BlockDevice> Closed<'_, D> {
    /// Waits until nothing is under way. Who works on a request, or for one that nobody waits for any
    /// more, has the array by a strong reference; tasks that rest have a weak one.
    pub(crate) async fn at_rest(&self) {
        while !self.is_at_rest() {
            self.0.handle.sleep(LOOK_NS).await;
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        let inner: &Rc<Inner<D>> = self.0;
        self.0.visits.get() == 0 && inner.is_at_rest()
    }

    /// Puts another one in service, records it on the members, and opens the gate. Nothing is under way.
    pub(crate) async fn succeed(self, inner: Inner<D>) -> IoResult<()> {
        let last = self.0.last();
        last.inner.members.supersede();
        let next = Generation { inner: inner.install(), next: OnceCell::new() };
        assert!(last.next.set(Box::new(next)).is_ok(), "the gate is closed to all others");
        let inner: &Rc<Inner<D>> = self.0;
        inner.membership.note_change();
        let settled = inner.membership.settled().await;
        drop(self);
        inner.bitmap.begin_rounds();
        settled
    }
}

impl<D> Drop for Closed<'_, D> {
    fn drop(&mut self) {
        self.0.is_closed.set(false);
        self.0.opened.notify();
    }
}

/// The array that a resting task belongs to, if it is still in service.
pub(crate) fn in_service<D: BlockDevice>(inner: &Weak<Inner<D>>) -> Option<Rc<Inner<D>>> {
    inner.upgrade().filter(|inner| !inner.members.is_superseded())
}
