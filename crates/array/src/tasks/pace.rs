//! How fast background tasks go: beside requests, and never under their floor.
//!
//! A task works in batches. Before each batch the task asks for its turn. The turn comes at once while
//! nothing else is under way, and beside requests as the priority says. A task behind its floor has its
//! turn in any case: a rebuild that always gives way never ends on a busy array.

use std::cell::Cell;

use voltier_block::Nanos;

use crate::stripe::foreground::Foreground;

const SECOND_NS: Nanos = 1_000_000_000;
/// How often a task that waits looks again.
const LOOK_NS: Nanos = 1_000_000;
/// Batches of a task at once: as many as fill fast drives.
const BATCHES_AT_ONCE: u32 = 8;
/// The same beside requests, at high priority. On eight modelled D3700 two rebuild at 92 % of the rate of
/// eight, which had clients wait five times as long.
const BATCHES_BESIDE_REQUESTS: u32 = 2;
/// The same for a task that is behind its floor: batches take longer the more requests there are.
const BATCHES_AT_ONCE_MAX: u32 = 32;
/// A run that takes as long is of drives that seek: more and shorter ones would cost requests more.
const SEEKING_NS: Nanos = 5_000_000;
/// A floor that was missed is made up for as far as this.
const DEBT_NS_MAX: Nanos = SECOND_NS;

voltier_block::words! {
    /// How much a background task takes beside requests.
    #[derive(Default, PartialOrd, Ord)]
    pub enum Priority, "not a priority" {
        /// Nothing until no request was seen for a second.
        Idle = "idle",
        /// Nothing until no request was seen for ten milliseconds.
        Low = "low",
        /// One batch at a time, and a rest as long as the batch took.
        #[default]
        Normal = "normal",
        /// Two batches at a time, without a rest.
        High = "high",
    }
}

impl Priority {
    /// Requests that ended this long ago are still under way, for the task.
    const fn quiet_ns(self) -> Nanos {
        match self {
            Self::Idle => SECOND_NS,
            Self::Low => SECOND_NS / 100,
            Self::Normal => SECOND_NS / 1000,
            Self::High => 0,
        }
    }
}

/// The pace of a background task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The share that the task takes beside requests.
    pub priority: Priority,
    /// The rate that the task keeps in any case, in bytes of a member per second; 0 for nothing.
    pub floor_bytes_per_second: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { priority: Priority::Normal, floor_bytes_per_second: 10_000_000 }
    }
}

/// How far a background task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whether the task is at work.
    pub is_running: bool,
    /// Bytes of members done.
    pub done_bytes: u64,
    /// Bytes of members to do in all.
    pub total_bytes: u64,
    /// The task's rate over the last second or so, in bytes of members.
    pub bytes_per_second: u64,
    /// The time until the task is through at this rate, from now; none while there is no rate.
    pub eta_ns: Option<Nanos>,
    /// The task's pace.
    pub pace: Pace,
}

/// The next step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pacing {
    Go,
    /// Ask again then.
    WaitUntil(Nanos),
}

/// The pacing of one task, and its meter.
#[derive(Default)]
pub(crate) struct Pacer {
    pace: Cell<Pace>,
    in_flight: Cell<u32>,
    /// When the next batch is due by the floor.
    due_ns: Cell<Nanos>,
    /// Until when it rests.
    rest_until_ns: Cell<Nanos>,
    /// The time that a batch takes, about; 0 before the first.
    batch_ns: Cell<Nanos>,
    requests_seen: Cell<u64>,
    busy_at_ns: Cell<Nanos>,
    metered_bytes: Cell<u64>,
    metered_from_ns: Cell<Nanos>,
    bytes_per_second: Cell<u64>,
}

impl Pacer {
    pub(crate) fn pace(&self) -> Pace {
        self.pace.get()
    }

    pub(crate) fn set_pace(&self, pace: Pace) {
        self.pace.set(pace);
        self.due_ns.set(0);
    }

    /// The same, if it is not its pace already: what is due stays so.
    pub(crate) fn set_pace_if_new(&self, pace: Pace) {
        if self.pace.get() != pace {
            self.set_pace(pace);
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// The task starts.
    pub(crate) fn start(&self, now: Nanos) {
        self.due_ns.set(now);
        self.rest_until_ns.set(now);
        self.metered_bytes.set(0);
        self.metered_from_ns.set(now);
        self.bytes_per_second.set(0);
    }

    /// Whether the next batch may begin.
    pub(crate) fn pacing(&self, now: Nanos, foreground: &Foreground) -> Pacing {
        let Pace { priority, floor_bytes_per_second } = self.pace.get();
        let begun = foreground.begun();
        if foreground.in_flight() > 0 || begun != self.requests_seen.replace(begun) {
            self.busy_at_ns.set(now + 1);
        }
        let in_flight = self.in_flight.get();
        let has_floor = floor_bytes_per_second > 0;
        if has_floor && now >= self.due_ns.get() && in_flight < BATCHES_AT_ONCE_MAX {
            return Pacing::Go;
        }
        let is_busy = self.busy_at_ns.get() + priority.quiet_ns() > now;
        let may = match priority {
            _ if !is_busy => in_flight < BATCHES_AT_ONCE,
            Priority::High => in_flight < BATCHES_BESIDE_REQUESTS,
            Priority::Normal => in_flight == 0 && now >= self.rest_until_ns.get(),
            Priority::Low | Priority::Idle => false,
        };
        let due = if has_floor { self.due_ns.get().max(now + 1) } else { Nanos::MAX };
        if may { Pacing::Go } else { Pacing::WaitUntil(due.min(now + LOOK_NS)) }
    }

    /// A batch begins, of so many bytes of a member.
    pub(crate) fn begin(&self, now: Nanos, bytes: u64) {
        self.in_flight.set(self.in_flight.get() + 1);
        let floor = self.pace.get().floor_bytes_per_second.max(1);
        let step = (u128::from(bytes) * u128::from(SECOND_NS) / u128::from(floor)) as Nanos;
        // Work above the floor is no credit; a lag behind the floor is made up for.
        let due = self.due_ns.get().max(now.saturating_sub(DEBT_NS_MAX)).saturating_add(step);
        self.due_ns.set(due.min(now.saturating_add(step)));
    }

    /// A batch that began then has ended; what it did, in bytes of members.
    pub(crate) fn end(&self, now: Nanos, begun: Nanos, bytes: u64) {
        self.in_flight.set(self.in_flight.get() - 1);
        let took_ns = now - begun;
        self.rest_until_ns.set(now + took_ns);
        let before_ns = self.batch_ns.get();
        self.batch_ns.set(if before_ns == 0 { took_ns } else { (3 * before_ns + took_ns) / 4 });
        self.metered_bytes.set(self.metered_bytes.get() + bytes);
        let elapsed = now - self.metered_from_ns.get();
        if elapsed >= SECOND_NS {
            self.bytes_per_second.set(rate(self.metered_bytes.replace(0), elapsed));
            self.metered_from_ns.set(now);
        }
    }

    /// Whether requests wait less if batches are short: beside them only the floor is kept, by drives that
    /// do not seek.
    pub(crate) fn wants_short_runs(&self) -> bool {
        let is_fast = (1..SEEKING_NS).contains(&self.batch_ns.get());
        is_fast && self.pace.get().priority <= Priority::Low
    }

    pub(crate) fn progress(
        &self,
        now: Nanos,
        is_running: bool,
        done_bytes: u64,
        total_bytes: u64,
    ) -> Progress {
        let so_far = rate(self.metered_bytes.get(), now.saturating_sub(self.metered_from_ns.get()));
        let bytes_per_second = match self.bytes_per_second.get() {
            _ if !is_running => 0,
            0 => so_far,
            known => known,
        };
        let left = u128::from(total_bytes.saturating_sub(done_bytes)) * u128::from(SECOND_NS);
        let eta = (bytes_per_second > 0).then(|| left / u128::from(bytes_per_second.max(1)));
        let eta_ns = eta.map(|eta| Nanos::try_from(eta).unwrap_or(Nanos::MAX));
        let pace = self.pace.get();
        Progress { is_running, done_bytes, total_bytes, bytes_per_second, eta_ns, pace }
    }
}

fn rate(bytes: u64, elapsed_ns: Nanos) -> u64 {
    (u128::from(bytes) * u128::from(SECOND_NS) / u128::from(elapsed_ns.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(priority: Priority, floor_bytes_per_second: u64) -> Pacer {
        let pacer = Pacer::default();
        pacer.set_pace(Pace { priority, floor_bytes_per_second });
        pacer.start(SECOND_NS);
        pacer
    }

    #[test]
    fn without_requests_every_priority_goes_on() {
        for priority in Priority::ALL {
            let (pacer, foreground) = (pacer(priority, 0), Foreground::default());
            for _ in 0..BATCHES_AT_ONCE {
                assert_eq!(pacer.pacing(2 * SECOND_NS, &foreground), Pacing::Go);
                pacer.begin(2 * SECOND_NS, 1 << 20);
            }
            assert_ne!(pacer.pacing(2 * SECOND_NS, &foreground), Pacing::Go);
        }
    }

    #[test]
    fn beside_requests_the_floor_is_kept_and_no_more_is_taken_at_low_priority() {
        let (pacer, foreground) = (pacer(Priority::Low, 100 << 20), Foreground::default());
        let _request = foreground.enter();
        let (mut now, mut batches) = (SECOND_NS, 0);
        while now < 3 * SECOND_NS {
            match pacer.pacing(now, &foreground) {
                Pacing::Go => {
                    pacer.begin(now, 1 << 20);
                    pacer.end(now, now, 1 << 20);
                    batches += 1;
                }
                Pacing::WaitUntil(until) => now = until,
            }
        }
        assert_eq!(batches, 200, "two seconds of 100 MiB/s");
        // A task that could not begin for half a second catches up.
        now += SECOND_NS / 2;
        let mut at_once = 0;
        while pacer.pacing(now, &foreground) == Pacing::Go {
            pacer.begin(now, 1 << 20);
            pacer.end(now, now, 1 << 20);
            at_once += 1;
        }
        assert!((50..=51).contains(&at_once), "{at_once}");
    }

    #[test]
    fn normal_rests_as_long_as_it_worked_and_idle_waits_for_a_second_of_quiet() {
        let (normal, foreground) = (pacer(Priority::Normal, 0), Foreground::default());
        let request = foreground.enter();
        let now = 2 * SECOND_NS;
        assert_eq!(normal.pacing(now, &foreground), Pacing::Go);
        normal.begin(now, 1 << 20);
        assert_ne!(normal.pacing(now, &foreground), Pacing::Go);
        normal.end(now + 500, now, 1 << 20);
        assert_ne!(normal.pacing(now + 999, &foreground), Pacing::Go);
        assert_eq!(normal.pacing(now + 1000, &foreground), Pacing::Go);
        let idle = pacer(Priority::Idle, 0);
        assert_ne!(idle.pacing(now, &foreground), Pacing::Go);
        drop(request);
        assert_ne!(idle.pacing(now + SECOND_NS / 2, &foreground), Pacing::Go);
        assert_eq!(idle.pacing(now + 2 * SECOND_NS, &foreground), Pacing::Go);
    }

    #[test]
    fn batches_are_short_at_low_priority_on_drives_that_do_not_seek() {
        for (priority, took_ns, is_short) in [
            (Priority::Idle, 400_000, true),
            (Priority::Low, 2_000_000, true),
            (Priority::Low, 12_000_000, false),
            (Priority::Normal, 400_000, false),
        ] {
            let pacer = pacer(priority, 1 << 20);
            assert!(!pacer.wants_short_runs(), "nothing is known yet");
            pacer.begin(SECOND_NS, 1 << 19);
            pacer.end(SECOND_NS + took_ns, SECOND_NS, 1 << 19);
            assert_eq!(pacer.wants_short_runs(), is_short, "{priority:?}, {took_ns} ns");
        }
    }

    #[test]
    fn progress_tells_when_it_is_through() {
        let pacer = pacer(Priority::High, 0);
        pacer.begin(SECOND_NS, 1000);
        pacer.end(2 * SECOND_NS, SECOND_NS, 1000);
        let progress = pacer.progress(2 * SECOND_NS, true, 1000, 5000);
        assert_eq!((progress.bytes_per_second, progress.eta_ns), (1000, Some(4 * SECOND_NS)));
    }
}
