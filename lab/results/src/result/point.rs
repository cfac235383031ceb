//! One measurement of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Flow, Role, Test};

/// The worth of a point. A report may show points that are not `Ok`, and says so on its first page. A
/// figure that does not exist is never shown as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "why", rename_all = "snake_case")]
pub enum Status {
    /// Measured as planned.
    #[default]
    Ok,
    /// Measured, but the steady state was not reached.
    NotSteady,
    /// Measured, and not to be used.
    Invalid(String),
    /// An open loop fell behind its schedule.
    Overloaded(String),
    /// Cut short: the figures cover a part of the window.
    Partial(String),
    /// Not measured, on purpose.
    Skipped(String),
    /// Not measured: it failed.
    Failed(String),
}

/// Order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// One after the other.
    Sequential,
    /// Anywhere.
    Random,
}

/// Where a point stands in its plan. Only what the plan varies, or a chart needs, is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Axes {
    /// The target, by its name in the manifest.
    pub target: String,
    /// Step of the plan by name, for people: `wipc`, `iops`, a job's name.
    pub phase: String,
    /// Round, from 1 (steady state).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// Pass over a hot set, or repetition, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass: Option<u32>,
    /// Sequential or random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// Share of reads, percent of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_percent: Option<u8>,
    /// Bytes of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u64>,
    /// Requests in flight of each job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Jobs (threads, processes) of each client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    /// Clients at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Small requests in flight (Orion).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub small: Option<u32>,
    /// Large requests, or streams, in flight (Orion).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large: Option<u32>,
    /// Requests in flight of each large stream (Orion); without it each large one is a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_depth: Option<u32>,
    /// Idle seconds between bursts (host idle recovery).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u32>,
    /// Bytes of the cache (miss-ratio curves).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
}

/// The cost in processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuCost {
    /// Of the load generator, microseconds a request (fio's `usr_cpu` and `sys_cpu`).
    pub process_us_per_request: f64,
    /// Of the whole machine, microseconds a request (`/proc/stat`, without stolen time).
    pub system_us_per_request: f64,
    /// The share of its time that the busiest thread of the load generator was on a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest_thread_percent: Option<f64>,
    /// The share of all processors' time that the host of a virtual machine took away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_percent: Option<f64>,
}

/// The cache's own counters over the window of the point: differences, never totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheWindow {
    /// Read requests.
    pub read_requests: u64,
    /// Read requests served wholly by the SSD.
    pub read_hits: u64,
    /// Reads that went around the cache.
    pub read_bypassed: u64,
    /// Write requests.
    pub write_requests: u64,
    /// Write requests that met a cached line.
    pub write_hits: u64,
    /// Writes that went around the cache.
    pub write_bypassed: u64,
    /// Bytes written to the SSD.
    pub ssd_bytes_written: u64,
    /// Bytes read from the origin.
    pub origin_bytes_read: u64,
    /// Bytes written to the origin.
    pub origin_bytes_written: u64,
    /// Dirty lines at the end.
    pub dirty_lines: u64,
}

/// One client of several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientResult {
    /// Host and port.
    pub client: String,
    /// The begin of the client's window, milliseconds since 1970 by the controller's clock.
    pub started_unix_ms: u64,
    /// Reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Flow>,
    /// Writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Flow>,
}

/// One job of several that ran at the same time and are told apart: Orion's small and large requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The job: `small`, `large`.
    pub name: String,
    /// Reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Flow>,
    /// Writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Flow>,
}

/// The requests of a replay, their latencies counted from the time at which each was due.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduled {
    /// Reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Flow>,
    /// Writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Flow>,
}

impl Scheduled {
    /// The directions that were measured.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.read.iter().chain(self.write.iter())
    }
}

/// One sample of a time line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// End of the sample, from the start of the point.
    pub at_ms: u64,
    /// Requests per second, both directions.
    pub iops: f64,
    /// Bytes per second, both directions.
    pub bytes_per_second: f64,
    /// Mean latency; zero when nothing completed.
    pub latency_mean_ns: f64,
}

impl Sample {
    /// The sample of a window: requests, their bytes together, and the sum of their latencies.
    pub fn of(at_ms: u64, window_s: f64, (requests, bytes, took_ns): (u64, u64, f64)) -> Sample {
        Sample {
            at_ms,
            iops: requests as f64 / window_s,
            bytes_per_second: bytes as f64 / window_s,
            latency_mean_ns: took_ns / requests.max(1) as f64,
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Place in the plan as text, unique in a run: `iops/round=3/bs=4096/read=65`.
    pub id: String,
    /// Place in the plan.
    pub axes: Axes,
    /// The role of the point: what it is for.
    #[serde(default, skip_serializing_if = "Role::is_measured")]
    pub role: Role,
    /// The test of the standard that the point belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<Test>,
    /// Name of the [`super::Rounds`] that the point is of, where it is measured in rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<String>,
    /// The worth of the point.
    pub status: Status,
    /// The exact command, as it was run. Empty in virtual time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The begin of the measurement, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Reads, when there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Flow>,
    /// Writes, when there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Flow>,
    /// The same requests from the time at which each was due, of a replay that keeps times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Box<Scheduled>>,
    /// Processor time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuCost>,
    /// The cache's counters, where the target is a cached volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheWindow>,
    /// Each client, where there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientResult>,
    /// Each job, where several ran together and are told apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// Time line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Sample>,
    /// Figures of an application by name with unit: `tps`, `files_per_second`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}

impl Point {
    /// Requests per second of both directions; `None` when nothing was measured.
    pub fn iops(&self) -> Option<f64> {
        self.sum(|flow| flow.iops)
    }

    /// Bytes per second of both directions; `None` when nothing was measured.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.sum(|flow| flow.bytes_per_second)
    }

    /// Mean latency of both directions, weighted by requests (by their rate, or equally, where a
    /// source has no counts); `None` when no direction has one.
    pub fn latency_mean_ns(&self) -> Option<f64> {
        let known: Vec<&Flow> = self.flows().filter(|flow| flow.latency.mean_ns > 0.0).collect();
        let weights: [fn(&Flow) -> f64; 3] =
            [|flow| flow.requests as f64, |flow| flow.iops, |_| 1.0];
        weights.iter().find_map(|weight| {
            let all: f64 = known.iter().map(|flow| weight(flow)).sum();
            let sum: f64 = known.iter().map(|flow| flow.latency.mean_ns * weight(flow)).sum();
            (all > 0.0).then(|| sum / all)
        })
    }

    /// The directions that were measured.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.read.iter().chain(self.write.iter())
    }

    fn sum(&self, of: impl Fn(&Flow) -> f64) -> Option<f64> {
        // A source may have one figure and not the other: what it lacks is not zero.
        let known = self.flows().map(of).filter(|value| *value > 0.0);
        known.reduce(|sum, value| sum + value)
    }
}
