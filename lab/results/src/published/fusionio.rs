//! Fusion-io under Orion: figures of the prose, its charts are lost.

use super::document::{Cell, Document, embedded, manifest, point, target};
use crate::analysis::checks::summary_of;
use crate::result::{Access, Axes, Run};

const NOTES: &[&str] = &[
    "F1: all figures are approximations in prose; charts and summary files are lost: orientation, \
     never a baseline",
    "F4: test 4 gives no throughput; 58,000 x 8 KiB are 475 MB/s. Test 6 leaves about 170 MB/s for \
     the large stream",
    "F5: \"150 IOPS x 1 MB = 150 MB/s\" of a hard disk is followed by \"measured 170-250 MB/s\": the \
     limit of requests does not hold for sequential access",
    "F6: of the readers' comments only some are stored",
];

pub(super) fn run(document: Document) -> Run {
    let table = embedded(include_str!("../../tables/fusionio_orion_tests.csv"));
    let mut points = Vec::new();
    for row in table.rows() {
        let test = row.text("test").unwrap_or_default();
        let kib = |column: &str| row.number(column).map(|kib| (kib * 1024.0) as u64);
        let (small, large) = (kib("small_io_kb"), kib("large_io_kb"));
        let axes = Axes {
            target: "iodrive".to_owned(),
            phase: format!("test {test}"),
            access: Some(if small.is_some() { Access::Random } else { Access::Sequential }),
            read_percent: row.number("write_pct").map(|writes| (100.0 - writes) as u8),
            // Two sizes at once have no size.
            block_bytes: if small.is_some() && large.is_some() { None } else { small.or(large) },
            ..Axes::default()
        };
        let ns = |column: &str| row.number(column).map(|ms| ms * 1e6);
        let most = Cell {
            iops: row.number("max_iops_stated"),
            megabytes: row.number("max_mbps_stated"),
            latency_max_ns: ns("latency_max_ms_stated"),
            ..Cell::default()
        };
        let knee = Cell {
            iops: row.number("knee_iops_stated"),
            latency_ns: ns("latency_at_knee_ms_stated"),
            ..Cell::default()
        };
        points.push(point(format!("{test}/most"), axes.clone(), most));
        points.push(point(format!("{test}/knee"), axes.clone(), knee));
        if test == "1" {
            // The article's summary: 8K reads reach 50,000 "with a response time stable below 1 ms".
            let cell = Cell { iops: Some(50_000.0), latency_ns: Some(1e6), ..Cell::default() };
            points.push(point("summary/8k-read".to_owned(), summary_of(&axes), cell));
        }
    }
    let facts = [("precision", "approximate")];
    let drive = target("iodrive", "Fusion-io ioDrive 320 GB MLC", 320_000_000_000, &facts);
    let mut manifest = manifest(document, vec![drive], NOTES);
    manifest.environment.host = "Dell R510".to_owned();
    manifest.environment.cpu = "2 x E5620".to_owned();
    manifest.environment.memory_bytes = 24 << 30;
    manifest.environment.system = "Red Hat Linux 5.3".to_owned();
    Run { manifest, points, ..Run::default() }
}
