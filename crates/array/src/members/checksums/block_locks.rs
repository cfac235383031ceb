//! Order between reads and changes of the same blocks of a device. A read that met a change half way could
//! not be held against any checksum.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use voltier_ring::Signal;

/// The use that a request makes of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Change,
}

struct Claim {
    ticket: u64,
    blocks: Range<u64>,
    of: Use,
}

/// The requests under way on one device, each with its blocks, in the order of arrival.
#[derive(Default)]
pub(crate) struct BlockLocks {
    next_ticket: Cell<u64>,
    claims: RefCell<Vec<Claim>>,
    ended: Signal,
}

/// Blocks that a request holds, until dropped.
pub(crate) struct BlockGuard<'a> {
    locks: &'a BlockLocks,
    ticket: u64,
}

impl BlockLocks {
    /// Waits until no earlier request of these blocks is in the way.
    pub(crate) async fn lock(&self, blocks: Range<u64>, of: Use) -> BlockGuard<'_> {
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        self.claims.borrow_mut().push(Claim { ticket, blocks: blocks.clone(), of });
        let guard = BlockGuard { locks: self, ticket };
        self.ended.until(|| self.is_first(ticket, &blocks, of)).await;
        guard
    }

    fn is_first(&self, ticket: u64, blocks: &Range<u64>, of: Use) -> bool {
        let is_in_the_way = |claim: &Claim| {
            let overlaps = claim.blocks.start < blocks.end && blocks.start < claim.blocks.end;
            overlaps && (claim.of == Use::Change || of == Use::Change)
        };
        let claims = self.claims.borrow();
        !claims.iter().take_while(|claim| claim.ticket < ticket).any(is_in_the_way)
    }
}

impl Drop for BlockGuard<'_> {
    fn drop(&mut self) {
        let mut claims = self.locks.claims.borrow_mut();
        claims.retain(|claim| claim.ticket != self.ticket);
        let is_waited_for = !claims.is_empty();
        drop(claims);
        if is_waited_for {
            self.locks.ended.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_change_waits_for_reads_before_it_and_holds_those_behind_it() {
        let locks = BlockLocks::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut first = pin!(locks.lock(0..4, Use::Read));
        let Poll::Ready(read) = first.as_mut().poll(&mut context) else { panic!("free") };
        let mut change = pin!(locks.lock(3..5, Use::Change));
        assert!(change.as_mut().poll(&mut context).is_pending());
        let mut behind = pin!(locks.lock(4..5, Use::Read));
        assert!(behind.as_mut().poll(&mut context).is_pending());
        let mut beside = pin!(locks.lock(0..3, Use::Read));
        assert!(beside.as_mut().poll(&mut context).is_ready());
        drop(read);
        let Poll::Ready(changing) = change.as_mut().poll(&mut context) else { panic!("its turn") };
        assert!(behind.as_mut().poll(&mut context).is_pending());
        drop(changing);
        assert!(behind.as_mut().poll(&mut context).is_ready());
    }
}
