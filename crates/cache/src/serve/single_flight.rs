//! Requests for the same range at the same time: the first one leads, the others follow and get its
//! answer.

use std::cell::RefCell;
use std::collections::BTreeMap;

use voltier_block::SectorRange;
use voltier_ring::{OneshotReceiver, OneshotSender, oneshot};

/// Start and sectors.
type Key = (u64, u64);

/// Those who may be joined, by range: what the followers left for them, and who wants which answer.
pub(super) struct Company<Left, Answer>(RefCell<BTreeMap<Key, Followers<Left, Answer>>>);

/// Who followed, in order, and what they left.
pub(super) struct Followers<Left, Answer> {
    pub(super) left: Left,
    pub(super) answers: Vec<OneshotSender<Answer>>,
}

/// A request's place among those of its range.
pub(super) enum Place<'a, Left, Answer> {
    /// It goes, for all who come meanwhile.
    Leads(Lead<'a, Left, Answer>),
    /// It gets the answer of the one that leads; none if that one was dropped or has no answer.
    Follows(OneshotReceiver<Answer>),
}

/// A request that others may join until it ends, or is dropped.
pub(super) struct Lead<'a, Left, Answer> {
    company: &'a Company<Left, Answer>,
    key: Key,
}

impl<Left, Answer> Default for Company<Left, Answer> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<Left: Default, Answer> Default for Followers<Left, Answer> {
    fn default() -> Self {
        Self { left: Left::default(), answers: Vec::new() }
    }
}

impl<Left: Default, Answer> Company<Left, Answer> {
    /// Follows the request of this very range that leads, and leaves it something, or leads.
    pub(super) fn join(
        &self,
        range: SectorRange,
        leave: impl FnOnce(&mut Left),
    ) -> Place<'_, Left, Answer> {
        let key = key_of(range);
        let mut all = self.0.borrow_mut();
        if let Some(followers) = all.get_mut(&key) {
            let (sender, receiver) = oneshot();
            leave(&mut followers.left);
            followers.answers.push(sender);
            return Place::Follows(receiver);
        }
        all.insert(key, Followers::default());
        Place::Leads(Lead { company: self, key })
    }

    /// Whether a request of this range leads.
    pub(super) fn has(&self, range: SectorRange) -> bool {
        self.0.borrow().contains_key(&key_of(range))
    }
}

fn key_of(range: SectorRange) -> Key {
    (range.start.0, range.count)
}

impl<Left: Default, Answer> Lead<'_, Left, Answer> {
    /// Nobody joins it from here on.
    pub(super) fn end(self) -> Followers<Left, Answer> {
        self.company.0.borrow_mut().remove(&self.key).unwrap_or_default()
    }
}

impl<Left, Answer> Drop for Lead<'_, Left, Answer> {
    fn drop(&mut self) {
        // Outside the borrow: who is left without an answer wakes.
        let followers = self.company.0.borrow_mut().remove(&self.key);
        drop(followers);
    }
}

impl<Left, Answer: Clone> Followers<Left, Answer> {
    /// All get the same.
    pub(super) fn answer(self, answer: &Answer) {
        for sender in self.answers {
            sender.send(answer.clone());
        }
    }
}
