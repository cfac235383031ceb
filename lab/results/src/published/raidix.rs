//! RAIDIX ERA, Linux md and ZFS over twelve drives: matrices, latencies, throughput, conclusions.

use super::document::{Cell, Document, embedded, manifest, point, target};
use crate::analysis::checks::summary_of;
use crate::csv::{Row, Table};
use crate::result::{Access, Axes, Point, Run, TargetInfo};
use crate::size::parse_bytes;

const NOTES: &[&str] = &[
    "R4: not PTS-E 1.1: 7 block sizes instead of 8, latency at 4k/8k/16k, a fixed 16 rounds without \
     evidence of a steady state",
    "R5: the conclusions cut digits off (1902561.6 is 1902561 there)",
    "R6: IOPS were measured at 64 threads x 32, latency at 1 x 1: Little's law cannot join the two",
    "R10: the drive is an Intel DC D3700 (SSDPD2MD800G4); what is called firmware looks like a serial \
     number; ZFS 0.79 is presumably 0.7.9",
    "R11: 7,450.87 GiB are ten data drives of 800 GB: consistent",
    "mixed results are printed as one figure and divided here as the mix says",
];

const MIXES: [(&str, u8); 7] = [
    ("r0_w100", 0),
    ("r5_w95", 5),
    ("r35_w65", 35),
    ("r50_w50", 50),
    ("r65_w35", 65),
    ("r95_w5", 95),
    ("r100_w0", 100),
];

/// A target, its matrix, and its latencies where there are any.
struct Tested {
    target: &'static str,
    iops: &'static str,
    latency: Option<(&'static str, &'static str)>,
}

macro_rules! text {
    ($file:literal) => {
        include_str!(concat!("../../tables/raidix_", $file, ".csv"))
    };
}

const TESTED: [Tested; 7] = [
    Tested {
        target: "single_nvme",
        iops: text!("1_1_single_nvme_iops"),
        latency: Some((
            text!("1_2_single_nvme_latency_avg_ms"),
            text!("1_2_single_nvme_latency_max_ms"),
        )),
    },
    Tested { target: "12_nvme_raw", iops: text!("1_4_12nvme_iops"), latency: None },
    Tested {
        target: "mdraid_raid0",
        iops: text!("2_1_mdraid_raid0_iops"),
        latency: Some((
            text!("2_2_mdraid_raid0_latency_avg_ms"),
            text!("2_2_mdraid_raid0_latency_max_ms"),
        )),
    },
    Tested {
        target: "mdraid_raid6",
        iops: text!("2_4_mdraid_raid6_iops"),
        latency: Some((
            text!("2_5_mdraid_raid6_latency_avg_ms"),
            text!("2_5_mdraid_raid6_latency_max_ms"),
        )),
    },
    Tested {
        target: "zvol_raidz2",
        iops: text!("3_1_zvol_raidz2_iops"),
        latency: Some((
            text!("3_2_zvol_raidz2_latency_avg_ms"),
            text!("3_2_zvol_raidz2_latency_max_ms"),
        )),
    },
    Tested {
        target: "raidix_era_raid6",
        iops: text!("4_1_era_raid6_iops"),
        latency: Some((
            text!("4_2_era_raid6_latency_avg_ms"),
            text!("4_2_era_raid6_latency_max_ms"),
        )),
    },
    Tested { target: "zvol_raidz2_8k", iops: text!("upd_zvol_8k_iops"), latency: None },
];

/// Column prefix of the conclusions, and the target it is about.
const CONCLUDED: [(&str, &str); 4] = [
    ("md_raid6", "mdraid_raid6"),
    ("raidz2", "zvol_raidz2"),
    ("raidix_era_raid6", "raidix_era_raid6"),
    ("hardware", "12_nvme_raw"),
];

pub(super) fn run(document: Document) -> Run {
    let mut points = Vec::new();
    for tested in &TESTED {
        points.extend(iops(tested));
        points.extend(latencies(tested));
    }
    points.extend(throughput());
    points.extend(conclusions());
    let mut manifest = manifest(document, targets(), NOTES);
    manifest.environment.host = "Intel Server System R2224WFTZS".to_owned();
    manifest.environment.cpu = "2 x Intel Xeon Gold 6130 @ 2.10 GHz".to_owned();
    manifest.environment.cpus = 64;
    manifest.environment.kernel = "4.11".to_owned();
    manifest.environment.system = "CentOS 7.4".to_owned();
    Run { manifest, points, ..Run::default() }
}

fn targets() -> Vec<TargetInfo> {
    let twelve = [("devices", "12"), ("device", "single_nvme")];
    let claimed = [twelve[0], twelve[1], ("claimed_bytes_per_second", "30000000000")];
    let drive = "Intel DC D3700 800 GB (NVMe)";
    let of = |tested: &Tested| match tested.target {
        "single_nvme" => target("single_nvme", drive, 800_000_000_000, &[]),
        "raidix_era_raid6" => {
            target("raidix_era_raid6", "RAIDIX ERA RAID 6, 12 drives", 8_000_000_000_000, &claimed)
        }
        name => target(name, &format!("12 x {drive}"), 8_000_000_000_000, &twelve),
    };
    TESTED.iter().map(of).collect()
}

fn axes(target: &str, phase: &str, access: Access, read_percent: u8, block: Option<u64>) -> Axes {
    Axes {
        target: target.to_owned(),
        phase: phase.to_owned(),
        access: Some(access),
        read_percent: Some(read_percent),
        block_bytes: block,
        ..Axes::default()
    }
}

fn block(row: &Row<'_>) -> Option<u64> {
    row.text("block_size").and_then(parse_bytes)
}

fn iops(tested: &Tested) -> Vec<Point> {
    let table = embedded(tested.iops);
    let mut points = Vec::new();
    for row in table.rows() {
        let size = row.text("block_size").unwrap_or_default();
        for (mix, read) in MIXES {
            let Some(figure) = row.number(&format!("iops_{mix}")) else { continue };
            let axes = axes(tested.target, "iops", Access::Random, read, block(&row));
            let axes = Axes { depth: Some(32), jobs: Some(64), ..axes };
            let cell = Cell { iops: Some(figure), ..Cell::default() };
            points.push(point(format!("{}/iops/{size}/{mix}", tested.target), axes, cell));
        }
    }
    points
}

fn latencies(tested: &Tested) -> Vec<Point> {
    let Some((average, longest)) = tested.latency else { return Vec::new() };
    let (average, longest): (Table, Table) = (embedded(average), embedded(longest));
    let mut points = Vec::new();
    for (row, row_max) in average.rows().zip(longest.rows()) {
        let size = row.text("block_size").unwrap_or_default();
        for (mix, read) in MIXES {
            let ns = |row: &Row<'_>, what| Some(row.number(&format!("{what}_ms_{mix}"))? * 1e6);
            let Some(mean) = ns(&row, "avg") else { continue };
            let axes = axes(tested.target, "latency", Access::Random, read, block(&row));
            let axes = Axes { depth: Some(1), jobs: Some(1), ..axes };
            let cell = Cell {
                latency_ns: Some(mean),
                latency_max_ns: ns(&row_max, "max"),
                ..Cell::default()
            };
            points.push(point(format!("{}/latency/{size}/{mix}", tested.target), axes, cell));
        }
    }
    points
}

fn throughput() -> Vec<Point> {
    let table = embedded(text!("throughput"));
    let columns = [("write_1m", 0, 1 << 20), ("read_1m", 100, 1 << 20)];
    let small = [("write_128k", 0, 128 << 10), ("read_128k", 100, 128 << 10)];
    let mut points = Vec::new();
    for row in table.rows() {
        let target = row.text("system").unwrap_or_default();
        for (name, read, block) in columns.into_iter().chain(small) {
            let Some(figure) = row.number(&format!("seq_{name}_mbps")) else { continue };
            let axes = axes(target, "throughput", Access::Sequential, read, Some(block));
            let axes = Axes { depth: Some(8), jobs: Some(64), ..axes };
            let cell = Cell { megabytes: Some(figure), ..Cell::default() };
            points.push(point(format!("{target}/throughput/{name}"), axes, cell));
        }
    }
    points
}

fn conclusions() -> Vec<Point> {
    let random = embedded(text!("conclusion_random_4k"));
    let sequential = embedded(text!("conclusion_sequential_128k"));
    let mut points = Vec::new();
    for row in random.rows() {
        let name = row.text("workload").unwrap_or_default();
        let read = name.trim_start_matches("4k R").split('%').next();
        let Some(read) = read.and_then(|share| share.parse().ok()) else { continue };
        for (column, target) in CONCLUDED {
            let cell = Cell { iops: row.number(&format!("{column}_iops")), ..Cell::default() };
            let axes = axes(target, "iops", Access::Random, read, Some(4096));
            points.push(point(format!("summary/{target}/{name}"), summary_of(&axes), cell));
        }
    }
    for row in sequential.rows() {
        let name = row.text("workload").unwrap_or_default();
        let read = if name.contains("read") { 100 } else { 0 };
        for (column, target) in CONCLUDED {
            let figure = row.number(&format!("{column}_mbps"));
            let cell = Cell { megabytes: figure, ..Cell::default() };
            let axes = axes(target, "throughput", Access::Sequential, read, Some(128 << 10));
            points.push(point(format!("summary/{target}/{name}"), summary_of(&axes), cell));
        }
    }
    points
}
