//! Drives of 2008 to 2011. The ioDrive is from what an article says of its load curves; of an X25-E and a
//! Barracuda ES.2 only the data sheets are known.

use super::profile::{iops_4k, mb, row};
use super::{
    CalibrationRow, HddParams, Interference, InterferenceRow, Profile, SsdParams, Timing, Workload,
};
use voltier_block::{AfterDiscard, KIB, MIB};

/// Orion's small requests: random over the whole card, so many outstanding.
const fn small(block_bytes: u64, read_percent: u64, depth: usize) -> Workload {
    let span_bytes = 320_000_000_000;
    Workload { jobs: 1, depth, block_bytes, span_bytes, sequential: false, read_percent }
}

const fn iops_8k(iops: f64) -> f64 {
    iops * 8192.0
}

pub(super) const SSD_IODRIVE: Profile = Profile {
    name: "ssd-iodrive",
    description: "Fusion-io ioDrive 320 GB MLC: 700 MB/s, 50000 random reads of 8 KiB",
    bytes: 320_072_933_376,
    block_bytes: 512,
    after_discard: AfterDiscard::Zeroes,
    timing: Timing::Ssd(SsdParams {
        // Requests meet as if there were eighteen banks: a fifth of the rate comes with more than
        // forty outstanding.
        channels: 18,
        dies_per_channel: 1,
        read_ns: 165_000,
        program_ns: 600_000,
        channel_bytes_per_s: 42_000_000,
        read_command_ns: 1_000,
        write_command_ns: 1_000,
        read_bytes_per_s: 706_000_000,
        write_bytes_per_s: 600_000_000,
        write_link_bytes_per_s: 706_000_000,
        random_write_bytes_per_s: 475_500_000,
        random_write_shared_percent: 100,
        stream_bytes_min: 0,
        interference: Some(&IODRIVE_MIXTURES),
        write_acknowledge_ns: 30_000,
        write_buffer_bytes: MIB,
        flush_ns: 50_000,
        volatile_cache: false,
    }),
    rows: &IODRIVE_ROWS,
};

static IODRIVE_MIXTURES: Interference = Interference {
    read_percents: &[0, 80, 100],
    rows: &[
        InterferenceRow {
            bytes: 4 * KIB,
            path_permille: &[1000, 1000, 1000],
            die_permille: &[1000, 1330, 880],
        },
        InterferenceRow {
            bytes: 8 * KIB,
            path_permille: &[1000, 1000, 1000],
            die_permille: &[1000, 1330, 990],
        },
        InterferenceRow {
            bytes: 16 * KIB,
            path_permille: &[1000, 1000, 1000],
            die_permille: &[1000, 1000, 700],
        },
    ],
};

/// The article's figures of prose; those of one millisecond as the outstanding requests that make it
/// one. The test with two sizes at once contradicts the one before and is not here.
const IODRIVE_ROWS: [CalibrationRow; 7] = [
    row(small(8 * KIB, 100, 40), iops_8k(40_000.0)),
    row(small(8 * KIB, 100, 475), iops_8k(50_000.0)),
    row(small(4 * KIB, 100, 70), iops_4k(70_000.0)),
    row(Workload { sequential: true, ..small(128 * KIB, 100, 48) }, mb(700.0)),
    row(small(8 * KIB, 0, 58), iops_8k(58_000.0)),
    row(small(8 * KIB, 80, 37), iops_8k(37_000.0)),
    row(small(8 * KIB, 80, 400), iops_8k(45_000.0)),
];

const fn whole(bytes: u64, block_bytes: u64, depth: usize, read_percent: u64) -> Workload {
    Workload { jobs: 1, depth, block_bytes, span_bytes: bytes, sequential: false, read_percent }
}

const X25E_BYTES: u64 = 32_017_047_552;

pub(super) const SSD_X25E: Profile = Profile {
    name: "ssd-x25e",
    description: "Intel X25-E 32 GB SATA SSD, by its data sheet: 250/170 MB/s, 35000/3300 IOPS",
    bytes: X25E_BYTES,
    block_bytes: 512,
    after_discard: AfterDiscard::Zeroes,
    timing: Timing::Ssd(SsdParams {
        channels: 10,
        dies_per_channel: 4,
        read_ns: 40_000,
        program_ns: 400_000,
        channel_bytes_per_s: 180_000_000,
        read_command_ns: 12_200,
        write_command_ns: 15_000,
        read_bytes_per_s: 251_000_000,
        write_bytes_per_s: 174_000_000,
        write_link_bytes_per_s: 251_000_000,
        random_write_bytes_per_s: 13_517_000,
        random_write_shared_percent: 100,
        stream_bytes_min: 0,
        interference: None,
        write_acknowledge_ns: 60_000,
        write_buffer_bytes: 256 * KIB,
        flush_ns: 200_000,
        volatile_cache: true,
    }),
    rows: &[
        row(Workload { sequential: true, ..whole(X25E_BYTES, 128 * KIB, 32, 100) }, mb(250.0)),
        row(Workload { sequential: true, ..whole(X25E_BYTES, 128 * KIB, 32, 0) }, mb(170.0)),
        row(whole(X25E_BYTES, 4 * KIB, 32, 100), iops_4k(35_000.0)),
        row(whole(X25E_BYTES, 4 * KIB, 32, 0), iops_4k(3_300.0)),
    ],
};

const ES2_BYTES: u64 = 500_107_862_016;

pub(super) const HDD_ES2: Profile = Profile {
    name: "hdd-es2",
    description: "Seagate Barracuda ES.2 500 GB, by its data sheet: 105 MB/s, seeks of 8.5 ms",
    bytes: ES2_BYTES,
    block_bytes: 512,
    after_discard: AfterDiscard::Unchanged,
    timing: Timing::Hdd(HddParams {
        capacity_bytes: ES2_BYTES,
        least_span_bytes: 100_000_000_000,
        revolution_ns: 8_333_333,
        zones: 16,
        outer_bytes_per_s: 105_500_000,
        inner_bytes_per_s: 53_000_000,
        seek_track_ns: 800_000,
        seek_average_ns: 8_500_000,
        seek_full_ns: 16_000_000,
        write_settle_ns: 1_000_000,
        write_slower_permille: 30,
        command_ns: 60_000,
        link_bytes_per_s: 280_000_000,
        queue_depth: 32,
        reorder_reads: 3,
        reorder_writes: 6,
        starvation_ns: 2_000_000_000,
        cached_writes: 64,
        read_ahead_bytes: MIB,
        segments: 16,
        near_bytes: 16 * MIB,
    }),
    rows: &[
        row(Workload { sequential: true, ..whole(ES2_BYTES, 128 * KIB, 4, 100) }, mb(105.0)),
        // Seek, half a revolution and the command.
        row(whole(ES2_BYTES, 4 * KIB, 1, 100), iops_4k(1.0 / 0.012_8)),
    ],
};
