//! The MaxIO report: five jobs on a disk, on an SSD, and on the disk behind the SSD.

use super::document::{Cell, Document, embedded, manifest, point, target};
use crate::csv::Row;
use crate::result::{Access, Axes, Point, Run};

/// One of the two SSDs.
pub(super) struct Ssd {
    bare: &'static str,
    cached: &'static str,
    given: &'static str,
    facts: &'static [(&'static str, &'static str)],
}

pub(super) const SATA: Ssd = Ssd {
    bare: "SATA SSD",
    cached: "MaxIO cache (SATA SSD)",
    given: "Intel DC S3710, 800 GB",
    facts: &[("interface", "SATA")],
};

pub(super) const PCIE: Ssd = Ssd {
    bare: "PCIe SSD",
    cached: "MaxIO cache (PCIe SSD)",
    given: "Comay BladeDrive E24 800 GB",
    facts: &[],
};

/// The part of every target that the jobs use: fio's `size=100g`.
const SET_BYTES: u64 = 100 << 30;

const NOTES: &[&str] = &[
    "M1: the text says 300 s for each test, all five job files say 600 s (used here)",
    "M9: the scenario table has an empty result column; the mixed result of the disk is N/A",
    "mixed results are printed as one figure and divided here as the mix says (75 % reads)",
];

/// Job of the appendix, column of its result, prefix of its hit rates, row of the stated ratios.
const JOBS: [(&str, &str, [&str; 2], &str); 5] = [
    ("seqwrite", "seq_write_mbps", ["", "seq_write_hit_pct"], "seq_write"),
    ("seqread", "seq_read_mbps", ["seq_read_hit_pct", ""], "seq_read"),
    ("randwrite", "rand_write_iops", ["", "rand_write_hit_pct"], "rand_write"),
    ("randread", "rand_read_iops", ["rand_read_hit_pct", ""], "rand_read"),
    ("randrw", "rand_rw_w1_r3_iops", ["rand_rw_read_hit_pct", "rand_rw_write_hit_pct"], "rand_rw"),
];

pub(super) fn run(document: Document, ssd: &Ssd) -> Run {
    let results = embedded(include_str!("../../tables/maxio_results.csv"));
    let jobs = embedded(include_str!("../../tables/maxio_fio_jobs.csv"));
    let ratios = embedded(include_str!("../../tables/maxio_speedup_stated.csv"));
    let stated = |workload: &str| {
        let is_it = |row: &Row<'_>| {
            row.text("cache_device") == Some(ssd.bare) && row.text("workload") == Some(workload)
        };
        ratios.rows().find(is_it)?.number("stated_pct_of_bare_ssd")
    };
    let mut points = Vec::new();
    for (name, system) in [("hdd", "HDD"), ("ssd", ssd.bare), ("accelerated", ssd.cached)] {
        let row = results.rows().find(|row| row.text("system") == Some(system));
        for (job, column, hits, workload) in JOBS {
            let job = jobs.rows().find(|row| row.text("job") == Some(job));
            let (Some(row), Some(job)) = (row, job) else { continue };
            let Some(figure) = row.number(column) else { continue };
            let mut point = cell(name, &job, column, figure);
            for (metric, column) in ["read_hit_percent", "write_hit_percent"].iter().zip(hits) {
                if let Some(percent) = row.number(column) {
                    point.metrics.insert((*metric).to_owned(), percent);
                }
            }
            if let Some(percent) = stated(workload).filter(|_| name == "accelerated") {
                point.metrics.insert("stated_ratio_percent".to_owned(), percent);
            }
            points.push(point);
        }
    }
    let cached_facts = [
        ("backing", "hdd"),
        ("fast_tier", "ssd"),
        ("cache_bytes", "800000000000"),
        ("cache_at_start", "empty"),
    ];
    let targets = vec![
        target("hdd", "Western Digital 7200 rpm 2 TB SATA", SET_BYTES, &[("interface", "SATA")]),
        target("ssd", ssd.given, SET_BYTES, ssd.facts),
        target("accelerated", ssd.cached, SET_BYTES, &cached_facts),
    ];
    let mut manifest = manifest(document, targets, NOTES);
    manifest.environment.cpu = "2 x E5-2630 v2 2.6 GHz".to_owned();
    manifest.environment.memory_bytes = 64 << 30;
    manifest.environment.kernel = "2.6.32-504".to_owned();
    manifest.environment.system = "CentOS 6.6 x86_64".to_owned();
    manifest.environment.fio = "fio-2.0.13".to_owned();
    Run { manifest, points, ..Run::default() }
}

fn cell(target: &str, job: &Row<'_>, column: &str, figure: f64) -> Point {
    let name = job.text("job").unwrap_or_default();
    let rw = job.text("rw").unwrap_or_default();
    let size = job.text("bs").and_then(crate::size::parse_bytes);
    let whole = |column: &str| job.number(column).map(|value| value as u32);
    let read_percent = match rw {
        "write" | "randwrite" => 0,
        "randrw" => whole("rwmixread").unwrap_or(50) as u8,
        _ => 100,
    };
    let axes = Axes {
        target: target.to_owned(),
        phase: name.to_owned(),
        access: Some(if rw.starts_with("rand") { Access::Random } else { Access::Sequential }),
        read_percent: Some(read_percent),
        block_bytes: size,
        depth: whole("iodepth"),
        jobs: whole("numjobs"),
        ..Axes::default()
    };
    let is_rate = column.ends_with("_mbps");
    let cell = Cell {
        iops: (!is_rate).then_some(figure),
        megabytes: is_rate.then_some(figure),
        runtime_s: job.number("runtime_s"),
        ..Cell::default()
    };
    let mut point = point(format!("{target}/{name}"), axes, cell);
    let option = |key: &str, column: &str| Some(format!("--{key}={}", job.text(column)?));
    let flag = |key: &str| (job.text(key) == Some("yes")).then(|| format!("--{key}"));
    let words = [
        Some("fio".to_owned()),
        option("name", "job"),
        option("ioengine", "ioengine"),
        option("direct", "direct"),
        option("thread", "thread"),
        option("norandommap", "norandommap"),
        option("randrepeat", "randrepeat"),
        option("ramp_time", "ramp_time"),
        flag("stonewall"),
        flag("group_reporting"),
        flag("time_based"),
        option("size", "size"),
        option("bs", "bs"),
        option("ba", "ba"),
        option("rw", "rw"),
        option("rwmixread", "rwmixread"),
        option("numjobs", "numjobs"),
        option("iodepth", "iodepth"),
        option("runtime", "runtime_s"),
    ];
    point.command = words.into_iter().flatten().collect();
    point
}
