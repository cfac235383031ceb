//! How busy the threads of a program are, asked of `/proc` while it runs.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::process::Deadline;

/// A tick of `/proc`: the kernel's USER_HZ is 100 everywhere.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// How often threads are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// A thread that was seen for less is not told: a tick is too much of it.
const SEEN_LEAST: Duration = Duration::from_secs(1);

/// Ticks of processor time, and the moment, when a thread was first and last seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: (u64, Duration),
    last: (u64, Duration),
}

/// The threads of one process.
#[derive(Debug)]
pub(crate) struct ThreadLoad {
    pid: u32,
    threads: BTreeMap<u32, Seen>,
    next: Option<Deadline>,
}

impl ThreadLoad {
    /// Nothing is seen yet of the process.
    pub(crate) fn of(pid: u32) -> ThreadLoad {
        ThreadLoad { pid, threads: BTreeMap::new(), next: None }
    }

    /// Looks at the threads, when the last look is long enough ago.
    pub(crate) fn look(&mut self) {
        if self.next.as_ref().is_some_and(|next| !next.is_over()) {
            return;
        }
        self.next = Some(Deadline::after(LOOK_INTERVAL));
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return };
        for task in tasks.filter_map(Result::ok) {
            let id = task.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            let text = fs::read_to_string(task.path().join("stat")).ok();
            if let (Some(id), Some(ticks)) = (id, text.as_deref().and_then(busy_ticks)) {
                self.see(id, ticks, uptime());
            }
        }
    }

    fn see(&mut self, thread: u32, ticks: u64, at: Duration) {
        let now = (ticks, at);
        let seen = self.threads.entry(thread).or_insert(Seen { first: now, last: now });
        seen.last = now;
    }

    /// The share of its time that the busiest thread was on a processor, percent; `None` when no
    /// thread was seen for long enough.
    pub(crate) fn busiest_percent(&self) -> Option<f64> {
        let share = |seen: &Seen| {
            let time = seen.last.1.saturating_sub(seen.first.1);
            let busy = TICK.as_secs_f64() * (seen.last.0 - seen.first.0) as f64;
            (time >= SEEN_LEAST).then(|| 100.0 * busy / time.as_secs_f64())
        };
        self.threads.values().filter_map(share).max_by(f64::total_cmp)
    }
}

/// User and system ticks of `PID (NAME) STATE ...`; the name may hold anything.
fn busy_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
    user.checked_add(system)
}

/// Since the machine was started.
fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split_whitespace().next().and_then(|first| first.parse::<f64>().ok());
    Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_thread_is_the_one_with_the_greatest_share_of_its_own_time() {
        let mut load = ThreadLoad::of(1);
        let at = Duration::from_secs;
        for (thread, ticks) in [(1, (0, 10)), (2, (100, 580))] {
            load.see(thread, ticks.0, at(10));
            load.see(thread, ticks.1, at(15));
        }
        // A thread that was seen for half a second says nothing.
        load.see(3, 0, at(14));
        load.see(3, 50, at(14) + Duration::from_millis(500));
        assert_eq!(load.busiest_percent().map(f64::round), Some(96.0));
        assert_eq!(ThreadLoad::of(1).busiest_percent(), None);
    }

    #[test]
    fn ticks_follow_a_name_with_blanks_and_parentheses() {
        let stat = "12 (fio (x) y) R 1 2 3 4 5 6 7 8 9 10 70 30 0 0";
        assert_eq!(busy_ticks(stat), Some(100));
        assert_eq!(busy_ticks("12 (fio) R 1"), None);
        let mut load = ThreadLoad::of(std::process::id());
        load.look();
        assert!(!load.threads.is_empty());
    }
}
