//! An origin that refuses what is written back: since when, and when nobody waits for it any more.
//!
//! The cleaner tries again while there is a need. The first batch that brings something ends the refusal, and
//! so does a rest of the cleaner.
//!
//! Without an end to the patience, a write that finds no room would wait for ever, with the locks of its
//! lines, and so would every change of mode, detach and stop behind it.

use std::cell::Cell;

use voltier_block::Nanos;

/// Refused batches in a row, at least, before a refusal counts: one may have met a path that switches.
const BATCHES_MIN: u32 = 3;
/// How long an origin must have refused all. In half a minute a path is switched over or a controller
/// restarts.
const LASTING_NS: Nanos = 30_000_000_000;

/// The refusal of one origin.
#[derive(Default)]
pub(crate) struct Refusal {
    /// Batches in a row of which the origin took nothing.
    batches: Cell<u32>,
    /// On the clock of the core: when the first of them ended, and the last.
    since_ns: Cell<Nanos>,
    last_ns: Cell<Nanos>,
}

impl Refusal {
    /// A batch brought nothing, because the origin did not take it.
    pub(crate) fn note_refused(&self, now: Nanos) {
        if !self.has_begun() {
            self.since_ns.set(now);
        }
        self.last_ns.set(now);
        self.batches.set(self.batches.get().saturating_add(1));
    }

    /// The origin has lines that it did not have, or is not asked to take any.
    pub(crate) fn end(&self) {
        self.batches.set(0);
    }

    /// Whether the origin refused the last batch.
    pub(crate) fn has_begun(&self) -> bool {
        self.batches.get() > 0
    }

    /// Whether the origin has refused everything for so long that no request waits for it.
    pub(crate) fn lasts(&self) -> bool {
        self.batches.get() >= BATCHES_MIN && self.last_ns.get() - self.since_ns.get() >= LASTING_NS
    }

    /// For how long the origin has refused everything, if no request waits for it any more.
    pub(crate) fn lasted_ns(&self, now: Nanos) -> Option<Nanos> {
        self.lasts().then(|| now - self.since_ns.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: Nanos = 1_000_000_000;

    #[test]
    fn a_refusal_lasts_after_half_a_minute_of_several_batches_and_ends_with_one_that_is_taken() {
        let refusal = Refusal::default();
        refusal.note_refused(5 * SECOND_NS);
        refusal.note_refused(50 * SECOND_NS);
        assert!(refusal.has_begun() && !refusal.lasts(), "two batches may have been slow");
        refusal.note_refused(51 * SECOND_NS);
        assert_eq!(refusal.lasted_ns(60 * SECOND_NS), Some(55 * SECOND_NS));
        refusal.end();
        assert!(!refusal.has_begun() && refusal.lasted_ns(60 * SECOND_NS).is_none());
        for second in 60..90 {
            refusal.note_refused(second * SECOND_NS);
            assert!(!refusal.lasts(), "{second}");
        }
        refusal.note_refused(90 * SECOND_NS);
        assert!(refusal.lasts());
    }
}
