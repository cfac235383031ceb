//! Time lines from fio's logs: `time_ms, value, direction, ...`, one row a window, job and direction.
//!
//! fio writes a log for each job, for only so is known which requests a mean latency is of. Afterwards
//! the logs of all jobs are one file, job after job, as fio itself joins them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use voltier_results::result::Sample;

use crate::LabError;

/// The sums of a window of the three logs.
#[derive(Clone, Copy, Default)]
struct Window {
    iops: f64,
    bytes_per_second: f64,
    /// Mean latencies, each weighed by the requests per second of its job and direction, and the
    /// weights.
    waited: f64,
    weight: f64,
}

/// A window of one job and direction: the number of the window, of the job, and fio's direction.
type DirectionWindow = (u64, usize, u8);

/// The samples of the logs of requests, bandwidth and latency, all jobs and directions together. A
/// missing log, or a line that is no row, is left out.
///
/// # Errors
/// When the logs of the jobs cannot be joined.
pub(super) fn read(prefix: &Path, window: Duration) -> Result<Vec<Sample>, LabError> {
    let window_ms = (window.as_millis() as u64).max(1);
    let rows_of = |log: &str| Ok::<_, LabError>(rows(&joined(prefix, log)?, window_ms));
    let (iops, bandwidth, latency) = (rows_of("iops")?, rows_of("bw")?, rows_of("lat")?);
    let mut windows = BTreeMap::<u64, Window>::new();
    for ((at, ..), (iops, _)) in &iops {
        windows.entry(*at).or_default().iops += iops;
    }
    for ((at, ..), (kib, _)) in &bandwidth {
        windows.entry(*at).or_default().bytes_per_second += kib * 1024.0;
    }
    for (key, (sum, count)) in &latency {
        let weight = iops.get(key).map_or(0.0, |(iops, _)| *iops);
        let window = windows.entry(key.0).or_default();
        window.waited += sum / count * weight;
        window.weight += weight;
    }
    let sample = |(at, window): (u64, Window)| Sample {
        at_ms: at * window_ms,
        iops: window.iops,
        bytes_per_second: window.bytes_per_second,
        latency_mean_ns: if window.weight > 0.0 { window.waited / window.weight } else { 0.0 },
    };
    Ok(windows.into_iter().map(sample).collect())
}

/// The logs of all jobs, in the order of the jobs; on the disk they are one file from now on.
fn joined(prefix: &Path, log: &str) -> Result<Vec<String>, LabError> {
    let name = |job: &str| format!("{}_{log}{job}.log", prefix.display());
    let mut jobs = Vec::new();
    while let Ok(text) = std::fs::read_to_string(name(&format!(".{}", jobs.len() + 1))) {
        jobs.push(text);
    }
    let whole = name("");
    std::fs::write(&whole, jobs.concat()).map_err(LabError::file(Path::new(&whole)))?;
    for job in 1..=jobs.len() {
        let part = name(&format!(".{job}"));
        std::fs::remove_file(&part).map_err(LabError::file(Path::new(&part)))?;
    }
    Ok(jobs)
}

/// The sum and the number of the values of each window, job and direction.
fn rows(jobs: &[String], window_ms: u64) -> BTreeMap<DirectionWindow, (f64, f64)> {
    let mut rows = BTreeMap::<DirectionWindow, (f64, f64)>::new();
    for (job, text) in jobs.iter().enumerate() {
        for line in text.lines() {
            let mut fields = line.split(',').map(str::trim);
            let at = fields.next().and_then(|field| field.parse::<u64>().ok());
            let value = fields.next().and_then(|field| field.parse::<f64>().ok());
            let direction = fields.next().and_then(|field| field.parse::<u8>().ok());
            if let (Some(at), Some(value), Some(direction)) = (at, value, direction) {
                // Rows come a little late: the nearest end of a window is meant.
                let window = ((at + window_ms / 2) / window_ms).max(1);
                let row = rows.entry((window, job, direction)).or_default();
                *row = (row.0 + value, row.1 + 1.0);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, log: &str, text: &str) {
        std::fs::write(folder.join(format!("point_{log}.log")), text).unwrap();
    }

    #[test]
    fn jobs_and_directions_of_a_window_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("point");
        let text = "100, 200, 0, 0, 0\n103, 220, 1, 0, 0\n200, 210, 0, 0, 0\nbroken\n";
        write(folder.path(), "iops.1", text);
        write(folder.path(), "bw.1", "100, 800, 0, 0, 0\n100, 880, 1, 0, 0\n");
        write(folder.path(), "lat.1", "100, 3000, 0, 0, 0\n");
        let samples = read(&prefix, Duration::from_millis(100)).unwrap();
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].at_ms, samples[0].iops), (100, 420.0));
        assert_eq!(samples[0].bytes_per_second, 1680.0 * 1024.0);
        assert_eq!(samples[0].latency_mean_ns, 3000.0);
        assert_eq!((samples[1].at_ms, samples[1].iops), (200, 210.0));
        assert_eq!(std::fs::read_to_string(folder.path().join("point_iops.log")).unwrap(), text);
        assert!(!folder.path().join("point_iops.1.log").exists());
    }

    #[test]
    fn a_latency_counts_by_the_requests_of_its_job_and_direction() {
        let folder = tempfile::tempdir().unwrap();
        // 900 fast reads and 100 slow writes of one job, 1000 fast reads of another.
        write(folder.path(), "iops.1", "100, 900, 0, 0, 0\n100, 100, 1, 0, 0\n");
        write(folder.path(), "lat.1", "100, 1000, 0, 0, 0\n101, 21000, 1, 0, 0\n");
        write(folder.path(), "iops.2", "100, 1000, 0, 0, 0\n");
        write(folder.path(), "lat.2", "100, 1000, 0, 0, 0\n");
        let samples = read(&folder.path().join("point"), Duration::from_millis(100)).unwrap();
        assert_eq!(samples.len(), 1);
        assert!((samples[0].latency_mean_ns - 2000.0).abs() < 1e-9, "{samples:?}");
    }
}
