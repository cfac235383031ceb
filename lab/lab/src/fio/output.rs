//! fio's JSON and JSON+ as flows: totals, latencies and bins as fio counted them.

use serde::Deserialize;
use serde_json::Value;
use voltier_results::import::fio_flow::{flow, number};
use voltier_results::result::Flow;

use crate::LabError;

/// The figures of one reporting group of jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The job's name; of a group that of its first job.
    pub job: String,
    /// Host and port in client mode.
    pub host: Option<String>,
    /// The begin of the job, milliseconds since 1970; `None` where fio does not say.
    pub started_unix_ms: Option<u64>,
    /// The reads, when there were any.
    pub read: Option<Flow>,
    /// The writes, when there were any.
    pub write: Option<Flow>,
    /// Processor time of fio's threads, user and system, microseconds.
    pub cpu_us: f64,
}

impl Outcome {
    /// Requests per second, both directions.
    pub fn iops(&self) -> f64 {
        self.flows().map(|flow| flow.iops).sum()
    }

    /// Decimal megabytes per second, both directions, as the published tables count them.
    pub fn megabytes_per_second(&self) -> f64 {
        self.flows().map(|flow| flow.bytes_per_second).sum::<f64>() / 1e6
    }

    /// The directions that were used.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.read.iter().chain(self.write.iter())
    }
}

#[derive(Deserialize)]
struct RawOutput {
    #[serde(default)]
    jobs: Vec<RawJob>,
    #[serde(default)]
    client_stats: Vec<RawJob>,
}

#[derive(Deserialize)]
struct RawJob {
    jobname: String,
    error: i32,
    hostname: Option<String>,
    port: Option<u16>,
    job_start: Option<u64>,
    #[serde(default)]
    job_runtime: f64,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
    read: Value,
    write: Value,
}

/// The figures of a direction that a fio just run must give: a missing one must not be read as zero.
const FIGURES: [&str; 5] = ["total_ios", "io_bytes", "runtime", "iops", "bw_bytes"];
const LATENCIES: [&str; 2] = ["clat_ns", "lat_ns"];
const MOMENTS: [&str; 4] = ["min", "max", "mean", "stddev"];

/// The first figure that a direction lacks.
fn lacks(part: &Value) -> Option<&'static str> {
    let no = |value: &Value, keys: &'static [&str]| {
        keys.iter().copied().find(|key| number(value, key).is_none())
    };
    let latency =
        |name: &&str| part.get(*name).is_none_or(|latency| no(latency, &MOMENTS).is_some());
    no(part, &FIGURES).or_else(|| LATENCIES.into_iter().find(latency))
}

/// Reads fio's JSON: one outcome for each group, or for each client. Lines that engines print
/// before it are skipped.
///
/// # Errors
/// `Answer` when it is no result, `Failed` when a request failed.
pub fn parse(output: &str, what: &str) -> Result<Vec<Outcome>, LabError> {
    let unreadable = |detail: String| LabError::Answer { what: what.to_owned(), detail };
    // A brace alone on its line: file names in warnings have braces too.
    let start = if output.starts_with('{') { Some(0) } else { output.find("\n{").map(|at| at + 1) };
    let start = start.ok_or_else(|| unreadable("no JSON in its output".to_owned()))?;
    let mut stream = serde_json::Deserializer::from_str(&output[start..]).into_iter::<RawOutput>();
    let raw = match stream.next() {
        Some(Ok(raw)) => raw,
        Some(Err(error)) => return Err(unreadable(error.to_string())),
        None => return Err(unreadable("no JSON in its output".to_owned())),
    };
    let jobs = if raw.jobs.is_empty() { raw.client_stats } else { raw.jobs };
    if jobs.is_empty() {
        return Err(unreadable("a result without a job".to_owned()));
    }
    if let Some(job) = jobs.iter().find(|job| job.error != 0) {
        return Err(LabError::Failed {
            what: what.to_owned(),
            detail: format!("a request failed with errno {}", job.error),
        });
    }
    if let Some(key) = jobs.iter().find_map(|job| lacks(&job.read).or(lacks(&job.write))) {
        return Err(unreadable(format!("a job without `{key}`")));
    }
    Ok(jobs.into_iter().map(outcome).collect())
}

fn outcome(job: RawJob) -> Outcome {
    let host = job.hostname.map(|host| match job.port {
        Some(port) => format!("{host}:{port}"),
        None => host,
    });
    Outcome {
        job: job.jobname,
        host,
        started_unix_ms: job.job_start,
        cpu_us: (job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime * 1000.0,
        read: flow(&job.read),
        write: flow(&job.write),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = include_str!("../../../results/tests/data/fio-3.33-randrw.json");
    const FILL: &str = include_str!("../../../results/tests/data/fio-3.33-write.json");

    fn one(text: &str) -> Outcome {
        let outcomes = parse(text, "fio").unwrap();
        <[Outcome; 1]>::try_from(outcomes).unwrap()[0].clone()
    }

    #[test]
    fn a_mixed_run_is_read_with_both_directions() {
        let outcome = one(MIXED);
        let read = outcome.read.clone().unwrap();
        assert_eq!((read.requests, read.bytes), (256_328, 1_049_919_488));
        assert!((read.iops - 127_972.041_937).abs() < 1e-6);
        assert!((outcome.iops() - (127_972.041_937 + 42_671.992_012)).abs() < 1e-6);
        assert_eq!(read.percentile_ns(50.0), Some(280_576));
        assert_eq!(read.percentile_ns(99.0), Some(14_876_672));
        assert!(read.histogram.is_none(), "plain JSON has no bins");
        assert!(outcome.megabytes_per_second() > 524.0);
    }

    #[test]
    fn a_direction_that_was_not_used_is_absent() {
        let outcome = one(FILL);
        assert_eq!(outcome.read, None);
        assert_eq!(outcome.write.unwrap().bytes, 256 << 20);
    }

    #[test]
    fn a_failed_request_is_an_error() {
        let failed = FILL.replacen("\"error\": 0", "\"error\": 5", 1);
        let error = parse(&failed, "fio job fill").unwrap_err().to_string();
        assert_eq!(error, "fio job fill failed: a request failed with errno 5");
    }

    #[test]
    fn what_is_not_a_result_is_an_error_not_a_zero() {
        for text in ["", "fio: bad option", "{}", "{\"jobs\": []}", "warning {\n"] {
            assert!(matches!(parse(text, "fio"), Err(LabError::Answer { .. })), "{text}");
        }
    }

    #[test]
    fn a_figure_that_is_missing_is_an_error_not_a_zero() {
        for key in ["iops", "lat_ns", "stddev"] {
            let text = FILL.replace(&format!("\"{key}\""), "\"other\"");
            let error = parse(&text, "fio").unwrap_err().to_string();
            assert!(error.contains("a job without `"), "{error}");
        }
    }

    #[test]
    fn warnings_before_the_result_are_skipped() {
        assert_eq!(one(&format!("fio: {{file}} is odd\n{FILL}")), one(FILL));
    }
}
