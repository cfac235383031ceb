//! The list of void pages of a device in memory, as the medium has it or is about to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::format::checksum_page::Era;
use crate::format::void_pages::{VOID_PAGES_MAX, VoidPages};

/// Eras of a member between two changes of membership.
const ERAS_PER_EVENT: u32 = 1 << 8;

/// The era of a member that comes at this event.
pub(super) fn first_era(event: u64) -> Era {
    Era((event as u32).wrapping_add(1).wrapping_mul(ERAS_PER_EVENT))
}

/// The era that begins when nobody knows which pages are void.
pub(super) fn era_after_loss(event: u64) -> Era {
    Era(first_era(event).0.wrapping_add(ERAS_PER_EVENT / 2))
}

/// The list of one device.
pub(super) struct VoidList {
    /// None until the device was asked for it.
    list: RefCell<Option<VoidPages>>,
    /// Whether the medium has another one.
    is_due: Cell<bool>,
}

impl VoidList {
    /// The list of a new member, or one that is to be read.
    pub(super) fn new(list: Option<VoidPages>) -> Self {
        Self { is_due: Cell::new(list.is_some()), list: RefCell::new(list) }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.list.borrow().is_none()
    }

    /// The list that the medium has; none if that cannot be read, and no stored page counts.
    pub(super) fn take_in(&self, found: Option<VoidPages>, event: u64) {
        self.is_due.set(found.is_none());
        let list = found.unwrap_or_else(|| VoidPages::of_era(era_after_loss(event)));
        self.list.replace(Some(list));
    }

    fn with<T>(&self, look: impl FnOnce(&VoidPages) -> T) -> T {
        look(self.list.borrow().as_ref().expect("the list is read before pages are"))
    }

    pub(super) fn era(&self) -> Era {
        self.with(|list| list.era)
    }

    pub(super) fn has(&self, page: u64) -> bool {
        self.with(|list| list.pages.contains(&page))
    }

    /// Calls pages void; whether there was no room and all of the device's pages are.
    #[must_use]
    pub(super) fn add(&self, pages: &[u64]) -> bool {
        self.is_due.set(true);
        let mut list = self.list.borrow_mut();
        let list = list.as_mut().expect("the list is read before pages are");
        list.pages.extend(pages);
        let is_full = list.pages.len() > VOID_PAGES_MAX;
        if is_full {
            list.pages.clear();
            list.era = Era(list.era.0.wrapping_add(1));
        }
        is_full
    }

    /// These pages were stored, durably.
    pub(super) fn remove(&self, pages: &BTreeSet<u64>) {
        let mut list = self.list.borrow_mut();
        let Some(list) = list.as_mut().filter(|list| !list.pages.is_disjoint(pages)) else {
            return;
        };
        list.pages.retain(|page| !pages.contains(page));
        self.is_due.set(true);
    }

    /// The list to write next, if the medium has another one.
    pub(super) fn due(&self) -> Option<VoidPages> {
        let list = self.list.borrow();
        let due = list.as_ref().filter(|_| self.is_due.get());
        due.map(|list| VoidPages { sequence: list.sequence + 1, ..list.clone() })
    }

    /// A list is on the medium. The list is due again when its flush fails.
    pub(super) fn note_written(&self, written: &VoidPages) {
        let mut list = self.list.borrow_mut();
        list.as_mut().expect("it was written").sequence = written.sequence;
        self.is_due.set(false);
    }

    pub(super) fn note_not_flushed(&self) {
        self.is_due.set(!self.is_absent());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_room_begins_an_era() {
        let list = VoidList::new(None);
        list.take_in(Some(VoidPages { sequence: 3, ..VoidPages::of_era(Era(7)) }), 1);
        assert!(list.due().is_none());
        let pages: Vec<u64> = (0..VOID_PAGES_MAX as u64).collect();
        assert!(!list.add(&pages) && list.has(503) && list.era() == Era(7));
        assert!(list.add(&[900]), "it is full");
        assert_eq!((list.era(), list.has(503), list.has(900)), (Era(8), false, false));
        let due = list.due().expect("it has changed");
        assert_eq!(due.sequence, 4);
        list.note_written(&due);
        assert!(list.due().is_none());
        assert!(!list.add(&[5]));
        list.remove(&BTreeSet::from([4, 5]));
        assert!(!list.has(5));
    }

    #[test]
    fn a_list_that_is_lost_has_an_era_of_its_own() {
        let list = VoidList::new(None);
        list.take_in(None, 1);
        assert_ne!(list.era(), first_era(1));
        assert!(list.due().is_some());
    }
}
