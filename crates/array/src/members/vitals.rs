//! The vital signs of a member: its errors, and how long its I/Os take.

use std::cell::{Cell, RefCell};

use voltier_block::Nanos;

use crate::members::counts::MemberCounts;
use crate::members::latency::Samples;

/// Every such I/O of a member is timed: two looks at the clock for each would cost more than all else that is
/// counted. Odd: requests that read and write in turns have both timed.
const STRIDE: u32 = 31;
/// After an I/O that took as long as this, in nanoseconds, the next is timed. I/Os are few then, and a
/// look at the clock is nothing to them.
const LONG_NS: Nanos = 100_000;
/// Verdicts in a row that make a member slow, or end that: the window has so many rounds.
pub(crate) const ROUNDS: u32 = 5;
/// One of so many reads of a member that is avoided goes to it all the same: that shows when it has
/// recovered.
const PROBE: u32 = 64;

/// The kinds of I/Os that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timed {
    Read,
    Write,
}

/// The vital signs of one member.
pub(crate) struct Vitals {
    /// Reads under way, by which copies share the load.
    reads_in_flight: Cell<u32>,
    /// I/Os until the next one is timed.
    untimed: Cell<u32>,
    /// When the one that is timed began; 0 for none.
    timed_since: Cell<Nanos>,
    timed: Cell<Timed>,
    /// Whether reads go elsewhere.
    is_avoided: Cell<bool>,
    probes: Cell<u32>,
    is_slow: Cell<bool>,
    /// Verdicts in a row that it is not what `is_slow` says.
    against: Cell<u32>,
    counts: Cell<MemberCounts>,
    errors_recent: Cell<u32>,
    /// Until when these are halved.
    halved_at: Cell<Nanos>,
    samples: [RefCell<Samples>; 2],
}

impl Default for Vitals {
    fn default() -> Self {
        Self {
            reads_in_flight: Cell::default(),
            untimed: Cell::default(),
            timed_since: Cell::default(),
            timed: Cell::new(Timed::Read),
            is_avoided: Cell::default(),
            probes: Cell::default(),
            is_slow: Cell::default(),
            against: Cell::default(),
            counts: Cell::default(),
            errors_recent: Cell::default(),
            halved_at: Cell::default(),
            samples: Default::default(),
        }
    }
}

impl Vitals {
    /// Goes on with what another one has found, whose array makes place for this one's.
    pub(crate) fn take_over(&self, before: &Self) {
        self.is_avoided.set(before.is_avoided.get());
        self.is_slow.set(before.is_slow.get());
        self.against.set(before.against.get());
        self.counts.set(before.counts.get());
        self.errors_recent.set(before.errors_recent.get());
        self.halved_at.set(before.halved_at.get());
    }
}

/// A read of a member under way, timed or not.
pub(crate) struct ReadUnderWay<'a> {
    vitals: &'a Vitals,
    since: Nanos,
}

impl ReadUnderWay<'_> {
    /// The begin of a request that is timed, or 0.
    #[inline]
    pub(crate) fn end(self) -> Nanos {
        self.since
    }
}

impl Drop for ReadUnderWay<'_> {
    fn drop(&mut self) {
        self.vitals.reads_in_flight.set(self.vitals.reads_in_flight.get() - 1);
        if self.since != 0 {
            self.vitals.end();
        }
    }
}

impl Vitals {
    #[inline]
    pub(crate) fn begin_read(&self, now: impl FnOnce() -> Nanos) -> ReadUnderWay<'_> {
        self.reads_in_flight.set(self.reads_in_flight.get() + 1);
        ReadUnderWay { vitals: self, since: self.begin(Timed::Read, now) }
    }

    /// The figures that are counted here.
    pub(crate) fn counts(&self) -> MemberCounts {
        self.counts.get()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut MemberCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// The one that was timed has ended.
    pub(crate) fn end(&self) {
        self.timed_since.set(0);
    }

    /// How long the one that is timed has taken so far.
    pub(crate) fn under_way_ns(&self, timed: Timed, now: Nanos) -> Option<Nanos> {
        let since = self.timed_since.get();
        let is_it = since != 0 && self.timed.get() == timed;
        is_it.then(|| now.saturating_sub(since))
    }

    /// Takes down how long a timed request took.
    pub(crate) fn add(&self, timed: Timed, took_ns: Nanos) {
        self.samples(timed).borrow_mut().add(took_ns);
        if took_ns >= LONG_NS {
            self.untimed.set(0);
        }
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.get()
    }

    pub(crate) fn is_avoided(&self) -> bool {
        self.is_avoided.get()
    }

    pub(crate) fn set_avoided(&self, is_avoided: bool) {
        self.is_avoided.set(is_avoided);
    }

    pub(crate) fn forget_means(&self) {
        self.samples.iter().for_each(|samples| samples.borrow_mut().forget_mean());
    }

    /// The verdicts so far count no more; if nobody is to be slow, it is not.
    pub(crate) fn judge_anew(&self, may_be_slow: bool) {
        self.against.set(0);
        self.is_slow.set(self.is_slow.get() && may_be_slow);
    }

    pub(crate) fn reads_in_flight(&self) -> u32 {
        self.reads_in_flight.get()
    }

    /// Another device has the place: nothing of the old one is true of it.
    pub(crate) fn forget(&self) {
        let new = Self::default();
        self.is_avoided.set(false);
        self.is_slow.set(false);
        self.against.set(0);
        self.counts.take();
        self.errors_recent.set(0);
        for (own, new) in self.samples.iter().zip(new.samples) {
            own.replace(new.into_inner());
        }
    }

    /// Whether this read is to go elsewhere.
    pub(crate) fn is_avoided_now(&self) -> bool {
        if !self.is_avoided.get() {
            return false;
        }
        self.probes.set((self.probes.get() + 1) % PROBE);
        self.probes.get() != 0
    }

    /// When this I/O began if it is one that is timed, or 0.
    #[inline]
    pub(crate) fn begin(&self, timed: Timed, now: impl FnOnce() -> Nanos) -> Nanos {
        let untimed = self.untimed.get();
        if untimed != 0 {
            self.untimed.set(untimed - 1);
            return 0;
        }
        self.begin_timed(timed, now)
    }

    #[cold]
    fn begin_timed(&self, timed: Timed, now: impl FnOnce() -> Nanos) -> Nanos {
        if self.timed_since.get() != 0 {
            return 0;
        }
        self.untimed.set(STRIDE - 1);
        let since = now().max(1);
        self.timed.set(timed);
        self.timed_since.set(since);
        since
    }

    pub(crate) fn samples(&self, timed: Timed) -> &RefCell<Samples> {
        &self.samples[timed as usize]
    }

    /// One more error; how many there are of late.
    pub(crate) fn add_error(&self, now: Nanos, window_ns: Nanos) -> u32 {
        let recent = self.recent(now, window_ns);
        let windows = now.saturating_sub(self.halved_at.get()) / window_ns;
        let is_first = self.errors_recent.get() == 0;
        let halved_at = if is_first { now } else { self.halved_at.get() + windows * window_ns };
        self.halved_at.set(halved_at);
        self.errors_recent.set(recent.saturating_add(1));
        self.errors_recent.get()
    }

    /// Errors of late.
    pub(crate) fn recent(&self, now: Nanos, window_ns: Nanos) -> u32 {
        let windows = now.saturating_sub(self.halved_at.get()) / window_ns;
        let halvings = u32::try_from(windows).unwrap_or(u32::MAX);
        self.errors_recent.get().checked_shr(halvings).unwrap_or(0)
    }

    /// A verdict of a round; whether it changed what the member is called.
    pub(crate) fn judge(&self, is_slow: bool) -> bool {
        if is_slow == self.is_slow.get() {
            self.against.set(0);
            return false;
        }
        self.against.set(self.against.get() + 1);
        if self.against.get() < ROUNDS {
            return false;
        }
        self.against.set(0);
        self.is_slow.set(is_slow);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_half_with_every_window_and_are_forgotten() {
        let vitals = Vitals::default();
        (0..20).for_each(|_| _ = vitals.add_error(1000, 100));
        assert_eq!(vitals.recent(1099, 100), 20);
        assert_eq!(vitals.recent(1100, 100), 10);
        assert_eq!(vitals.add_error(1250, 100), 6);
        // The windows go on from the first error, not from the last.
        assert_eq!(vitals.recent(1299, 100), 6);
        assert_eq!(vitals.recent(1300, 100), 3);
        assert_eq!(vitals.recent(Nanos::MAX, 100), 0);
        assert_eq!(vitals.add_error(Nanos::MAX, 100), 1);
    }

    #[test]
    fn slow_takes_five_verdicts_in_a_row_and_so_does_its_end() {
        let vitals = Vitals::default();
        let judge =
            |verdicts: &[bool]| verdicts.iter().filter(|verdict| vitals.judge(**verdict)).count();
        assert_eq!(judge(&[true, true, true, true, false, true, true, true, true]), 0);
        assert_eq!(judge(&[true]), 1);
        assert!(vitals.is_slow.get());
        assert_eq!(judge(&[false, false, true, false, false, false, false]), 0);
        assert_eq!(judge(&[false]), 1);
        assert!(!vitals.is_slow.get());
    }

    #[test]
    fn one_in_so_many_is_timed_and_only_one_at_a_time() {
        let vitals = Vitals::default();
        let timed =
            |count: u32| (0..count).filter(|_| vitals.begin(Timed::Read, || 7) != 0).count();
        assert_eq!(timed(10 * STRIDE), 1, "the first is under way");
        vitals.timed_since.set(0);
        assert_eq!(timed(1), 1);
        vitals.timed_since.set(0);
        assert_eq!(timed(STRIDE), 1);
    }
}
