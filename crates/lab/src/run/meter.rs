//! The costs of a point beside its time: processors of the whole machine, and the cache's counters.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use voltier_results::result::{CacheWindow, CpuCost};

use super::target::Target;
use voltier_control::VolumeStatus;

/// A tick of `/proc/stat`: the kernel's USER_HZ is 100 everywhere.
const TICK_US: f64 = 10_000.0;

/// Readings before a point.
#[derive(Debug)]
pub(super) struct Meter {
    busy_us: f64,
    volume: Option<Box<VolumeStatus>>,
}

impl Meter {
    /// Reads what is there now.
    pub(super) fn begin(target: &Target) -> Meter {
        Meter { volume: target.volume_status().map(Box::new), busy_us: busy_us() }
    }

    /// Processor time since, for so many requests; `process_us` is the load generator's own.
    pub(super) fn cpu(&self, process_us: f64, requests: u64) -> Option<CpuCost> {
        if requests == 0 {
            return None;
        }
        let requests = requests as f64;
        Some(CpuCost {
            process_us_per_request: process_us / requests,
            system_us_per_request: (busy_us() - self.busy_us).max(0.0) / requests,
        })
    }

    /// The cache's counters since.
    pub(super) fn cache(&self, target: &Target) -> Option<CacheWindow> {
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
            origin_bytes_read: since(&|status| status.device_bytes.hdd_read),
            origin_bytes_written: since(&|status| status.device_bytes.hdd_written),
            dirty_lines: now.lines.dirty,
        })
    }
}

/// Microseconds that all processors were busy since the machine was started.
fn busy_us() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(text.lines().next().unwrap_or_default()) as f64 * TICK_US
}

/// Of the line `cpu user nice system idle iowait irq softirq steal ...` all but idle and iowait.
fn busy_ticks(line: &str) -> u64 {
    let fields = line.split_whitespace().skip(1).take(8).enumerate();
    let busy = fields.filter(|(index, _)| !matches!(index, 3 | 4));
    busy.filter_map(|(_, field)| field.parse::<u64>().ok()).sum()
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
    fn idle_and_waiting_processors_are_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 64 128"), 63);
        assert_eq!(busy_ticks(""), 0);
    }
}
