//! Requests under way, for those who go beside them.

use std::cell::Cell;

/// Requests that are under way, and how many there ever were.
#[derive(Default)]
pub(crate) struct Foreground {
    in_flight: Cell<u64>,
    begun: Cell<u64>,
}

/// A request under way, until dropped.
pub(crate) struct Busy<'a>(&'a Foreground);

impl Foreground {
    pub(crate) fn enter(&self) -> Busy<'_> {
        self.in_flight.set(self.in_flight.get() + 1);
        self.begun.set(self.begun.get() + 1);
        Busy(self)
    }

    /// How many there are now.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    /// How many there ever were.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.get() == 0
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}
