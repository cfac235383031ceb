//! The costs of a point beside its time: processors of the whole machine, and the cache's counters.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use voltier_results::result::{CacheWindow, CpuCost, Point};

use super::target::Target;
use crate::thread_load::TICK;
use voltier_control::VolumeStatus;

/// The known figures of the load generator of a point.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// Requests that it made.
    pub requests: u64,
    /// The generator's processor time, microseconds.
    pub process_us: f64,
    /// As [`CpuCost::busiest_thread_percent`].
    pub busiest_thread_percent: Option<f64>,
}

impl Used {
    /// The load generator is this program, or one that does not tell its processor time.
    pub(super) fn requests(requests: u64) -> Used {
        Used { requests, ..Used::default() }
    }
}

/// Readings before a point.
#[derive(Debug)]
pub(super) struct Meter {
    ticks: Ticks,
    volume: Option<Box<VolumeStatus>>,
}

impl Meter {
    /// Reads what is there now.
    pub(super) fn begin(target: &Target) -> Meter {
        Meter { volume: target.volume_status().map(Box::new), ticks: Ticks::now() }
    }

    /// Adds to a point the processor time since, and the cache's counters.
    pub(super) fn fill_in(&self, target: &Target, used: Used, point: &mut Point) {
        let now = Ticks::now();
        let since = |of: fn(&Ticks) -> u64| of(&now).saturating_sub(of(&self.ticks)) as f64;
        let (busy, stolen, all) = (since(|t| t.busy), since(|t| t.stolen), since(|t| t.all));
        if used.requests > 0 {
            let requests = used.requests as f64;
            point.cpu = Some(CpuCost {
                process_us_per_request: used.process_us / requests,
                system_us_per_request: busy * TICK.as_micros() as f64 / requests,
                busiest_thread_percent: used.busiest_thread_percent,
                steal_percent: (all > 0.0).then(|| 100.0 * stolen / all),
            });
        }
        point.cache = self.cache(target);
    }

    /// The cache's counters since.
    fn cache(&self, target: &Target) -> Option<CacheWindow> {
        let (before, now) = (self.volume.as_ref()?, target.volume_status()?);
        if now.ssd.path.is_empty() {
            return None;
        }
        let since = |of: &dyn Fn(&VolumeStatus) -> u64| of(&now).saturating_sub(of(before));
        Some(CacheWindow {
            read_requests: since(&|status| status.reads.requests),
            read_hits: since(&|status| status.reads.hits),
            read_bypassed: since(&|status| status.reads.bypassed),
            write_requests: since(&|status| status.writes.requests),
            write_hits: since(&|status| status.writes.hits),
            write_bypassed: since(&|status| status.writes.bypassed),
            ssd_bytes_written: since(&|status| status.device_bytes.ssd_written),
            origin_bytes_read: since(&|status| status.device_bytes.origin_read),
            origin_bytes_written: since(&|status| status.device_bytes.origin_written),
            dirty_lines: now.lines.dirty,
        })
    }
}

/// Ticks of all processors since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    /// Work was done.
    busy: u64,
    /// The host of a virtual machine did something else: nobody's work.
    stolen: u64,
    /// All of them, idle ones too.
    all: u64,
}

impl Ticks {
    fn now() -> Ticks {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        Ticks::of(text.lines().next().unwrap_or_default())
    }

    /// Of the line `cpu user nice system idle iowait irq softirq steal ...`.
    fn of(line: &str) -> Ticks {
        let mut ticks = Ticks::default();
        for (index, field) in line.split_whitespace().skip(1).take(8).enumerate() {
            let count = field.parse::<u64>().unwrap_or(0);
            ticks.all += count;
            match index {
                3 | 4 => {}
                7 => ticks.stolen += count,
                _ => ticks.busy += count,
            }
        }
        ticks
    }
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "runs are dated by the machine's clock")]
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Nanoseconds that `work` took.
#[expect(clippy::disallowed_methods, reason = "passes over files are timed by the machine's clock")]
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let begin = std::time::Instant::now();
    let result = work();
    (result, begin.elapsed().as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_is_no_work() {
        let ticks = Ticks::of("cpu  1 2 4 1000 2000 8 16 32 64 128");
        assert_eq!(ticks, Ticks { busy: 31, stolen: 32, all: 3063 });
        assert_eq!(Ticks::of(""), Ticks::default());
    }
}
