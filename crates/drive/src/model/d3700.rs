//! The Intel D3700 of 2017, calibrated on every row measured on the drive alone. The rows are random
//! requests of seven sizes in seven mixtures, latencies one by one, and the sequential rates.

use super::profile::row;
use super::{CalibrationRow, Interference, InterferenceRow, Profile, SsdParams, Timing, Workload};
use voltier_block::{AfterDiscard, KIB, MIB};

const DRIVE_BYTES: u64 = 800_166_076_416;

/// The random jobs: 64 jobs of depth 32 over the whole drive.
const fn whole_drive(block_bytes: u64, read_percent: u64) -> Workload {
    let span_bytes = 800_000_000_000;
    Workload { jobs: 64, depth: 32, block_bytes, span_bytes, sequential: false, read_percent }
}

/// One request at a time over the whole drive.
const fn one_by_one(block_bytes: u64, read_percent: u64) -> Workload {
    Workload { jobs: 1, depth: 1, ..whole_drive(block_bytes, read_percent) }
}

/// The throughput jobs: 64 jobs of depth 8, each in order. The published ones began 10 GB apart.
const fn in_order(block_bytes: u64, read_percent: u64) -> Workload {
    Workload { depth: 8, sequential: true, ..whole_drive(block_bytes, read_percent) }
}

const fn iops(block_bytes: u64, iops: f64) -> f64 {
    iops * block_bytes as f64
}

/// Bytes per second of one request at a time, from its mean latency in milliseconds.
const fn latency(block_bytes: u64, mean_ms: f64) -> f64 {
    block_bytes as f64 * 1e3 / mean_ms
}

/// The throughput table's unit is 2^20 bytes: 13,631 reads of 128 KiB are its "1704 MBps".
const fn mib(per_s: f64) -> f64 {
    per_s * MIB as f64
}

pub(super) const SSD_D3700: Profile = Profile {
    name: "ssd-d3700",
    description: "Intel D3700 800 GB NVMe SSD: 634/1707 MiB/s, 84018/390969 random IOPS",
    bytes: DRIVE_BYTES,
    block_bytes: 512,
    after_discard: AfterDiscard::Zeroes,
    timing: Timing::Ssd(SsdParams {
        channels: 16,
        dies_per_channel: 8,
        read_ns: 75_500,
        program_ns: 1_200_000,
        channel_bytes_per_s: 190_000_000,
        read_command_ns: 264,
        write_command_ns: 500,
        read_bytes_per_s: 1_786_000_000,
        write_bytes_per_s: 658_000_000,
        write_link_bytes_per_s: 1_786_000_000,
        random_write_bytes_per_s: 347_500_000,
        random_write_shared_percent: 100,
        stream_bytes_min: 4 * MIB,
        interference: Some(&MIXTURES),
        write_acknowledge_ns: 24_400,
        write_buffer_bytes: 4 * MIB,
        flush_ns: 20_000,
        volatile_cache: false,
    }),
    rows: &ROWS,
};

/// Measured cost of each mixture beside the sum of what its reads and writes cost.
static MIXTURES: Interference = Interference {
    read_percents: &[0, 5, 35, 50, 65, 95, 100],
    rows: &[
        InterferenceRow {
            bytes: 4 * KIB,
            path_permille: &[1010, 966, 997, 1048, 987, 1178, 1000],
            die_permille: &[1000, 1000, 960, 960, 960, 1000, 1000],
        },
        InterferenceRow {
            bytes: 8 * KIB,
            path_permille: &[996, 966, 996, 1045, 865, 1009, 952],
            die_permille: &[1000, 1000, 1030, 1030, 1030, 990, 990],
        },
        InterferenceRow {
            bytes: 16 * KIB,
            path_permille: &[981, 968, 992, 1045, 841, 984, 978],
            die_permille: &[1000, 1000, 1110, 1110, 1110, 960, 960],
        },
        InterferenceRow {
            bytes: 32 * KIB,
            path_permille: &[970, 976, 997, 1054, 834, 946, 1060],
            die_permille: &[1000, 1000, 1110, 1110, 1110, 960, 960],
        },
        InterferenceRow {
            bytes: 64 * KIB,
            path_permille: &[965, 974, 1005, 1070, 846, 940, 993],
            die_permille: &[1000, 1000, 1110, 1110, 1110, 960, 960],
        },
        InterferenceRow {
            bytes: 128 * KIB,
            path_permille: &[965, 985, 1020, 1033, 854, 938, 996],
            die_permille: &[1000, 1000, 1110, 1110, 1110, 960, 960],
        },
        InterferenceRow {
            bytes: MIB,
            path_permille: &[943, 973, 1023, 810, 838, 896, 1000],
            die_permille: &[1000, 1000, 1110, 1110, 1110, 960, 960],
        },
    ],
};

const ROWS: [CalibrationRow; 62] = [
    row(whole_drive(4 * KIB, 0), iops(4 * KIB, 84_017.8)),
    row(whole_drive(4 * KIB, 5), iops(4 * KIB, 91_393.8)),
    row(whole_drive(4 * KIB, 35), iops(4 * KIB, 117_271.6)),
    row(whole_drive(4 * KIB, 50), iops(4 * KIB, 133_059.4)),
    row(whole_drive(4 * KIB, 65), iops(4 * KIB, 175_086.8)),
    row(whole_drive(4 * KIB, 95), iops(4 * KIB, 281_131.2)),
    row(whole_drive(4 * KIB, 100), iops(4 * KIB, 390_969.2)),
    row(whole_drive(8 * KIB, 0), iops(8 * KIB, 42_602.6)),
    row(whole_drive(8 * KIB, 5), iops(8 * KIB, 45_735.8)),
    row(whole_drive(8 * KIB, 35), iops(8 * KIB, 58_980.2)),
    row(whole_drive(8 * KIB, 50), iops(8 * KIB, 67_321.4)),
    row(whole_drive(8 * KIB, 65), iops(8 * KIB, 101_357.2)),
    row(whole_drive(8 * KIB, 95), iops(8 * KIB, 171_316.8)),
    row(whole_drive(8 * KIB, 100), iops(8 * KIB, 216_551.4)),
    row(whole_drive(16 * KIB, 0), iops(16 * KIB, 21_618.8)),
    row(whole_drive(16 * KIB, 5), iops(16 * KIB, 22_834.8)),
    row(whole_drive(16 * KIB, 35), iops(16 * KIB, 29_703.6)),
    row(whole_drive(16 * KIB, 50), iops(16 * KIB, 33_821.2)),
    row(whole_drive(16 * KIB, 65), iops(16 * KIB, 52_552.6)),
    row(whole_drive(16 * KIB, 95), iops(16 * KIB, 89_731.2)),
    row(whole_drive(16 * KIB, 100), iops(16 * KIB, 108_347.0)),
    row(whole_drive(32 * KIB, 0), iops(32 * KIB, 10_929.4)),
    row(whole_drive(32 * KIB, 5), iops(32 * KIB, 11_322.0)),
    row(whole_drive(32 * KIB, 35), iops(32 * KIB, 14_787.0)),
    row(whole_drive(32 * KIB, 50), iops(32 * KIB, 16_811.0)),
    row(whole_drive(32 * KIB, 65), iops(32 * KIB, 26_577.6)),
    row(whole_drive(32 * KIB, 95), iops(32 * KIB, 47_185.2)),
    row(whole_drive(32 * KIB, 100), iops(32 * KIB, 50_670.8)),
    row(whole_drive(64 * KIB, 0), iops(64 * KIB, 5_494.4)),
    row(whole_drive(64 * KIB, 5), iops(64 * KIB, 5_671.6)),
    row(whole_drive(64 * KIB, 35), iops(64 * KIB, 7_342.6)),
    row(whole_drive(64 * KIB, 50), iops(64 * KIB, 8_285.8)),
    row(whole_drive(64 * KIB, 65), iops(64 * KIB, 13_130.2)),
    row(whole_drive(64 * KIB, 95), iops(64 * KIB, 23_884.0)),
    row(whole_drive(64 * KIB, 100), iops(64 * KIB, 27_249.2)),
    row(whole_drive(128 * KIB, 0), iops(128 * KIB, 2_748.4)),
    row(whole_drive(128 * KIB, 5), iops(128 * KIB, 2_805.2)),
    row(whole_drive(128 * KIB, 35), iops(128 * KIB, 3_617.8)),
    row(whole_drive(128 * KIB, 50), iops(128 * KIB, 4_295.2)),
    row(whole_drive(128 * KIB, 65), iops(128 * KIB, 6_506.6)),
    row(whole_drive(128 * KIB, 95), iops(128 * KIB, 11_997.6)),
    row(whole_drive(128 * KIB, 100), iops(128 * KIB, 13_631.0)),
    row(whole_drive(MIB, 0), iops(MIB, 351.6)),
    row(whole_drive(MIB, 5), iops(MIB, 354.8)),
    row(whole_drive(MIB, 35), iops(MIB, 451.2)),
    row(whole_drive(MIB, 50), iops(MIB, 684.8)),
    row(whole_drive(MIB, 65), iops(MIB, 830.2)),
    row(whole_drive(MIB, 95), iops(MIB, 1_574.4)),
    row(whole_drive(MIB, 100), iops(MIB, 1_702.8)),
    row(one_by_one(4 * KIB, 0), latency(4 * KIB, 0.027_19)),
    row(one_by_one(4 * KIB, 65), latency(4 * KIB, 0.072_134)),
    row(one_by_one(4 * KIB, 100), latency(4 * KIB, 0.099_402)),
    row(one_by_one(8 * KIB, 0), latency(8 * KIB, 0.029_864)),
    row(one_by_one(8 * KIB, 65), latency(8 * KIB, 0.093_092)),
    row(one_by_one(8 * KIB, 100), latency(8 * KIB, 0.121_582)),
    row(one_by_one(16 * KIB, 0), latency(16 * KIB, 0.046_726)),
    row(one_by_one(16 * KIB, 65), latency(16 * KIB, 0.137_016)),
    row(one_by_one(16 * KIB, 100), latency(16 * KIB, 0.164_05)),
    row(in_order(128 * KIB, 0), mib(620.0)),
    row(in_order(128 * KIB, 100), mib(1704.0)),
    row(in_order(MIB, 0), mib(634.0)),
    row(in_order(MIB, 100), mib(1707.0)),
];
