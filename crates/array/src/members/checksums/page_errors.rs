//! Medium errors of pages of checksums, as errors of their device.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Errors that the device's member has not been told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorCounts {
    pub(crate) reads: u32,
    pub(crate) writes: u32,
}

/// The pages with medium errors. A page counts once until it is durable again: one bad block that is tried every
/// minute says nothing new of its device.
#[derive(Default)]
pub(super) struct PageErrors {
    known: RefCell<BTreeSet<u64>>,
    untold: Cell<ErrorCounts>,
}

impl PageErrors {
    pub(super) fn note_failed_read(&self, page: u64) {
        self.note(page, |untold| &mut untold.reads);
    }

    pub(super) fn note_failed_write(&self, page: u64) {
        self.note(page, |untold| &mut untold.writes);
    }

    fn note(&self, page: u64, count: impl FnOnce(&mut ErrorCounts) -> &mut u32) {
        if self.known.borrow_mut().insert(page) {
            let mut untold = self.untold.get();
            *count(&mut untold) += 1;
            self.untold.set(untold);
        }
    }

    /// Pages are durable: another error of theirs is news.
    pub(super) fn forget<'a>(&self, pages: impl IntoIterator<Item = &'a u64>) {
        let mut known = self.known.borrow_mut();
        for page in pages {
            known.remove(page);
        }
    }

    /// The errors since the last time.
    pub(super) fn take(&self) -> ErrorCounts {
        self.untold.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_once_until_it_is_durable_again() {
        let errors = PageErrors::default();
        for _ in 0..3 {
            errors.note_failed_write(7);
            errors.note_failed_read(7);
            errors.note_failed_read(8);
        }
        assert_eq!(errors.take(), ErrorCounts { reads: 1, writes: 1 });
        errors.note_failed_write(7);
        assert_eq!(errors.take(), ErrorCounts::default());
        errors.forget(&[7]);
        errors.note_failed_read(7);
        assert_eq!(errors.take(), ErrorCounts { reads: 1, writes: 0 });
    }
}
