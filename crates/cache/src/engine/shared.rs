//! Long reads of the same bytes at the same time: the first one reads for all.
//!
//! Everybody here holds the lines' locks for reading, so nothing can have changed between the first
//! one's read and the others' arrival.

use std::cell::RefCell;
use std::collections::BTreeMap;

use voltier_block::{Buf, Bytes, SectorRange};
use voltier_ring::{OneshotReceiver, OneshotSender, oneshot};

use crate::status::Served;

/// Shorter reads cost less than the search for company.
const SHARED_SECTORS_MIN: u64 = 128;

/// What was read, and how it was served.
type Answer = (Bytes, Served);
/// Start and sectors.
type Key = (u64, u64);
type Waiting = Vec<OneshotSender<Answer>>;

/// Reads under way that others may join, with who did.
#[derive(Default)]
pub(crate) struct SharedReads(RefCell<BTreeMap<Key, Waiting>>);

/// How a read goes on.
pub(super) enum Company<'a> {
    /// By itself.
    None,
    /// For all who come meanwhile.
    Leads(Lead<'a>),
    /// With the answer of the one that leads; none if that one failed or was dropped.
    Follows(OneshotReceiver<Answer>),
}

/// A read that others may join, until dropped.
pub(super) struct Lead<'a> {
    reads: &'a SharedReads,
    key: Key,
}

impl SharedReads {
    /// Joins the read of this very range that is under way, or begins one.
    pub(super) fn join(&self, range: SectorRange) -> Company<'_> {
        if range.count < SHARED_SECTORS_MIN {
            return Company::None;
        }
        let key = (range.start.0, range.count);
        let mut reads = self.0.borrow_mut();
        if let Some(waiting) = reads.get_mut(&key) {
            let (sender, receiver) = oneshot();
            waiting.push(sender);
            return Company::Follows(receiver);
        }
        reads.insert(key, Vec::new());
        Company::Leads(Lead { reads: self, key })
    }
}

impl Lead<'_> {
    /// Gives a copy to all who joined.
    pub(super) fn answer(self, data: &Buf, served: Served) {
        let waiting = self.reads.0.borrow_mut().get_mut(&self.key).map(std::mem::take);
        let waiting = waiting.unwrap_or_default();
        if waiting.is_empty() {
            return;
        }
        let copy = Bytes::copy_of(data);
        for sender in waiting {
            sender.send((copy.clone(), served));
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        // Outside the borrow: who is left without an answer wakes.
        let waiting = self.reads.0.borrow_mut().remove(&self.key);
        drop(waiting);
    }
}
