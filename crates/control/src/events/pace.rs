//! When a hook is told: at once, but not too often, and later again when it failed. Pure: the time is given.

use std::time::{Duration, Instant};

/// Events that a hook takes in a window one by one; those beyond come as one at its end.
pub(crate) const IN_WINDOW_MAX: u32 = 20;
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
    /// What to do about so many events that wait. `have_gap` says that some of them are not in memory any more.
    pub(crate) fn plan(&mut self, now: Instant, waiting: u64, have_gap: bool) -> Plan {
        if let Some(at) = self.not_before.filter(|at| *at > now) {
            return Plan::Wait(at - now);
        }
        if let Some((began, count)) = self.window {
            let left = (began + WINDOW).saturating_duration_since(now);
            if left.is_zero() {
                self.owes_summary |= count >= IN_WINDOW_MAX;
                self.window = None;
            } else if count >= IN_WINDOW_MAX {
                return Plan::Wait(left);
            }
        }
        self.owes_summary &= waiting > 1;
        if self.owes_summary || have_gap { Plan::Summary } else { Plan::One }
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

    #[test]
    fn events_beyond_the_limit_of_a_window_come_as_one_when_it_ends() {
        let (mut pace, start) = (Pace::default(), now());
        for _ in 0..IN_WINDOW_MAX {
            assert_eq!(pace.plan(start, 99, false), Plan::One);
            pace.succeeded(start);
        }
        assert_eq!(pace.plan(start, 79, false), Plan::Wait(WINDOW));
        assert_eq!(pace.plan(start + WINDOW / 2, 79, false), Plan::Wait(WINDOW / 2));
        let next = start + WINDOW;
        assert_eq!(pace.plan(next, 79, false), Plan::Summary);
        pace.succeeded(next);
        assert_eq!(pace.plan(next, 3, false), Plan::One);
    }

    #[test]
    fn one_event_alone_is_no_summary_and_a_window_that_was_not_full_needs_none() {
        let (mut pace, start) = (Pace::default(), now());
        for _ in 0..IN_WINDOW_MAX {
            pace.plan(start, 21, false);
            pace.succeeded(start);
        }
        assert_eq!(pace.plan(start + WINDOW, 1, false), Plan::One);
        let mut pace = Pace::default();
        pace.plan(start, 5, false);
        pace.succeeded(start);
        assert_eq!(pace.plan(start + WINDOW, 4, false), Plan::One);
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_end_with_the_first_success() {
        let (mut pace, mut at) = (Pace::default(), now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(pace.plan(at, 1, false), Plan::One);
            pace.failed(at);
            let Plan::Wait(pause) = pace.plan(at, 1, false) else { panic!("no pause") };
            pauses.push(pause.as_secs());
            at += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        pace.succeeded(at);
        assert_eq!(pace.plan(at, 1, false), Plan::One);
    }

    #[test]
    fn a_summary_that_failed_is_a_summary_again() {
        let (mut pace, start) = (Pace::default(), now());
        for _ in 0..IN_WINDOW_MAX {
            pace.plan(start, 50, false);
            pace.succeeded(start);
        }
        assert_eq!(pace.plan(start + WINDOW, 30, false), Plan::Summary);
        pace.failed(start + WINDOW);
        assert_eq!(pace.plan(start + WINDOW * 2, 30, false), Plan::Summary);
        assert_eq!(Pace::default().plan(start, 9000, true), Plan::Summary, "some are gone");
    }
}
