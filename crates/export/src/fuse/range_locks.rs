//! Locks of the sectors being written, so that a read-modify-write loses nobody's bytes.

use std::cell::RefCell;

use voltier_block::SectorRange;
use voltier_ring::Signal;

/// How a writer treats its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Whole blocks are replaced: any order with other such writers will do.
    Replace,
    /// Old content is read and written back: nobody else may write meanwhile.
    Modify,
}

struct Held {
    number: u64,
    range: SectorRange,
    mode: Mode,
}

#[derive(Default)]
struct Table {
    held: Vec<Held>,
    next_number: u64,
}

/// The ranges under write through one export.
#[derive(Default)]
pub(super) struct RangeLocks {
    table: RefCell<Table>,
    released: Signal,
}

/// A range under write, until dropped.
pub(super) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    number: u64,
}

impl RangeLocks {
    /// Waits until nobody writes to `range` in a way that bears no company.
    pub(super) async fn lock(&self, range: SectorRange, mode: Mode) -> RangeGuard<'_> {
        loop {
            {
                let mut table = self.table.borrow_mut();
                let conflict = table.held.iter().any(|held| {
                    let both_replace = mode == Mode::Replace && held.mode == Mode::Replace;
                    held.range.overlaps(range) && !both_replace
                });
                if !conflict {
                    let number = table.next_number;
                    table.next_number += 1;
                    table.held.push(Held { number, range, mode });
                    return RangeGuard { locks: self, number };
                }
            }
            self.released.wait().await;
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.locks.table.borrow_mut();
        let at = table.held.iter().position(|held| held.number == self.number);
        table.held.swap_remove(at.expect("held until now"));
        drop(table);
        self.locks.released.notify();
    }
}
