//! Time lines from fio's logs: `time_ms, value, direction, ...`, one row a window, job and direction.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use voltier_results::result::Sample;

/// The sums of a window of the three logs.
#[derive(Clone, Copy, Default)]
struct Window {
    iops: f64,
    bytes_per_second: f64,
    /// Sum of mean latency times rows, and rows.
    latency: (f64, f64),
}

/// The samples of `PREFIX_iops.log`, `PREFIX_bw.log` and `PREFIX_lat.log`, all jobs and directions
/// together. A missing file, or a line that is no row, is left out.
pub(super) fn read(prefix: &Path, window: Duration) -> Vec<Sample> {
    let mut windows = BTreeMap::<u64, Window>::new();
    let window_ms = (window.as_millis() as u64).max(1);
    rows(prefix, "iops", window_ms, &mut |at, value| {
        windows.entry(at).or_default().iops += value;
    });
    rows(prefix, "bw", window_ms, &mut |at, value| {
        windows.entry(at).or_default().bytes_per_second += value * 1024.0;
    });
    rows(prefix, "lat", window_ms, &mut |at, value| {
        let (sum, count) = &mut windows.entry(at).or_default().latency;
        (*sum, *count) = (*sum + value, *count + 1.0);
    });
    let sample = |(at, window): (u64, Window)| Sample {
        at_ms: at * window_ms,
        iops: window.iops,
        bytes_per_second: window.bytes_per_second,
        latency_mean_ns: match window.latency {
            (sum, count) if count > 0.0 => sum / count,
            _ => 0.0,
        },
    };
    windows.into_iter().map(sample).collect()
}

/// Calls `take` with window number and value of each row of a log.
fn rows(prefix: &Path, log: &str, window_ms: u64, take: &mut dyn FnMut(u64, f64)) {
    let path = format!("{}_{log}.log", prefix.display());
    let Ok(text) = std::fs::read_to_string(path) else { return };
    for line in text.lines() {
        let mut fields = line.split(',').map(str::trim);
        let at = fields.next().and_then(|field| field.parse::<u64>().ok());
        let value = fields.next().and_then(|field| field.parse::<f64>().ok());
        if let (Some(at), Some(value)) = (at, value) {
            // Rows come a little late: the nearest end of a window is meant.
            take(((at + window_ms / 2) / window_ms).max(1), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_directions_of_a_window_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("point");
        let write = |log: &str, text: &str| {
            std::fs::write(folder.path().join(format!("point_{log}.log")), text).unwrap();
        };
        write("iops", "100, 200, 0, 0, 0\n103, 220, 1, 0, 0\n200, 210, 0, 0, 0\nbroken\n");
        write("bw", "100, 800, 0, 0, 0\n100, 880, 1, 0, 0\n");
        write("lat", "100, 3000, 0, 0, 0\n107, 5000, 0, 0, 0\n");
        let samples = read(&prefix, Duration::from_millis(100));
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].at_ms, samples[0].iops), (100, 420.0));
        assert_eq!(samples[0].bytes_per_second, 1680.0 * 1024.0);
        assert_eq!(samples[0].latency_mean_ns, 4000.0);
        assert_eq!((samples[1].at_ms, samples[1].iops), (200, 210.0));
        assert!(read(Path::new("none"), Duration::from_secs(1)).is_empty());
    }
}
