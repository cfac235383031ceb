//! fio, the client that everything is measured by: started, limited, and read.
//!
//! Only figures that fio itself measured are used. Latencies are completion latencies as the client
//! saw them, in nanoseconds; throughput is fio's own mean over the run.

use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::LabError;
use crate::process::{self, Stop};
use crate::size::format_bytes;

/// The oldest fio whose JSON has nanoseconds and whose NBD engine can be relied on.
const OLDEST: (u32, u32) = (3, 13);

/// What a run may take beyond its own time: connecting, laying out memory, ending.
const SLACK: Duration = Duration::from_secs(60);

/// The limit of a job that ends when it has moved its bytes, not after a time.
const ONCE_LIMIT: Duration = Duration::from_secs(3600);

/// What fio reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An NBD export, by URI, through fio's `nbd` engine (libnbd).
    Nbd(String),
    /// A file or block device, by path, with the named engine and direct I/O.
    File {
        /// Path of the file or device.
        path: String,
        /// fio's name of the engine: `io_uring`, `libaio`, `psync`.
        engine: &'static str,
    },
}

/// fio's `rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random, this share of it reads (percent).
    RandRw(u8),
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::RandRead => "randread",
            Pattern::RandWrite => "randwrite",
            Pattern::RandRw(_) => "randrw",
        }
    }
}

/// When a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this many seconds (`time_based`).
    Seconds(u32),
    /// When every job has moved `size_bytes` once.
    Once,
}

/// One fio job: what is on its command line, and nothing that is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name in fio's output and in messages.
    pub name: &'static str,
    /// Access pattern.
    pub pattern: Pattern,
    /// Bytes per request.
    pub block_bytes: u32,
    /// Requests in flight per job.
    pub iodepth: u32,
    /// Parallel jobs, threads of one process; their figures are reported together.
    pub numjobs: u32,
    /// The part of the target that is used, from its start.
    pub size_bytes: u64,
    /// When it ends.
    pub until: Until,
}

impl Job {
    /// The arguments, as one would type them.
    pub fn arguments(&self, target: &Target) -> Vec<String> {
        let mut arguments = vec![format!("--name={}", self.name)];
        match target {
            Target::Nbd(uri) => {
                arguments.extend(["--ioengine=nbd".to_owned(), format!("--uri={uri}")]);
            }
            Target::File { path, engine } => {
                // fio splits file names at colons.
                let path = path.replace(':', "\\:");
                arguments.extend([format!("--ioengine={engine}"), format!("--filename={path}")]);
            }
        }
        arguments.extend(["--direct=1", "--thread=1", "--group_reporting"].map(str::to_owned));
        arguments.extend(["--norandommap=1", "--randrepeat=0"].map(str::to_owned));
        let block = format_bytes(u64::from(self.block_bytes)).to_lowercase();
        arguments.push(format!("--rw={}", self.pattern.name()));
        if let Pattern::RandRw(percent) = self.pattern {
            arguments.push(format!("--rwmixread={percent}"));
        }
        arguments.push(format!("--bs={block}"));
        if !matches!(self.pattern, Pattern::Read | Pattern::Write) {
            arguments.push(format!("--ba={block}"));
        }
        arguments.push(format!("--size={}", self.size_bytes));
        arguments.push(format!("--numjobs={}", self.numjobs));
        arguments.push(format!("--iodepth={}", self.iodepth));
        if let Until::Seconds(seconds) = self.until {
            arguments.push("--time_based".to_owned());
            arguments.push(format!("--runtime={seconds}"));
        }
        arguments
    }

    /// The whole command as one line, for reports.
    pub fn command_line(&self, target: &Target) -> String {
        format!("fio {}", self.arguments(target).join(" "))
    }
}

/// One direction of a job's result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Direction {
    /// Requests completed.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Mean completion latency.
    pub latency_mean_ns: f64,
    /// Median completion latency.
    pub latency_p50_ns: u64,
    /// 99th percentile of the completion latency.
    pub latency_p99_ns: u64,
    /// Longest completion latency.
    pub latency_max_ns: u64,
}

/// What a job measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The reads.
    pub read: Direction,
    /// The writes.
    pub write: Direction,
}

impl Outcome {
    /// Requests per second, both directions.
    pub fn iops(&self) -> f64 {
        self.read.iops + self.write.iops
    }

    /// Decimal megabytes per second, both directions, as the published tables count them.
    pub fn megabytes_per_second(&self) -> f64 {
        (self.read.bytes_per_second + self.write.bytes_per_second) / 1e6
    }
}

/// A fio that is installed, new enough, and has the NBD engine.
#[derive(Clone, Debug)]
pub struct Fio {
    version: String,
}

impl Fio {
    /// Looks for fio on PATH.
    ///
    /// # Errors
    /// `Missing` or `FioUnfit`, each with what to do.
    pub fn find(stop: &Stop) -> Result<Fio, LabError> {
        let ask =
            |argument: &str| process::run(Command::new("fio").arg(argument), "fio", SLACK, stop);
        let version = match ask("--version") {
            Ok(finished) => finished.stdout.trim().to_owned(),
            Err(LabError::File { .. }) => {
                return Err(LabError::Missing { program: "fio", package: "fio" });
            }
            Err(error) => return Err(error),
        };
        check_version(&version)?;
        if !ask("--enghelp")?.stdout.lines().any(|line| line.trim() == "nbd") {
            return Err(LabError::FioUnfit {
                found: version,
                why: "it was built without the nbd engine (libnbd): install the one of the \
                      distribution with `apt-get install fio`"
                    .to_owned(),
            });
        }
        Ok(Fio { version })
    }

    /// What it calls itself: "fio-3.33".
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs one job and reads its result.
    ///
    /// # Errors
    /// `Failed` with fio's own words when it or any request failed; `Timeout`, `Interrupted`.
    pub fn run(&self, job: &Job, target: &Target, stop: &Stop) -> Result<Outcome, LabError> {
        let what = format!("fio job {}", job.name);
        let limit = match job.until {
            Until::Seconds(seconds) => Duration::from_secs(u64::from(seconds)) + SLACK,
            Until::Once => ONCE_LIMIT,
        };
        let mut command = Command::new("fio");
        command.arg("--output-format=json").args(job.arguments(target));
        // fio writes verify states into the current folder.
        command.current_dir(std::env::temp_dir());
        let finished = process::run(&mut command, &what, limit, stop)?;
        // A terminal's Ctrl-C reaches fio as well, which then ends early with a result.
        stop.check()?;
        if !finished.status.success() {
            return Err(LabError::Failed { what, detail: finished.last_words() });
        }
        parse(&finished.stdout, &what)
    }
}

fn check_version(version: &str) -> Result<(), LabError> {
    let numbers = version.strip_prefix("fio-").and_then(|rest| rest.split_once('.'));
    let leading = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse::<u32>().ok()
    };
    let pair = numbers.and_then(|(major, minor)| Some((leading(major)?, leading(minor)?)));
    if pair.is_some_and(|pair| pair >= OLDEST) {
        return Ok(());
    }
    Err(LabError::FioUnfit {
        found: if version.is_empty() { "fio".to_owned() } else { version.to_owned() },
        why: format!(
            "version {}.{} or newer is needed: run `apt-get install fio`",
            OLDEST.0, OLDEST.1
        ),
    })
}

#[derive(Deserialize)]
struct RawOutput {
    jobs: Vec<RawJob>,
}

#[derive(Deserialize)]
struct RawJob {
    error: i32,
    read: RawDirection,
    write: RawDirection,
}

#[derive(Deserialize)]
struct RawDirection {
    io_bytes: u64,
    bw_bytes: f64,
    iops: f64,
    total_ios: u64,
    clat_ns: RawLatency,
}

#[derive(Deserialize)]
struct RawLatency {
    max: u64,
    mean: f64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, u64>,
}

impl RawDirection {
    fn read(self) -> Direction {
        let percentile = |key: &str| self.clat_ns.percentile.get(key).copied().unwrap_or(0);
        Direction {
            requests: self.total_ios,
            bytes: self.io_bytes,
            iops: self.iops,
            bytes_per_second: self.bw_bytes,
            latency_mean_ns: self.clat_ns.mean,
            latency_p50_ns: percentile("50.000000"),
            latency_p99_ns: percentile("99.000000"),
            latency_max_ns: self.clat_ns.max,
        }
    }
}

/// Reads fio's JSON. The NBD engine prints lines of its own before it, which are skipped.
fn parse(output: &str, what: &str) -> Result<Outcome, LabError> {
    let unreadable = |detail: String| LabError::Answer { what: what.to_owned(), detail };
    let start = output.find('{').ok_or_else(|| unreadable("no JSON in its output".to_owned()))?;
    let raw: RawOutput =
        serde_json::from_str(&output[start..]).map_err(|error| unreadable(error.to_string()))?;
    let [job] = <[RawJob; 1]>::try_from(raw.jobs)
        .map_err(|jobs| unreadable(format!("{} jobs where one was run", jobs.len())))?;
    if job.error != 0 {
        return Err(LabError::Failed {
            what: what.to_owned(),
            detail: format!("a request failed with errno {}", job.error),
        });
    }
    Ok(Outcome { read: job.read.read(), write: job.write.read() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = include_str!("../tests/data/fio-3.33-randrw.json");
    const FILL: &str = include_str!("../tests/data/fio-3.33-write.json");

    fn job() -> Job {
        Job {
            name: "rand_rw",
            pattern: Pattern::RandRw(75),
            block_bytes: 4096,
            iodepth: 64,
            numjobs: 4,
            size_bytes: 1 << 30,
            until: Until::Seconds(8),
        }
    }

    #[test]
    fn a_mixed_run_is_read_with_both_directions() {
        let outcome = parse(MIXED, "fio").unwrap();
        assert_eq!(outcome.read.requests, 256_328);
        assert_eq!(outcome.read.bytes, 1_049_919_488);
        assert!((outcome.read.iops - 127_972.041_937).abs() < 1e-6);
        assert!((outcome.iops() - (127_972.041_937 + 42_671.992_012)).abs() < 1e-6);
        assert_eq!(outcome.read.latency_p50_ns, 280_576);
        assert_eq!(outcome.read.latency_p99_ns, 14_876_672);
        assert!(outcome.megabytes_per_second() > 524.0);
    }

    #[test]
    fn a_direction_that_was_not_used_is_zero() {
        let outcome = parse(FILL, "fio").unwrap();
        assert_eq!(outcome.read, Direction::default());
        assert_eq!(outcome.write.bytes, 256 << 20);
    }

    #[test]
    fn a_failed_request_is_an_error() {
        let failed = FILL.replacen("\"error\": 0", "\"error\": 5", 1);
        let error = parse(&failed, "fio job fill").unwrap_err().to_string();
        assert_eq!(error, "fio job fill failed: a request failed with errno 5");
    }

    #[test]
    fn what_is_not_a_result_is_an_error_not_a_zero() {
        for text in ["", "fio: bad option", "{}", "{\"jobs\": []}"] {
            assert!(matches!(parse(text, "fio"), Err(LabError::Answer { .. })), "{text}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for good in ["fio-3.13", "fio-3.33", "fio-3.40-dirty", "fio-4.0"] {
            check_version(good).unwrap();
        }
        for bad in ["fio-2.0.13", "fio-3.9", "", "fio"] {
            assert!(matches!(check_version(bad), Err(LabError::FioUnfit { .. })), "{bad}");
        }
    }

    #[test]
    fn the_command_line_has_the_parameters_of_the_job_and_no_others() {
        let target = Target::Nbd("nbd+unix:///v?socket=/run/v.sock".to_owned());
        assert_eq!(
            job().command_line(&target),
            "fio --name=rand_rw --ioengine=nbd --uri=nbd+unix:///v?socket=/run/v.sock --direct=1 \
             --thread=1 --group_reporting --norandommap=1 --randrepeat=0 --rw=randrw \
             --rwmixread=75 --bs=4k --ba=4k --size=1073741824 --numjobs=4 --iodepth=64 \
             --time_based --runtime=8"
        );
        let once = Job { pattern: Pattern::Write, until: Until::Once, ..job() };
        let line = once.command_line(&Target::File { path: "a:b".into(), engine: "psync" });
        assert!(line.contains("--filename=a\\:b") && !line.contains("runtime"), "{line}");
    }
}
