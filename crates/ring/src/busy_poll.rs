//! How long a core looks for completions before it sleeps.
//!
//! A core that sleeps is woken within 5 to 60 microseconds, by the machine, which a client with one request at a
//! time waits for at each of them. A core whose sleeps are short therefore looks for completions for a while first.
//! As with a hypervisor's halt polling (Linux, `halt_poll_ns`), a core with little to do sleeps as ever, and one
//! that polls was awake most of the time before. A few looks in vain end it for a while, whatever the sleeps are.

use voltier_block::Nanos;

/// Sleeps up to so many times the longest poll are short: a sleep takes a wake-up longer than a poll would have.
const SHORT_SLEEP_POLLS: Nanos = 2;

/// Polls in vain, one after the other, after which the core rests.
const VAIN_MAX: u32 = 4;

/// How long it then sleeps at once: what polls in vain take is 4 % of it.
const REST_NS: Nanos = 10_000_000;

/// Who gives the processor away while it polls, and has it back later than this, shares it with somebody who
/// works. A client's turn is shorter.
const AWAY_NS: Nanos = 200_000;

/// How long a core that shares its processor sleeps at once: a processor in use is awake without it.
const SHARED_REST_NS: Nanos = 500_000_000;

/// What a core has learnt of its sleeps. All times are of the core's clock.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    /// What is polled before a sleep; 0 for never.
    most_ns: Nanos,
    /// The last sleep was short.
    is_on: bool,
    /// Polls that found nothing since one did.
    vain: u32,
    /// Nothing is polled before this time.
    rests_until: Nanos,
}

impl BusyPoll {
    /// Polls for so long before a sleep that may be short; 0 for never.
    pub(crate) fn set_most_ns(&mut self, most_ns: Nanos) {
        *self = Self { most_ns, ..Self::default() };
    }

    /// How long to poll now, before a sleep; 0 for not at all.
    pub(crate) fn time_ns(&self, now: Nanos) -> Nanos {
        if self.is_on && now >= self.rests_until { self.most_ns } else { 0 }
    }

    /// A poll has found something.
    pub(crate) fn found(&mut self) {
        self.vain = 0;
    }

    /// A poll has found nothing.
    pub(crate) fn found_nothing(&mut self, now: Nanos) {
        self.vain += 1;
        if self.vain == VAIN_MAX {
            (self.vain, self.rests_until) = (0, now + REST_NS);
        }
    }

    /// The core has slept for so long, the poll before it included.
    pub(crate) fn slept(&mut self, idle_ns: Nanos) {
        self.is_on = idle_ns < SHORT_SLEEP_POLLS * self.most_ns;
    }

    /// The processor was given away for `away_ns` while the core polled; whether somebody else works there, so
    /// that polling is to end.
    pub(crate) fn is_shared(&mut self, away_ns: Nanos, now: Nanos) -> bool {
        let is_shared = away_ns > AWAY_NS;
        if is_shared {
            self.rests_until = now + SHARED_REST_NS;
        }
        is_shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polling() -> BusyPoll {
        let mut poll = BusyPoll::default();
        poll.set_most_ns(50_000);
        poll.slept(99_999);
        poll
    }

    #[test]
    fn a_short_sleep_begins_it_and_a_long_one_ends_it() {
        let mut poll = BusyPoll::default();
        poll.set_most_ns(50_000);
        assert_eq!(poll.time_ns(0), 0, "nothing is known yet");
        poll.slept(99_999);
        assert_eq!(poll.time_ns(0), 50_000);
        poll.slept(100_000);
        assert_eq!(poll.time_ns(0), 0);
    }

    #[test]
    fn a_core_that_is_not_to_poll_never_does() {
        let mut poll = BusyPoll::default();
        for idle_ns in [0, 1, 1_000_000] {
            poll.slept(idle_ns);
            assert_eq!(poll.time_ns(0), 0);
        }
    }

    #[test]
    fn polls_in_vain_end_it_for_a_while_unless_one_finds_something_between_them() {
        let mut poll = polling();
        for _ in 0..2 {
            (1..VAIN_MAX).for_each(|_| poll.found_nothing(7));
            assert_eq!(poll.time_ns(7), 50_000);
            poll.found();
        }
        (0..VAIN_MAX).for_each(|_| poll.found_nothing(7));
        assert_eq!(poll.time_ns(7 + REST_NS - 1), 0);
        assert_eq!(poll.time_ns(7 + REST_NS), 50_000);
    }

    #[test]
    fn a_core_whose_processor_others_use_rests_for_longer() {
        let mut poll = polling();
        assert!(!poll.is_shared(AWAY_NS, 7), "a client's turn");
        assert_eq!(poll.time_ns(7), 50_000);
        assert!(poll.is_shared(AWAY_NS + 1, 7));
        assert_eq!(poll.time_ns(7 + SHARED_REST_NS - 1), 0);
        assert_eq!(poll.time_ns(7 + SHARED_REST_NS), 50_000);
    }
}
