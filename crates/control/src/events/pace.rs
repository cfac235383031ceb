//! When a hook is told: at once, but not too often, and later again when it failed. Pure: the time is given.

use std::time::{Duration, Instant};

/// Events that a hook takes in a window one by one; those beyond come as one at its end.
pub(crate) const IN_WINDOW_MAX: u32 = 20;
/// Deliveries in a window beyond those, for what is degraded or failed: it does not wait behind smaller things.
const URGENT_IN_WINDOW_MAX: u32 = 10;
/// The window.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// The pause after the first failure; doubled after each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// The time of the couriers.
#[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The events that wait for a hook.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// How many.
    pub(crate) count: u64,
    /// Some of them are not in memory any more.
    pub(crate) have_gap: bool,
    /// One of them says that something is degraded or failed.
    pub(crate) are_urgent: bool,
}

/// What is to be done now about the events that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing, for so long.
    Wait(Duration),
    /// Deliver the first one.
    One,
    /// Deliver one event that stands for all of them.
    Summary,
}

/// The pace of one hook.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the window began, and how many events were delivered in it.
    window: Option<(Instant, u32)>,
    failures: u32,
    not_before: Option<Instant>,
    /// A summary is due, and has not been delivered.
    owes_summary: bool,
}

impl Pace {
    /// What to do about the events that wait.
    pub(crate) fn plan(&mut self, now: Instant, waiting: Waiting) -> Plan {
        if let Some(at) = self.not_before.filter(|at| *at > now) {
            return Plan::Wait(at - now);
        }
        if let Some((began, count)) = self.window {
            let left = (began + WINDOW).saturating_duration_since(now);
            if left.is_zero() {
                self.owes_summary |= count >= IN_WINDOW_MAX;
                self.window = None;
            } else if count >= IN_WINDOW_MAX {
                let is_let_through =
                    waiting.are_urgent && count < IN_WINDOW_MAX + URGENT_IN_WINDOW_MAX;
                if !is_let_through {
                    return Plan::Wait(left);
                }
                // With all that waits before it: the order stays.
                self.owes_summary = true;
            }
        }
        self.owes_summary &= waiting.count > 1;
        if self.owes_summary || waiting.have_gap { Plan::Summary } else { Plan::One }
    }

    /// The delivery has ended well.
    pub(crate) fn succeeded(&mut self, now: Instant) {
        let (_, count) = self.window.get_or_insert((now, 0));
        *count += 1;
        (self.failures, self.not_before, self.owes_summary) = (0, None, false);
    }

    /// The delivery has failed.
    pub(crate) fn failed(&mut self, now: Instant) {
        let pause = PAUSE_MIN * 2_u32.saturating_pow(self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + pause.min(PAUSE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(count: u64) -> Waiting {
        Waiting { count, have_gap: false, are_urgent: false }
    }

    #[test]
    fn what_is_degraded_does_not_wait_behind_smaller_things_but_has_a_limit_too() {
        let (mut pace, start) = (Pace::default(), now());
        for _ in 0..IN_WINDOW_MAX {
            pace.plan(start, small(99));
            pace.succeeded(start);
        }
        let urgent = |count| Waiting { are_urgent: true, ..small(count) };
        for count in [5, 1, 7, 1, 1, 2, 3, 1, 1, 1] {
            assert_eq!(pace.plan(start, small(count)), Plan::Wait(WINDOW));
            let expected = if count > 1 { Plan::Summary } else { Plan::One };
            assert_eq!(pace.plan(start, urgent(count)), expected);
            pace.succeeded(start);
        }
        assert_eq!(pace.plan(start, urgent(9)), Plan::Wait(WINDOW), "a flood of failures");
    }

    #[test]
    fn events_beyond_the_limit_of_a_window_come_as_one_when_it_ends() {
        let (mut pace, start) = (Pace::default(), now());
        for _ in 0..IN_WINDOW_MAX {
            assert_eq!(pace.plan(start, small(99)), Plan::One);
            pace.succeeded(start);
        }
        assert_eq!(pace.plan(start, small(79)), Plan::Wait(WINDOW));
        assert_eq!(pace.plan(start + WINDOW / 2, small(79)), Plan::Wait(WINDOW / 2));
        let next = start + WINDOW;
        assert_eq!(pace.plan(next, small(79)), Plan::Summary);
        pace.succeeded(next);
        assert_eq!(pace.plan(next, small(3)), Plan::One);
    }

    #[test]
    fn one_event_alone_is_no_summary_and_a_window_that_was_not_full_needs_none() {
        let (mut pace, start) = (Pace::default(), now());
        for _ in 0..IN_WINDOW_MAX {
            pace.plan(start, small(21));
            pace.succeeded(start);
        }
        assert_eq!(pace.plan(start + WINDOW, small(1)), Plan::One);
        let mut pace = Pace::default();
        pace.plan(start, small(5));
        pace.succeeded(start);
        assert_eq!(pace.plan(start + WINDOW, small(4)), Plan::One);
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_end_with_the_first_success() {
        let (mut pace, mut at) = (Pace::default(), now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(pace.plan(at, small(1)), Plan::One);
            pace.failed(at);
            let Plan::Wait(pause) = pace.plan(at, small(1)) else { panic!("no pause") };
            pauses.push(pause.as_secs());
            at += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        pace.succeeded(at);
        assert_eq!(pace.plan(at, small(1)), Plan::One);
    }

    #[test]
    fn a_summary_that_failed_is_a_summary_again() {
        let (mut pace, start) = (Pace::default(), now());
        for _ in 0..IN_WINDOW_MAX {
            pace.plan(start, small(50));
            pace.succeeded(start);
        }
        assert_eq!(pace.plan(start + WINDOW, small(30)), Plan::Summary);
        pace.failed(start + WINDOW);
        assert_eq!(pace.plan(start + WINDOW * 2, small(30)), Plan::Summary);
        assert_eq!(
            Pace::default().plan(start, Waiting { have_gap: true, ..small(9000) }),
            Plan::Summary,
            "some are gone"
        );
    }
}
