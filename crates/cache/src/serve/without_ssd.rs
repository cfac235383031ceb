//! The order of changes that are made again, without the SSD.
//!
//! A change that the SSD refuses lets go of its lines while it waits until the origin may be changed: clients
//! may read them. Clients may have read the change itself, too: from the origin, or from a record that the SSD has in
//! spite of the error. A later change of the same sectors must not come between the two tries: the second try
//! would undo it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::SectorRange;
use voltier_ring::Signal;

use crate::devices::passage::Change;
use crate::map::locks::LineGuard;

/// The changes of one cache that wait to be made without the SSD, or are made now.
pub(crate) struct RedoOrder {
    next_ticket: Cell<u64>,
    /// The ranges of the changes, by the order in which they had their lines.
    waiting: RefCell<BTreeMap<u64, SectorRange>>,
    left: Signal,
}

/// A change's place in the order, until it is dropped.
pub(super) struct RedoTicket {
    order: Rc<RedoOrder>,
    ticket: u64,
}

/// The lines of a change that is made without the SSD now, locked until dropped.
pub(super) struct RedoGuard {
    _change: Change,
    _lines: LineGuard,
    _ticket: Rc<RedoTicket>,
}

impl RedoGuard {
    pub(super) fn new(lines: LineGuard, change: Change, ticket: Rc<RedoTicket>) -> Self {
        Self { _change: change, _lines: lines, _ticket: ticket }
    }
}

impl RedoOrder {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            next_ticket: Cell::new(0),
            waiting: RefCell::new(BTreeMap::new()),
            left: Signal::new(),
        })
    }

    /// The last place in the order. The caller holds the lines of the range.
    pub(super) fn enter(self: &Rc<Self>, range: SectorRange) -> RedoTicket {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        self.waiting.borrow_mut().insert(ticket, range);
        RedoTicket { order: self.clone(), ticket }
    }
}

impl RedoTicket {
    /// Waits for all changes of the same sectors that came before.
    pub(super) async fn in_turn(&self) {
        let is_next = || {
            let waiting = self.order.waiting.borrow();
            let own = waiting[&self.ticket];
            !waiting.range(..self.ticket).any(|(_, range)| range.overlaps(own))
        };
        self.order.left.until(is_next).await;
    }
}

impl Drop for RedoTicket {
    fn drop(&mut self) {
        self.order.waiting.borrow_mut().remove(&self.ticket);
        self.order.left.notify();
    }
}
