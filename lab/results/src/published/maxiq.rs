//! Adaptec MaxIQ: only the final ratios are left of its charts.

use super::document::{Document, embedded, manifest, target};
use crate::result::{Access, Axes, Point, Run};

const NOTES: &[&str] = &[
    "A1: the charts (files/s and transactions/s over the pass) are lost; final ratios remain",
    "A2: the hot set of 4 GB lies between memory (2 GB and 512 MB of the controller) and cache \
     (32 GB): well chosen",
    "A3: the 930GB of two disks of 500 GB are GiB",
    "A4: mysqlbench writes more than it reads, MaxIQ is a read cache; about 10 MB for each unit of \
     scale",
    "A5: names were damaged in print and are corrected here",
];

fn ratio(text: Option<&str>) -> Option<f64> {
    text?.strip_suffix('x')?.parse().ok()
}

pub(super) fn run(document: Document) -> Run {
    let mut points = Vec::new();
    let mut keep = |id: String, axes: Axes, speed_up: Option<f64>| {
        let metrics = speed_up.map(|times| ("speed_up".to_owned(), times)).into_iter().collect();
        points.push(Point { id, axes, metrics, ..Point::default() });
    };
    let files = embedded(include_str!("../../tables/maxiq_hot_file_test.csv"));
    for row in files.rows() {
        let access = match row.text("parameter") {
            Some("final_random_speedup") => Access::Random,
            Some("final_sequential_speedup") => Access::Sequential,
            _ => continue,
        };
        let axes = Axes {
            target: "cached".to_owned(),
            phase: "hot files".to_owned(),
            access: Some(access),
            read_percent: Some(100),
            ..Axes::default()
        };
        let name = if access == Access::Random { "random" } else { "sequential" };
        keep(format!("hot-files/{name}"), axes, ratio(row.text("value")));
    }
    let bench = embedded(include_str!("../../tables/maxiq_mysqlbench.csv"));
    for row in bench.rows() {
        let scale = row.text("scaling_factor_s").unwrap_or_default();
        let clients = row.number("clients_c").map(|clients| clients as u32);
        let axes = Axes {
            target: "cached".to_owned(),
            phase: format!("mysqlbench, scale {scale}"),
            jobs: clients,
            ..Axes::default()
        };
        keep(format!("mysqlbench/{scale}"), axes, ratio(row.text("final_speedup_stated")));
    }
    let given = "two disks as RAID 0 on an Adaptec 5805 behind a MaxIQ cache (Intel X25-E 32 GB)";
    let facts = [("interface", "SATA 3Gb/s"), ("cache_bytes", "32000000000")];
    let cached = target("cached", given, 4096 << 20, &facts);
    let mut manifest = manifest(document, vec![cached], NOTES);
    manifest.environment.cpu = "Intel Xeon L3426 1.87GHz".to_owned();
    manifest.environment.memory_bytes = 2 << 30;
    Run { manifest, points, ..Run::default() }
}
