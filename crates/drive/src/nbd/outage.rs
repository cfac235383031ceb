//! The time in which a server is of no use: how long the next attempt waits, and what was said.
//!
//! A server may let a client in and drop it at once, over and over: while it ends, or because its own storage is
//! gone. That is one outage, which ends when a session has answered something, or has stood for a while.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use voltier_block::Nanos;

/// The first and the longest pause between two attempts to connect, in nanoseconds.
const PAUSE_NS_MIN: Nanos = 50_000_000;
const PAUSE_NS_MAX: Nanos = 1_000_000_000;
/// Different states of one outage that are told at most.
const TOLD_MAX: usize = 16;

/// News of a drive for the log, each in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdNews {
    /// The connection broke; why.
    Lost(String),
    /// There is no new connection yet; why.
    StillLost(String),
    /// The drive is connected again, and so many changes were made again that no flush had covered.
    Back(usize),
    /// The server refuses a change that is to be made again: the drive ends.
    ChangeLost,
}

/// An outage, or none.
#[derive(Default)]
pub(super) struct Outage {
    /// Whether there is one.
    lasts: Cell<bool>,
    /// Before the next attempt; none before the first.
    pause_ns: Cell<Nanos>,
    /// What was told of it.
    told: RefCell<BTreeSet<String>>,
    /// Somebody was told that it is over.
    was_called_over: Cell<bool>,
    /// The changes that were made again, of which nobody was told.
    untold: Cell<Option<usize>>,
}

impl Outage {
    /// A session has ended. Whether that begins an outage.
    pub(super) fn begin(&self) -> bool {
        !self.lasts.replace(true)
    }

    /// The pause before an attempt to connect; each is longer than the one before.
    pub(super) fn pause_ns(&self) -> Nanos {
        let pause_ns = self.pause_ns.get();
        self.pause_ns.set((2 * pause_ns).clamp(PAUSE_NS_MIN, PAUSE_NS_MAX));
        pause_ns
    }

    /// An attempt has failed, or a session was of no use; what to say of that.
    pub(super) fn goes_on(&self, why: String) -> Option<NbdNews> {
        let mut told = self.told.borrow_mut();
        let is_news = told.len() < TOLD_MAX && told.insert(why.clone());
        is_news.then_some(NbdNews::StillLost(why))
    }

    /// A session begins; what to say of that now.
    pub(super) fn let_in(&self, again: usize) -> Option<NbdNews> {
        if self.was_called_over.replace(true) {
            self.untold.set(Some(again));
            return None;
        }
        Some(NbdNews::Back(again))
    }

    /// A session is of use: the outage is over. What to say of that.
    pub(super) fn end(&self) -> Option<NbdNews> {
        if !self.lasts.replace(false) {
            return None;
        }
        self.pause_ns.set(0);
        self.told.borrow_mut().clear();
        self.was_called_over.set(false);
        self.untold.take().map(NbdNews::Back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_session_is_of_use() {
        let outage = Outage::default();
        for _ in 0..2 {
            assert!(outage.begin());
            let pauses: Vec<Nanos> = (0..7).map(|_| outage.pause_ns() / 1_000_000).collect();
            assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1000]);
            assert_eq!(outage.let_in(1), Some(NbdNews::Back(1)));
            assert!(!outage.begin());
            assert_eq!(outage.pause_ns(), PAUSE_NS_MAX);
            let why = || "why".to_owned();
            assert_eq!(outage.goes_on(why()), Some(NbdNews::StillLost(why())));
            assert_eq!((outage.goes_on(why()), outage.let_in(2)), (None, None));
            assert_eq!((outage.end(), outage.end()), (Some(NbdNews::Back(2)), None));
        }
    }

    #[test]
    fn what_is_told_of_one_outage_is_bounded() {
        let outage = Outage::default();
        outage.begin();
        let told = (0..100).filter_map(|number| outage.goes_on(number.to_string()));
        assert_eq!(told.count(), TOLD_MAX);
    }
}
