//! Orion: the summary and the three tables of a run, small load across, large load down.

use std::collections::BTreeMap;

use super::files::{Files, manifest, target};
use crate::result::{Access, Axes, Flow, Latency, Point, Run};

const SUFFIXES: [&str; 5] = ["_summary.txt", "_iops.csv", "_lat.csv", "_mbps.csv", "_hist.txt"];

/// The prefix of an Orion file's name; `None` when it is not named like one.
pub(super) fn prefix(name: &str) -> Option<&str> {
    SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix))
}

/// The run as its summary tells it.
#[derive(Default)]
struct Summary {
    version: String,
    small_bytes: Option<u64>,
    large_bytes: Option<u64>,
    is_large_sequential: bool,
    write_percent: Option<u8>,
    duration_s: Option<u64>,
    /// Nanoseconds of the unit in which latencies are printed.
    latency_unit: Option<f64>,
    command: Vec<String>,
    devices: Vec<(String, u64)>,
    extremes: Vec<String>,
}

/// The figures of each pair of loads.
type Cells = BTreeMap<LoadPair, Cell>;

/// Small and large requests in flight.
type LoadPair = (u32, u32);

#[derive(Clone, Copy, Default)]
struct Cell {
    small_iops: Option<f64>,
    small_latency: Option<f64>,
    large_megabytes: Option<f64>,
}

pub(super) fn parse(name: &str, files: &Files) -> Result<Run, String> {
    let own = files.get(name).map(String::as_str).unwrap_or_default();
    let prefix = prefix(name);
    let beside = |suffix: &str| {
        let named = prefix.and_then(|prefix| files.get(&format!("{prefix}{suffix}")));
        named.map(String::as_str)
    };
    let is_summary = own.contains("ORION VERSION");
    let summary = if is_summary { Some(own) } else { beside("_summary.txt") };
    let summary = summary.map(read_summary).unwrap_or_default();
    let mut cells = Cells::new();
    type Keep = fn(&mut Cell, f64);
    let tables: [(&str, Keep); 3] = [
        ("_iops.csv", |cell, value| cell.small_iops = Some(value)),
        ("_lat.csv", |cell, value| cell.small_latency = Some(value)),
        ("_mbps.csv", |cell, value| cell.large_megabytes = Some(value)),
    ];
    for (suffix, keep) in tables {
        let Some(text) = beside(suffix) else { continue };
        for (loads, value) in read_table(suffix, text)? {
            keep(cells.entry(loads).or_default(), value);
        }
    }
    if cells.is_empty() {
        cells = from_extremes(&summary.extremes);
    }
    let points = cells.iter().filter_map(|(loads, cell)| point(*loads, cell, &summary)).collect();
    let tool = format!("Orion {}", summary.version);
    let given: Vec<&str> = summary.devices.iter().map(|(name, _)| name.as_str()).collect();
    let mut target = target("target", &given.join(" "));
    let sizes = summary.devices.iter().map(|(_, size)| *size);
    target.size_bytes = sizes.fold(0, u64::saturating_add);
    let mut manifest = manifest(tool.trim(), vec![target]);
    manifest.notes = summary.extremes.clone();
    if summary.latency_unit.is_none() && cells.values().any(|cell| cell.small_latency.is_some()) {
        let note = "latencies are left out: only the summary tells whether they are ms or us";
        manifest.notes.push(note.to_owned());
    }
    Ok(Run { manifest, points, ..Run::default() })
}

/// Requests in flight of a stream where the command line does not say.
const STREAM_DEPTH: u32 = 4;

impl Summary {
    /// Requests in flight of each stream: `-num_streamIO N`.
    fn stream_depth(&self) -> u32 {
        let mut words = self.command.iter().skip_while(|word| *word != "-num_streamIO");
        let given = words.nth(1).and_then(|word| word.parse().ok());
        given.filter(|depth| *depth > 0).unwrap_or(STREAM_DEPTH)
    }
}

fn read_summary(text: &str) -> Summary {
    let mut summary = Summary::default();
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let after = |key: &str| line.strip_prefix(key).map(str::trim);
        let kilobytes = |key: &str| {
            let number = after(key)?.split_whitespace().next()?.parse::<u64>().ok()?;
            number.checked_mul(1024).filter(|bytes| *bytes > 0)
        };
        if let Some(version) = after("ORION VERSION") {
            summary.version = version.to_owned();
            summary.latency_unit = Some(if is_microseconds(version) { 1e3 } else { 1e6 });
        } else if line == "Commandline:" {
            let words = lines.peek().map(|words| words.split_whitespace()).into_iter().flatten();
            summary.command = std::iter::once("orion").chain(words).map(str::to_owned).collect();
        } else if line.starts_with("Small IO size:") {
            summary.small_bytes = kilobytes("Small IO size:");
        } else if line.starts_with("Large IO size:") {
            summary.large_bytes = kilobytes("Large IO size:");
        } else if let Some(types) = after("IO Types:") {
            summary.is_large_sequential = types.contains("Large Sequential");
        } else if let Some(share) = after("Write:") {
            let share = share.trim_end_matches('%').parse::<u8>().ok();
            summary.write_percent = share.filter(|share| *share <= 100);
        } else if let Some(duration) = after("Duration for each Data Point:") {
            summary.duration_s = duration.split_whitespace().next().and_then(|s| s.parse().ok());
        } else if let Some(device) = after("Name:") {
            let mut parts = device.split("Size:").map(str::trim);
            let name = parts.next().unwrap_or_default().to_owned();
            let size = parts.next().and_then(|size| size.parse().ok()).unwrap_or(0);
            summary.devices.push((name, size));
        } else if line.starts_with("Maximum ") || line.starts_with("Minimum ") {
            if line.contains("usecs") {
                summary.latency_unit = Some(1e3);
            }
            summary.extremes.push(line.to_owned());
        }
    }
    summary
}

/// Milliseconds up to 11.1, microseconds from 11.2 on.
fn is_microseconds(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (major, minor) >= (11, 2)
}

/// Cells that are filled; a row of a basic run may have none.
fn read_table(name: &str, text: &str) -> Result<Vec<(LoadPair, f64)>, String> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let header = lines.next().unwrap_or_default();
    let mut columns = header.split(',').map(str::trim);
    if columns.next() != Some("Large/Small") {
        return Err(format!("*{name} does not begin with Large/Small: not a table of Orion"));
    }
    let columns: Vec<Option<u32>> = columns.map(|column| column.parse().ok()).collect();
    let mut cells = Vec::new();
    for line in lines {
        let mut values = line.split(',').map(str::trim);
        let first = values.next().unwrap_or_default();
        let Ok(large) = first.parse::<u32>() else {
            return Err(format!("*{name}: a row begins with {first:?}, not with a load"));
        };
        for (small, value) in columns.iter().zip(values).filter(|(_, value)| !value.is_empty()) {
            let value = value.parse::<f64>().ok().filter(|value| value.is_finite());
            let Some((small, value)) = small.zip(value) else {
                return Err(format!("*{name}: row {large} has a cell that is no number"));
            };
            cells.push(((small, large), value));
        }
    }
    Ok(cells)
}

/// `Maximum Small IOPS=442 @ Small=40 and Large=0`, where the tables are lost.
fn from_extremes(extremes: &[String]) -> Cells {
    let mut cells = Cells::new();
    for line in extremes {
        let Some((figure, loads)) = line.split_once('@') else { continue };
        let Some((name, value)) = figure.split_once('=') else { continue };
        let load = |key: &str| {
            let text = loads.split(key).nth(1)?;
            text.split_whitespace().next()?.parse::<u32>().ok()
        };
        let value = value.split_whitespace().next().and_then(|value| value.parse::<f64>().ok());
        let (Some(value), Some(small), Some(large)) = (value, load("Small="), load("Large="))
        else {
            continue;
        };
        let cell = cells.entry((small, large)).or_default();
        match name.trim() {
            "Maximum Large MBPS" => cell.large_megabytes = Some(value),
            "Maximum Small IOPS" => cell.small_iops = Some(value),
            "Minimum Small Latency" => cell.small_latency = Some(value),
            _ => {}
        }
    }
    cells
}

fn point((small, large): LoadPair, cell: &Cell, summary: &Summary) -> Option<Point> {
    let latency_ns = cell.small_latency.zip(summary.latency_unit).map(|(value, unit)| value * unit);
    let bytes = cell.large_megabytes.map(|megabytes| megabytes * 1e6);
    let read_percent = summary.write_percent.map(|share| 100 - share);
    let mut axes = Axes {
        target: "target".to_owned(),
        phase: "orion".to_owned(),
        access: Some(Access::Random),
        read_percent,
        small: Some(small),
        large: Some(large),
        stream_depth: summary.is_large_sequential.then(|| summary.stream_depth()),
        ..Axes::default()
    };
    let mut flow = None;
    if large == 0 {
        axes.block_bytes = summary.small_bytes;
        flow = rate(cell.small_iops, None, latency_ns);
    } else if small == 0 {
        axes.block_bytes = summary.large_bytes;
        if summary.is_large_sequential {
            axes.access = Some(Access::Sequential);
        }
        let iops = bytes.zip(summary.large_bytes).map(|(bytes, block)| bytes / block as f64);
        flow = rate(iops, bytes, None);
    }
    let metrics: BTreeMap<String, f64> = [
        ("small_iops", cell.small_iops),
        ("small_latency_ns", latency_ns),
        ("large_bytes_per_second", bytes),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value.filter(|value| *value > 0.0)?)))
    .collect();
    if metrics.is_empty() {
        return None;
    }
    let runtime_ns = summary.duration_s.unwrap_or(0).saturating_mul(1_000_000_000);
    // One figure for both directions: divided as the mix says.
    let reads = f64::from(read_percent.unwrap_or(100)) / 100.0;
    let part = |share: f64| {
        let flow = flow.as_ref().filter(|_| share > 0.0)?;
        Some(Flow {
            iops: flow.iops * share,
            bytes_per_second: flow.bytes_per_second * share,
            runtime_ns,
            ..flow.clone()
        })
    };
    Some(Point {
        id: format!("small={small}/large={large}"),
        axes,
        command: summary.command.clone(),
        read: part(reads),
        write: part(1.0 - reads),
        metrics,
        ..Point::default()
    })
}

fn rate(iops: Option<f64>, bytes: Option<f64>, latency_ns: Option<f64>) -> Option<Flow> {
    iops.or(bytes)?;
    Some(Flow {
        iops: iops.unwrap_or(0.0),
        bytes_per_second: bytes.unwrap_or(0.0),
        latency: Latency { mean_ns: latency_ns.unwrap_or(0.0), ..Latency::default() },
        ..Flow::default()
    })
}
