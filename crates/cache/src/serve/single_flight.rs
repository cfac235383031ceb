//! Single flight: of requests for the same range at the same time, one leads, and the others wait for its
//! answer.

use std::cell::RefCell;
use std::collections::BTreeMap;

use voltier_block::SectorRange;
use voltier_ring::{OneshotReceiver, OneshotSender, oneshot};

/// Start and sectors.
type Key = (u64, u64);

/// The leaders under way, by range: what waiters gave them, and who wants which answer.
pub(super) struct SingleFlight<Given, Answer>(RefCell<BTreeMap<Key, Waiters<Given, Answer>>>);

/// Requests that wait for a leader, in order, and what they gave it.
pub(super) struct Waiters<Given, Answer> {
    pub(super) given: Given,
    pub(super) answers: Vec<OneshotSender<Answer>>,
}

/// A request's role among those of its range.
pub(super) enum Role<'a, Given, Answer> {
    /// The request goes, for all who come meanwhile.
    Leader(Leader<'a, Given, Answer>),
    /// The request gets the leader's answer; none if the leader was dropped or has no answer.
    Waiter(OneshotReceiver<Answer>),
}

/// A request that others may join until it ends, or is dropped.
pub(super) struct Leader<'a, Given, Answer> {
    of: &'a SingleFlight<Given, Answer>,
    key: Key,
}

impl<Given, Answer> Default for SingleFlight<Given, Answer> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<Given: Default, Answer> Default for Waiters<Given, Answer> {
    fn default() -> Self {
        Self { given: Given::default(), answers: Vec::new() }
    }
}

impl<Given: Default, Answer> SingleFlight<Given, Answer> {
    /// Waits for the leader of this very range, and gives it something, or leads.
    pub(super) fn join(
        &self,
        range: SectorRange,
        give: impl FnOnce(&mut Given),
    ) -> Role<'_, Given, Answer> {
        let key = key_of(range);
        let mut all = self.0.borrow_mut();
        if let Some(waiters) = all.get_mut(&key) {
            let (sender, receiver) = oneshot();
            give(&mut waiters.given);
            waiters.answers.push(sender);
            return Role::Waiter(receiver);
        }
        all.insert(key, Waiters::default());
        Role::Leader(Leader { of: self, key })
    }

    /// Whether a request of this range leads.
    pub(super) fn has(&self, range: SectorRange) -> bool {
        self.0.borrow().contains_key(&key_of(range))
    }
}

fn key_of(range: SectorRange) -> Key {
    (range.start.0, range.count)
}

impl<Given: Default, Answer> Leader<'_, Given, Answer> {
    /// Nobody joins from here on.
    pub(super) fn end(self) -> Waiters<Given, Answer> {
        self.of.0.borrow_mut().remove(&self.key).unwrap_or_default()
    }
}

impl<Given, Answer> Drop for Leader<'_, Given, Answer> {
    fn drop(&mut self) {
        // Outside the borrow: waiters that are left without an answer wake.
        let waiters = self.of.0.borrow_mut().remove(&self.key);
        drop(waiters);
    }
}

impl<Given, Answer: Clone> Waiters<Given, Answer> {
    /// All get the same.
    pub(super) fn answer(self, answer: &Answer) {
        for sender in self.answers {
            sender.send(answer.clone());
        }
    }
}
