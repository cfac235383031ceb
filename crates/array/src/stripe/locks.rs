//! Order among requests to the same sectors of the same stripe, and among no others.
//!
//! Parity at an offset depends on data at the same offset of the chunks alone: two requests to one
//! stripe at different offsets do not wait for each other. Who came first goes first.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::geometry::chunks::{Span, Stripe};

/// What a request does to its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads what must belong together.
    Shared,
    /// Changes it.
    Exclusive,
}

/// A request that has its sectors, or waits for those before it.
struct Claim {
    ticket: u64,
    stripe: Stripe,
    span: Span,
    access: Access,
    waker: Option<Waker>,
}

impl Claim {
    fn is_in_the_way_of(&self, later: &Claim) -> bool {
        let both_shared = self.access == Access::Shared && later.access == Access::Shared;
        self.stripe == later.stripe && self.span.overlaps(later.span) && !both_shared
    }
}

/// Stripes are dealt to so many lists: a power of two, so that a request meets few strangers and
/// nothing is allocated for it.
const LISTS: usize = 256;

struct Claims {
    next_ticket: u64,
    /// Each in the order of arrival; together as long as the requests in flight.
    lists: Box<[Vec<Claim>]>,
}

impl Claims {
    fn list(&mut self, stripe: Stripe) -> &mut Vec<Claim> {
        &mut self.lists[stripe.0 as usize % LISTS]
    }
}

/// The place of a claim in its list.
fn place_of(ticket: u64, list: &[Claim]) -> usize {
    let own = list.iter().position(|claim| claim.ticket == ticket);
    own.expect("a claim is in its list until its guard is dropped")
}

/// The locks of one array.
#[derive(Clone)]
pub(crate) struct StripeLocks(Rc<RefCell<Claims>>);

impl Default for StripeLocks {
    fn default() -> Self {
        let lists = (0..LISTS).map(|_| Vec::new()).collect();
        Self(Rc::new(RefCell::new(Claims { next_ticket: 0, lists })))
    }
}

/// A claim, until dropped.
pub(crate) struct StripeGuard {
    locks: StripeLocks,
    stripe: Stripe,
    ticket: u64,
}

impl StripeLocks {
    /// Waits until no earlier request to these sectors is under way.
    pub(crate) async fn lock(&self, stripe: Stripe, span: Span, access: Access) -> StripeGuard {
        let ticket = {
            let mut claims = self.0.borrow_mut();
            let ticket = claims.next_ticket;
            claims.next_ticket += 1;
            claims.list(stripe).push(Claim { ticket, stripe, span, access, waker: None });
            ticket
        };
        // Made before the wait: a request dropped while it waits gives its place back.
        let guard = StripeGuard { locks: self.clone(), stripe, ticket };
        poll_fn(|context| {
            let mut claims = self.0.borrow_mut();
            let list = claims.list(stripe);
            let own = place_of(ticket, list);
            let (earlier, rest) = list.split_at_mut(own);
            if earlier.iter().any(|claim| claim.is_in_the_way_of(&rest[0])) {
                rest[0].waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        guard
    }
}

impl Drop for StripeGuard {
    fn drop(&mut self) {
        let mut claims = self.locks.0.borrow_mut();
        let list = claims.list(self.stripe);
        let own = place_of(self.ticket, list);
        let own = list.remove(own);
        // Each looks again whether its turn has come; few ever wait for one stripe.
        let waiting = list.iter_mut().filter(|claim| own.is_in_the_way_of(claim));
        let wakers: Vec<Waker> = waiting.filter_map(|claim| claim.waker.take()).collect();
        drop(claims);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_ring::{Executor, NoFiles};

    const fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn overlapping_claims_are_served_in_order_and_others_do_not_wait() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let locks = StripeLocks::default();
        let log = Rc::new(RefCell::new(Vec::new()));
        let (seen, same) = (log.clone(), locks.clone());
        executor.block_on(async move {
            let first = locks.lock(Stripe(1), span(0, 8), Access::Shared).await;
            let claims = [
                ("writer", Stripe(1), span(4, 12), Access::Exclusive),
                ("reader behind it", Stripe(1), span(8, 16), Access::Shared),
                ("reader elsewhere", Stripe(1), span(16, 24), Access::Shared),
                ("reader beside the first", Stripe(1), span(0, 4), Access::Shared),
                ("another stripe", Stripe(2), span(0, 8), Access::Exclusive),
            ];
            let tasks = claims.map(|(name, stripe, span, access)| {
                let (locks, log) = (locks.clone(), log.clone());
                handle.spawn(async move {
                    let _guard = locks.lock(stripe, span, access).await;
                    log.borrow_mut().push(name);
                })
            });
            handle.yield_now().await;
            log.borrow_mut().push("first ends");
            drop(first);
            for task in tasks {
                task.await;
            }
        });
        let expected = [
            "reader elsewhere",
            "reader beside the first",
            "another stripe",
            "first ends",
            "writer",
            "reader behind it",
        ];
        assert_eq!(*seen.borrow(), expected);
        let claims = same.0.borrow();
        assert!(claims.lists.iter().all(Vec::is_empty), "nothing is kept of what is over");
    }
}
