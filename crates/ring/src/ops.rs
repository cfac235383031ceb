//! Operations under way, and who waits for them.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

use crate::descriptor::{DescriptorId, adopt};
use crate::domain::Domain;
use crate::op::{Op, OpOutcome};
use crate::slab::{Key, Slab};

enum OpState {
    Waiting(Option<Waker>),
    Done(OpOutcome),
    /// Nobody waits any more; the driver still owns the buffers.
    Abandoned,
}

struct Entry {
    domain: Domain,
    /// The descriptor that the operation is on, which it keeps open.
    descriptor: Option<DescriptorId>,
    /// The outcome is a connection, to be closed if nobody takes it.
    is_accept: bool,
    state: OpState,
}

/// Ends an outcome that nobody waits for.
fn discard(entry: Entry) {
    if let (true, OpState::Done(OpOutcome { result: Ok(number), .. })) =
        (entry.is_accept, entry.state)
    {
        drop(adopt(number));
    }
}

/// The operations of a core.
#[derive(Default)]
pub(crate) struct Ops(RefCell<Slab<Entry>>);

impl Ops {
    pub(crate) fn begin(&self, domain: Domain, op: &Op) -> Key {
        let is_accept = matches!(op, Op::Accept { .. });
        let (descriptor, state) = (op.fd().id(), OpState::Waiting(None));
        self.0.borrow_mut().insert_with(|_| Entry { domain, descriptor, is_accept, state })
    }

    /// The outcome, once: the key is nobody's after that.
    pub(crate) fn poll(&self, key: Key, context: &Context<'_>) -> Poll<OpOutcome> {
        let mut ops = self.0.borrow_mut();
        let entry = ops.get_mut(key).expect("a pending operation is known");
        if let OpState::Waiting(waker) = &mut entry.state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match ops.remove(key).map(|entry| entry.state) {
            Some(OpState::Done(outcome)) => Poll::Ready(outcome),
            _ => panic!("a finished operation has an outcome"),
        }
    }

    /// Nobody waits for an operation any more.
    pub(crate) fn abandon(&self, key: Key) {
        let mut ops = self.0.borrow_mut();
        match ops.get_mut(key) {
            Some(entry) if matches!(entry.state, OpState::Waiting(_)) => {
                entry.state = OpState::Abandoned;
            }
            Some(Entry { state: OpState::Abandoned, .. }) => {}
            _ => ops.remove(key).into_iter().for_each(discard),
        }
    }

    /// Nobody waits for the operations of a domain any more.
    pub(crate) fn abandon_all(&self, domain: Domain) {
        let keys = self.0.borrow().keys_of(|entry| entry.domain == domain);
        keys.into_iter().for_each(|key| self.abandon(key));
    }

    /// Whether the driver has operations on a descriptor.
    pub(crate) fn has_any_on(&self, descriptor: DescriptorId) -> bool {
        let is_under_way = |entry: &Entry| {
            entry.descriptor == Some(descriptor) && !matches!(entry.state, OpState::Done(_))
        };
        !self.0.borrow().keys_of(is_under_way).is_empty()
    }

    /// The driver is done with an operation. Returns the domain of one for which nobody waited.
    pub(crate) fn complete(&self, key: Key, outcome: OpOutcome) -> Option<Domain> {
        let mut ops = self.0.borrow_mut();
        let entry = ops.get_mut(key).expect("a completion belongs to an operation");
        let domain = entry.domain;
        match std::mem::replace(&mut entry.state, OpState::Done(outcome)) {
            OpState::Waiting(waker) => {
                drop(ops);
                if let Some(waker) = waker {
                    waker.wake();
                }
                None
            }
            OpState::Abandoned => {
                ops.remove(key).into_iter().for_each(discard);
                Some(domain)
            }
            OpState::Done(_) => panic!("operation completed twice"),
        }
    }
}
