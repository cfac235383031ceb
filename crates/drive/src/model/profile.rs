//! Named drives, each calibrated on rows measured on the real one.
//!
//! A row is what fio measured on the bare drive with the operating system around it, so the models
//! carry the host's share too. The tests hold every row to 5 %.
//!
//! A note on units: the `MB/s` of the disk and of the two 2015 SSDs was printed by fio 2.0, whose
//! `KB/s` counts 1024 bytes. The published tables do not say whether they were converted; here one
//! MB is 10^6 bytes, which may be 2 to 5 % below what was measured.

use super::{Hdd, HddParams, Model, Ssd, SsdParams};
use voltier_block::{AfterDiscard, GIB, KIB, MIB, SECTOR_BYTES};

/// A drive that can be modelled.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name in `model:NAME[:SIZE]`.
    pub name: &'static str,
    /// One line for people.
    pub description: &'static str,
    /// Size of the real drive in bytes; used when no size is given.
    pub bytes: u64,
    /// Smallest unit of transfer in bytes.
    pub block_bytes: u32,
    /// The content that a discard leaves behind on this kind of drive.
    pub after_discard: AfterDiscard,
    /// How it behaves.
    pub timing: Timing,
    /// The measured rows it is calibrated on.
    pub rows: &'static [CalibrationRow],
}

/// The mechanism of a drive and its figures.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// A hard disk.
    Hdd(HddParams),
    /// A solid-state drive.
    Ssd(SsdParams),
}

/// A load of the calibration: direct I/O over the first `span_bytes`, queues always full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Jobs; sequential ones all begin at offset 0.
    pub jobs: usize,
    /// Outstanding requests per job.
    pub depth: usize,
    /// Bytes per request.
    pub block_bytes: u64,
    /// Bytes addressed.
    pub span_bytes: u64,
    /// Whether each job walks the span in order.
    pub sequential: bool,
    /// Reads among a hundred requests.
    pub read_percent: u64,
}

/// The rate of the real drive under a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationRow {
    /// The load.
    pub workload: Workload,
    /// Bytes per second measured.
    pub bytes_per_s: f64,
    /// Share by which the model may differ.
    pub tolerance: f64,
}

/// No profile has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no drive model is named '{name}': use one of {known}")]
pub struct UnknownProfile {
    pub(super) name: String,
    pub(super) known: String,
}

impl Profile {
    /// An idle drive of this profile with `bytes` bytes.
    pub fn model(&self, bytes: u64) -> Model {
        let sectors = bytes / SECTOR_BYTES;
        match &self.timing {
            Timing::Hdd(params) => Model::Hdd(Box::new(Hdd::new(params.clone(), sectors))),
            Timing::Ssd(params) => Model::Ssd(Box::new(Ssd::new(params.clone(), sectors))),
        }
    }

    /// Whether a power cut loses completed writes that were not flushed.
    pub fn volatile_cache(&self) -> bool {
        match &self.timing {
            Timing::Hdd(params) => params.cached_writes > 0,
            Timing::Ssd(params) => params.volatile_cache,
        }
    }
}

pub(super) const fn mb(per_s: f64) -> f64 {
    per_s * 1e6
}

pub(super) const fn iops_4k(iops: f64) -> f64 {
    iops * 4096.0
}

pub(super) const fn row(workload: Workload, bytes_per_s: f64) -> CalibrationRow {
    CalibrationRow { workload, bytes_per_s, tolerance: 0.05 }
}

/// The sequential jobs of the disk and the 2015 SSDs: 256 KiB, four jobs of depth 16 over 100 GiB.
const fn sequential(read_percent: u64) -> Workload {
    let (block_bytes, span_bytes) = (256 * KIB, 100 * GIB);
    Workload { jobs: 4, depth: 16, block_bytes, span_bytes, sequential: true, read_percent }
}

/// The random jobs of these drives: 4 KiB, four jobs of depth 64 over 100 GiB.
const fn random(read_percent: u64) -> Workload {
    let (block_bytes, span_bytes) = (4 * KIB, 100 * GIB);
    Workload { jobs: 4, depth: 64, block_bytes, span_bytes, sequential: false, read_percent }
}

pub(super) const HDD_7200: Profile = Profile {
    name: "hdd-7200",
    description: "Western Digital 7200 rpm 2 TB SATA disk: 107/113 MB/s, 238/233 random IOPS",
    bytes: 2_000_398_934_016,
    block_bytes: 512,
    after_discard: AfterDiscard::Unchanged,
    timing: Timing::Hdd(HddParams {
        capacity_bytes: 2_000_398_934_016,
        least_span_bytes: 100 * GIB,
        revolution_ns: 8_333_333,
        zones: 16,
        outer_bytes_per_s: 113_500_000,
        inner_bytes_per_s: 56_000_000,
        seek_track_ns: 800_000,
        seek_average_ns: 8_900_000,
        seek_full_ns: 17_000_000,
        write_settle_ns: 500_000,
        write_slower_permille: 56,
        command_ns: 60_000,
        link_bytes_per_s: 280_000_000,
        queue_depth: 32,
        reorder_reads: 3,
        reorder_writes: 6,
        starvation_ns: 2_000_000_000,
        cached_writes: 64,
        read_ahead_bytes: MIB,
        segments: 32,
        near_bytes: 16 * MIB,
    }),
    rows: &[
        row(sequential(0), mb(107.0)),
        row(sequential(100), mb(113.0)),
        row(random(0), iops_4k(238.0)),
        row(random(100), iops_4k(233.0)),
    ],
};

pub(super) const SSD_SATA: Profile = Profile {
    name: "ssd-sata",
    description: "Intel DC S3710 800 GB SATA SSD: 268/279 MB/s, 38092/49687 random IOPS",
    bytes: 800_166_076_416,
    block_bytes: 512,
    after_discard: AfterDiscard::Zeroes,
    timing: Timing::Ssd(SsdParams {
        channels: 8,
        dies_per_channel: 8,
        read_ns: 75_000,
        program_ns: 1_200_000,
        channel_bytes_per_s: 200_000_000,
        read_command_ns: 5_530,
        write_command_ns: 4_700,
        read_bytes_per_s: 280_600_000,
        write_bytes_per_s: 269_300_000,
        write_link_bytes_per_s: 269_300_000,
        stream_bytes_min: 0,
        interference: None,
        random_write_bytes_per_s: 156_025_000,
        random_write_shared_percent: 0,
        write_acknowledge_ns: 30_000,
        write_buffer_bytes: MIB,
        flush_ns: 100_000,
        volatile_cache: false,
    }),
    rows: &[
        row(sequential(0), mb(268.0)),
        row(sequential(100), mb(279.0)),
        row(random(0), iops_4k(38_092.0)),
        row(random(100), iops_4k(49_687.0)),
        row(random(75), iops_4k(49_870.0)),
    ],
};

pub(super) const SSD_PCIE: Profile = Profile {
    name: "ssd-pcie",
    description: "Comay BladeDrive E24 800 GB PCIe SSD: 1777/2012 MB/s, 148768/164449 random IOPS",
    bytes: 800_166_076_416,
    block_bytes: 512,
    after_discard: AfterDiscard::Zeroes,
    timing: Timing::Ssd(SsdParams {
        channels: 16,
        dies_per_channel: 8,
        read_ns: 75_000,
        program_ns: 1_200_000,
        channel_bytes_per_s: 200_000_000,
        read_command_ns: 4_110,
        write_command_ns: 4_490,
        read_bytes_per_s: 2_077_000_000,
        write_bytes_per_s: 1_833_000_000,
        write_link_bytes_per_s: 1_833_000_000,
        stream_bytes_min: 0,
        interference: None,
        random_write_bytes_per_s: 609_350_000,
        random_write_shared_percent: 100,
        write_acknowledge_ns: 25_000,
        write_buffer_bytes: 4 * MIB,
        flush_ns: 100_000,
        volatile_cache: true,
    }),
    rows: &[
        row(sequential(0), mb(1777.0)),
        row(sequential(100), mb(2012.0)),
        row(random(0), iops_4k(148_768.0)),
        row(random(100), iops_4k(164_449.0)),
        row(random(75), iops_4k(156_077.0)),
    ],
};
