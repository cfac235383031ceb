//! elbencho's csv: a row for each phase, figures when the first and when the last worker was done.

use super::files::{manifest, target};
use crate::csv::{Row, Table};
use crate::result::{Access, Axes, Flow, Latency, Point, Run, Status};

const MIB: f64 = 1_048_576.0;

/// Below this many MiB/s the whole numbers of the file say too little.
const COARSE_MIB: f64 = 100.0;

/// Whether a first line is that of elbencho's results.
pub(super) fn is_header(line: &str) -> bool {
    line.contains("operation") && line.contains("[last]")
}

pub(super) fn parse(text: &str) -> Result<Run, String> {
    let table = Table::read(text).ok_or("it has no header")?;
    if !table.header().iter().any(|column| column == "operation") {
        return Err("elbencho's column `operation` is missing".to_owned());
    }
    let points: Vec<Point> = table.rows().filter_map(|row| point(&row)).collect();
    let mut target = target("target", "elbencho");
    // Whole MiB/s and whole IOPS.
    target.facts.insert("precision".to_owned(), "approximate".to_owned());
    let version = table.rows().find_map(|row| row.text("version").map(str::to_owned));
    let tool = format!("elbencho {}", version.unwrap_or_default());
    Ok(Run { manifest: manifest(tool.trim(), vec![target]), points, ..Run::default() })
}

fn point(row: &Row<'_>) -> Option<Point> {
    let operation = row.text("operation")?;
    let whole = |column: &str| row.number(column).filter(|n| *n >= 0.0).map(|n| n as u32);
    let is_random = row.text("random").is_some_and(|flag| flag != "0");
    let block_bytes = row.number("block size").filter(|n| *n >= 1.0).map(|n| n as u64);
    let read_percent = match operation {
        "READ" | "HOSTREAD" => Some(100),
        "WRITE" => Some(0),
        _ => None,
    };
    let axes = Axes {
        target: "target".to_owned(),
        phase: operation.to_lowercase(),
        access: read_percent.map(|_| if is_random { Access::Random } else { Access::Sequential }),
        read_percent,
        block_bytes,
        depth: whole("IO depth").map(|depth| depth.max(1)),
        jobs: whole("threads"),
        clients: whole("hosts").filter(|hosts| *hosts > 1),
        ..Axes::default()
    };
    let label = row.text("label").map(|label| format!("{label}/")).unwrap_or_default();
    let mut point = Point {
        id: format!("{label}{}", operation.to_lowercase()),
        axes,
        command: row.text("command").map(str::to_owned).into_iter().collect(),
        ..Point::default()
    };
    let flow = flow(row, block_bytes);
    match (operation, flow) {
        ("WRITE", flow) => point.write = flow,
        (_, flow) => point.read = flow,
    }
    let metrics = [
        ("operations_per_second", "entries/s [last]", 1.0),
        ("operations_per_second_first_done", "entries/s [first]", 1.0),
        ("iops_first_done", "IOPS [first]", 1.0),
        ("bytes_per_second_first_done", "MiB/s [first]", MIB),
        ("cpu_percent", "CPU% [last]", 1.0),
    ];
    for (name, column, unit) in metrics {
        let value = row.number(column).filter(|value| *value > 0.0);
        point.metrics.extend(value.map(|value| (name.to_owned(), value * unit)));
    }
    if point.read.is_none() && point.write.is_none() && point.metrics.is_empty() {
        point.status = Status::Failed("the row has no figures".to_owned());
    }
    Some(point)
}

fn flow(row: &Row<'_>, block_bytes: Option<u64>) -> Option<Flow> {
    let positive = |column: &str| row.number(column).filter(|value| *value > 0.0);
    let iops = positive("IOPS [last]");
    let mib = positive("MiB/s [last]");
    let exact = iops.zip(block_bytes).map(|(iops, block)| iops * block as f64);
    let bytes = match mib {
        Some(mib) if mib >= COARSE_MIB => Some(mib * MIB),
        _ => exact.or(mib.map(|mib| mib * MIB)),
    };
    let latency = |what: &str| {
        // Two spellings of the column are in use.
        let names = [format!("IO lat us [{what}]"), format!("IO lat us {what}")];
        names.iter().find_map(|name| positive(name)).map(|us| us * 1e3)
    };
    if iops.is_none() && bytes.is_none() {
        return None;
    }
    Some(Flow {
        runtime_ns: positive("time ms [last]").map_or(0, |ms| (ms * 1e6) as u64),
        iops: iops.unwrap_or(0.0),
        bytes_per_second: bytes.unwrap_or(0.0),
        latency: Latency {
            min_ns: latency("min").unwrap_or(0.0) as u64,
            max_ns: latency("max").unwrap_or(0.0) as u64,
            mean_ns: latency("avg").unwrap_or(0.0),
            ..Latency::default()
        },
        ..Flow::default()
    })
}
