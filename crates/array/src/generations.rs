//! An array that changes its shape under its clients.
//!
//! A [`Generation`] serves: everything in it follows from one geometry. When the shape changes, a new
//! generation takes over what the old one had. Between the two nothing is under way: requests
//! wait at the gate. Requests from before keep the old generation until they are through.

use std::cell::{Cell, OnceCell};
use std::ops::Deref;
use std::rc::Rc;

use voltier_block::{DriveControl, IoError, IoResult, Limits, Meter, Nanos};
use voltier_ring::{Handle, Signal};

use crate::generation::Generation;
use crate::stripe::ground::Ground;
use crate::tasks::background::{REST_LOOK_NS, Step};

/// How often a move tries to end, when it was not let.
const WAIT_NS: Nanos = 1_000_000_000;

/// A generation, and the one that came after.
struct Link<D> {
    generation: Rc<Generation<D>>,
    next: OnceCell<Box<Link<D>>>,
}

impl<D: DriveControl> Link<D> {
    fn install(generation: Generation<D>) -> Self {
        Self { generation: generation.install(), next: OnceCell::new() }
    }
}

/// The generation that serves, behind the generations that served before. Generations that served before are
/// empty, and stay for whoever still looks at their geometry.
pub(crate) struct Generations<D> {
    first: Link<D>,
    /// Requests that are through the gate.
    visits: Cell<u64>,
    is_closed: Cell<bool>,
    /// Reasons for which requests wait.
    holds: Cell<u32>,
    opened: Signal,
    /// Whether somebody gets devices ready for another shape.
    is_preparing: Cell<bool>,
    /// Whether a task looks when the array can serve again.
    is_recovering: Rc<Cell<bool>>,
    /// When the last failure began.
    failed_since: Cell<Nanos>,
    /// Requests of whoever uses the array.
    pub(crate) meter: Meter,
}

/// The right to bring the array back into service, until dropped.
pub(crate) struct Recovering(Rc<Cell<bool>>);

impl Drop for Recovering {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The right to get devices ready for another shape, until dropped.
pub(crate) struct Preparing<'a>(&'a Cell<bool>);

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<D> Generations<D> {
    fn last(&self) -> &Link<D> {
        let mut last = &self.first;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// Holds requests up for one more reason, or for one less.
    pub(crate) fn hold(&self, is_held: bool) {
        let holds = self.holds.get();
        self.holds.set(if is_held { holds + 1 } else { holds.saturating_sub(1) });
        self.opened.notify();
    }
}

impl<D: DriveControl> Generations<D> {
    pub(crate) fn new(handle: &Handle, generation: Generation<D>) -> Rc<Self> {
        Rc::new(Self {
            first: Link::install(generation),
            visits: Cell::new(0),
            is_closed: Cell::new(false),
            holds: Cell::new(0),
            opened: Signal::new(),
            is_preparing: Cell::new(false),
            is_recovering: Rc::default(),
            failed_since: Cell::new(0),
            meter: Meter::new(handle.clock()),
        })
    }

    /// Waits while the shape changes, and keeps it as it is until the result is dropped.
    pub(crate) async fn enter(&self) -> Visit<'_, D> {
        while self.holds.get() > 0 {
            self.opened.until(|| self.holds.get() == 0).await;
        }
        self.visits.set(self.visits.get() + 1);
        Visit(self)
    }

    /// Starts the worker of an array that has two shapes, unless it goes on already.
    pub(crate) fn begin_reshape(self: &Rc<Self>) {
        let Some(reshape) = &self.tasks.reshape else { return };
        let array = Rc::downgrade(self);
        reshape.begin(async move || match array.upgrade() {
            Some(array) => array.end_reshape().await,
            None => Ok(Step::End),
        });
    }

    /// All is moved: what is behind it is made what was never written, then the superblocks have one shape.
    async fn end_reshape(&self) -> IoResult<Step> {
        let two: &Generation<D> = self;
        let Some(reshape) = &two.tasks.reshape else { return Ok(Step::End) };
        let wait = Step::WaitUntil(two.ground.handle.now() + WAIT_NS);
        let Some(gate) = self.close() else { return Ok(wait) };
        for is_cleared in [false, true] {
            while !gate.is_at_rest() {
                if two.tasks.is_closing() {
                    return Ok(Step::End);
                }
                two.ground.handle.sleep(REST_LOOK_NS).await;
            }
            if reshape.waits_for().is_some() {
                return Ok(wait);
            }
            if !is_cleared {
                reshape.clear_behind().await?;
                // Transactions for rows of the old shape must not be redone any more.
                two.ground.journal.empty().await?;
            }
        }
        let one = two.in_one_shape().map_err(|_| IoError::Unsupported)?;
        let recorded = gate.succeed(one).await;
        self.ground.members.health().tell();
        recorded.map(|()| Step::End)
    }

    /// Takes the right to get devices ready for another shape, while requests go on; none if somebody has it.
    pub(crate) fn prepare(&self) -> Option<Preparing<'_>> {
        (!self.is_preparing.replace(true)).then(|| Preparing(&self.is_preparing))
    }

    /// Takes the right to bring the array back into service; none if somebody has it.
    pub(crate) fn claim_recovery(&self) -> Option<Recovering> {
        let is_free = !self.is_recovering.replace(true);
        is_free.then(|| Recovering(self.is_recovering.clone()))
    }

    /// The array has failed: requests have waited since its members began to refuse them.
    pub(crate) fn note_failed(&self) {
        let began = self.ground.members.refusals().first_of_late();
        self.failed_since.set(began.unwrap_or(self.ground.handle.now()));
    }

    /// When the last failure began.
    pub(crate) fn failed_since(&self) -> Nanos {
        self.failed_since.get()
    }

    /// Keeps requests out; none if somebody else does.
    pub(crate) fn close(&self) -> Option<Closed<'_, D>> {
        (!self.is_closed.replace(true)).then(|| {
            self.hold(true);
            Closed(self)
        })
    }
}

impl<D> Deref for Generations<D> {
    type Target = Generation<D>;

    fn deref(&self) -> &Generation<D> {
        &self.last().generation
    }
}

/// A request inside the gate.
pub(crate) struct Visit<'a, D>(&'a Generations<D>);

impl<D> Visit<'_, D> {
    /// The limits that a change is held against.
    ///
    /// # Errors
    /// When the array was stopped: nothing may be changed.
    pub(crate) fn limits_of_change(&self) -> IoResult<&Limits> {
        let is_closed = self.ground.membership.durable().is_some_and(|it| it.is_closed());
        if is_closed { Err(IoError::Gone) } else { Ok(&self.limits) }
    }
}

impl<D> Deref for Visit<'_, D> {
    type Target = Generation<D>;

    fn deref(&self) -> &Generation<D> {
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

impl<D: DriveControl> Closed<'_, D> {
    /// Waits until nothing is under way.
    pub(crate) async fn at_rest(&self) {
        while !self.is_at_rest() {
            self.0.ground.handle.sleep(REST_LOOK_NS).await;
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.0.visits.get() == 0 && self.0.last().generation.is_at_rest()
    }

    /// Puts another one in the place of the last. Nothing is under way.
    pub(crate) fn supersede(&self, generation: Generation<D>) {
        let last = self.0.last();
        last.generation.ground.members.supersede();
        let next = Box::new(Link::install(generation));
        assert!(last.next.set(next).is_ok(), "the gate is closed to all others");
    }

    /// Puts another one in service, records it on the members, and opens the gate. Nothing is under way.
    pub(crate) async fn succeed(self, generation: Generation<D>) -> IoResult<()> {
        self.supersede(generation);
        let Ground { membership, bitmap, .. } = &self.0.ground;
        membership.note_change();
        let recorded = membership.recorded().await;
        drop(self);
        bitmap.begin_rounds();
        recorded
    }
}

impl<D> Drop for Closed<'_, D> {
    fn drop(&mut self) {
        self.0.is_closed.set(false);
        self.0.hold(false);
    }
}
