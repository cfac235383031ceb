//! Failure domains: tasks that fail together when one of them panics, and what is to be done about that
//! ([why](../../../docs/adr/0043-a-panic-fails-one-volume.md)).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak as LocalWeak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use crate::descriptor::{Descriptor, DescriptorId};

/// The number of the last domain, of all cores: a domain may be named before its core knows it.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A failure domain: tasks that fail together when one of them panics. A task is of the domain of the handle
/// that spawned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain(u64);

impl Domain {
    /// Tasks of no domain: a panic of one of them ends the thread.
    pub(crate) const NONE: Domain = Domain(0);

    /// A domain that no task is of yet.
    pub fn fresh() -> Self {
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The panic that a domain failed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The message of the panic, in one line.
    pub message: String,
    /// The place in the code, if a hook noted it: see [`is_contained`](crate::is_contained).
    pub place: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

pub(crate) type Tell = Box<dyn FnOnce(&Failure)>;

#[derive(Default)]
struct State {
    failure: Option<Failure>,
    tell: BTreeMap<u64, Tell>,
    descriptors: Vec<Weak<Descriptor>>,
    fails_with: Vec<Domain>,
}

impl State {
    fn is_idle(&self) -> bool {
        let is_closed = |it: &Weak<Descriptor>| it.strong_count() == 0;
        self.failure.is_none()
            && self.tell.is_empty()
            && self.fails_with.is_empty()
            && self.descriptors.iter().all(is_closed)
    }
}

/// The domains of one core of which there is something to know.
#[derive(Default)]
pub(crate) struct Domains {
    states: RefCell<BTreeMap<Domain, State>>,
    tell_count: Cell<u64>,
    /// Whether a domain has failed: for those who ask often.
    has_failures: Cell<bool>,
}

impl Domains {
    fn with<T>(&self, domain: Domain, change: impl FnOnce(&mut State) -> T) -> T {
        let mut states = self.states.borrow_mut();
        if !states.contains_key(&domain) {
            states.retain(|_, state| !state.is_idle());
        }
        change(states.entry(domain).or_default())
    }

    pub(crate) fn has_failed(&self, domain: Domain) -> bool {
        self.has_failures.get() && self.failure_of(domain).is_some()
    }

    fn failure_of(&self, domain: Domain) -> Option<Failure> {
        self.states.borrow().get(&domain).and_then(|state| state.failure.clone())
    }

    /// Has `tell` called when the domain fails, at once if it has failed.
    pub(crate) fn on_failure(self: &Rc<Self>, domain: Domain, tell: Tell) -> OnFailure {
        let number = self.tell_count.get() + 1;
        self.tell_count.set(number);
        match self.failure_of(domain) {
            Some(failure) => tell(&failure),
            // Nobody would be told of that.
            None if domain == Domain::NONE => {}
            None => drop(self.with(domain, |state| state.tell.insert(number, tell))),
        }
        OnFailure { of: Rc::downgrade(self), domain, number }
    }

    pub(crate) fn own(&self, domain: Domain, descriptor: &Arc<Descriptor>) {
        if domain == Domain::NONE {
            return;
        }
        self.with(domain, |state| {
            // Most connections of a server that lives long are closed.
            if state.descriptors.len() == state.descriptors.capacity() {
                state.descriptors.retain(|it| it.strong_count() > 0);
            }
            state.descriptors.push(Arc::downgrade(descriptor));
        });
    }

    pub(crate) fn link(self: &Rc<Self>, one: Domain, other: Domain) -> FailsWith {
        for (one, other) in [(one, other), (other, one)] {
            self.with(one, |state| state.fails_with.push(other));
        }
        FailsWith { of: Rc::downgrade(self), one, other }
    }

    /// Has the domain fail, and all that fail with it and had not failed before. Returns these, and who is to
    /// be told, in the order of the questions: a caller hears of it last.
    pub(crate) fn fail(
        &self,
        domain: Domain,
        failure: &Failure,
    ) -> (BTreeSet<Domain>, BTreeMap<u64, Tell>) {
        let (mut failed, mut tell) = (BTreeSet::new(), BTreeMap::new());
        let mut reached = vec![domain];
        self.has_failures.set(true);
        while let Some(domain) = reached.pop() {
            self.with(domain, |state| {
                if state.failure.is_none() {
                    state.failure = Some(failure.clone());
                    tell.append(&mut state.tell);
                    failed.insert(domain);
                    reached.append(&mut state.fails_with);
                }
            });
        }
        (failed, tell)
    }

    fn descriptors_of(&self, domain: Domain) -> Vec<Arc<Descriptor>> {
        let states = self.states.borrow();
        let all = states.get(&domain).map(|state| &state.descriptors);
        all.into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Ends the connections of a failed domain.
    pub(crate) fn hang_up(&self, domain: Domain) {
        self.descriptors_of(domain).iter().for_each(|it| it.hang_up());
    }

    /// Closes the files of a failed domain that nothing is under way on any more.
    pub(crate) fn release(&self, domain: Domain, has_any_on: impl Fn(DescriptorId) -> bool) {
        let (kept, ended): (Vec<_>, Vec<_>) = self
            .descriptors_of(domain)
            .into_iter()
            .partition(|descriptor| has_any_on(DescriptorId::of(descriptor)));
        ended.iter().for_each(|descriptor| descriptor.release());
        self.with(domain, |state| state.descriptors = kept.iter().map(Arc::downgrade).collect());
    }
}

/// Somebody who is told when a domain fails, until this is dropped: see
/// [`Handle::on_failure`](crate::Handle::on_failure).
#[must_use = "nobody is told once this is dropped"]
pub struct OnFailure {
    of: LocalWeak<Domains>,
    domain: Domain,
    number: u64,
}

impl Drop for OnFailure {
    fn drop(&mut self) {
        // A guard that a panic unwinds is told of the panic a moment later.
        if thread::panicking() {
            return;
        }
        let Some(of) = self.of.upgrade() else { return };
        let tell = of
            .states
            .borrow_mut()
            .get_mut(&self.domain)
            .and_then(|it| it.tell.remove(&self.number));
        // Outside the borrow: what the closure owns may have such a guard itself.
        drop(tell);
    }
}

/// Two domains that fail together, until this is dropped: see
/// [`Handle::fail_with`](crate::Handle::fail_with).
#[must_use = "the domains fail apart once this is dropped"]
pub struct FailsWith {
    of: LocalWeak<Domains>,
    one: Domain,
    other: Domain,
}

impl Drop for FailsWith {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let Some(of) = self.of.upgrade() else { return };
        let mut states = of.states.borrow_mut();
        for (one, other) in [(self.one, self.other), (self.other, self.one)] {
            let Some(state) = states.get_mut(&one) else { continue };
            if let Some(at) = state.fails_with.iter().position(|it| *it == other) {
                state.fails_with.swap_remove(at);
            }
        }
    }
}
