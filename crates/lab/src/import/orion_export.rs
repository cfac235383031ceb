//! A run of small and large loads in the files that Orion 11.2 writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::LabError;
use crate::date::Moment;
use crate::result::{Access, Point, Run, Status};

/// Writes `NAME_yyyymmdd_hhmm_summary.txt`, `_iops.csv`, `_lat.csv` and `_mbps.csv` into a folder,
/// and gives their paths. Microseconds, and MB of a million bytes.
///
/// # Errors
/// When the run has no points of small and large loads, or a file cannot be written.
pub fn export(run: &Run, name: &str, folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let points = matrix(run);
    if points.is_empty() {
        let why = "it has no small and large loads: run the orion plan".to_owned();
        return Err(LabError::Unreadable { path: PathBuf::from(&run.manifest.run), why });
    }
    let prefix = format!("{name}_{}", Moment::of(run.manifest.started_unix_ms).stamp());
    let files = [
        ("summary.txt", summary(run, name, &points)),
        ("iops.csv", table(&points, |point| small_iops(point).map(|x| format!("{x:.0}")))),
        ("lat.csv", table(&points, |point| small_us(point).map(|us| format!("{us:.2}")))),
        ("mbps.csv", table(&points, |point| large_mb(point).map(|mb| format!("{mb:.2}")))),
    ];
    let mut written = Vec::new();
    for (kind, text) in files {
        let path = folder.join(format!("{prefix}_{kind}"));
        std::fs::write(&path, text).map_err(LabError::file(&path))?;
        written.push(path);
    }
    Ok(written)
}

/// (large, small) and its point; of a repeated place the last.
type Matrix<'a> = BTreeMap<(u32, u32), &'a Point>;

fn matrix(run: &Run) -> Matrix<'_> {
    let usable = run.points.iter().filter(|point| point.status == Status::Ok);
    let placed = usable.filter_map(|point| {
        let (small, large) = (point.axes.small, point.axes.large);
        (small.is_some() || large.is_some())
            .then_some(((large.unwrap_or(0), small.unwrap_or(0)), point))
    });
    placed.collect()
}

pub(crate) fn small_iops(point: &Point) -> Option<f64> {
    let pure = || point.iops().filter(|_| point.axes.large.unwrap_or(0) == 0);
    point.metrics.get("small_iops").copied().or_else(pure)
}

pub(crate) fn small_us(point: &Point) -> Option<f64> {
    let pure = || point.latency_mean_ns().filter(|_| point.axes.large.unwrap_or(0) == 0);
    point.metrics.get("small_latency_ns").copied().or_else(pure).map(|ns| ns / 1e3)
}

pub(crate) fn large_mb(point: &Point) -> Option<f64> {
    let pure = || point.bytes_per_second().filter(|_| point.axes.small.unwrap_or(0) == 0);
    point.metrics.get("large_bytes_per_second").copied().or_else(pure).map(|bytes| bytes / 1e6)
}

/// Columns are small loads, rows large ones; what was not measured stays empty.
fn table(points: &Matrix<'_>, cell: impl Fn(&Point) -> Option<String>) -> String {
    let filled: BTreeMap<(u32, u32), String> =
        points.iter().filter_map(|(place, point)| Some((*place, cell(point)?))).collect();
    let columns: BTreeSet<u32> = filled.keys().map(|(_, small)| *small).collect();
    let rows: BTreeSet<u32> = points.keys().map(|(large, _)| *large).collect();
    let mut text = "Large/Small".to_owned();
    for column in &columns {
        write!(text, ", {column:6}").expect("a string takes everything");
    }
    text.push('\n');
    for large in rows {
        write!(text, "{large:11}").expect("a string takes everything");
        let last = columns.iter().rposition(|small| filled.contains_key(&(large, *small)));
        for small in columns.iter().take(last.map_or(0, |last| last + 1)) {
            let value = filled.get(&(large, *small)).map_or("", String::as_str);
            write!(text, ", {value:>6}").expect("a string takes everything");
        }
        text.push('\n');
    }
    text
}

fn summary(run: &Run, name: &str, points: &Matrix<'_>) -> String {
    let size = |is_small: bool| {
        let pure = points.iter().filter(|((large, small), _)| {
            if is_small { *large == 0 && *small > 0 } else { *small == 0 && *large > 0 }
        });
        pure.filter_map(|(_, point)| point.axes.block_bytes).next().map(|bytes| bytes / 1024)
    };
    let first = points.values().next();
    let sequential = points
        .iter()
        .any(|((large, _), point)| *large > 0 && point.axes.access == Some(Access::Sequential));
    let writes = first.and_then(|p| p.axes.read_percent).map(|reads| 100_u8.saturating_sub(reads));
    let flows = points.values().flat_map(|point| point.flows());
    let seconds = flows.map(|flow| flow.runtime_ns / 1_000_000_000).max().filter(|s| *s > 0);
    let types = if sequential { "Large Sequential Streams" } else { "Large Random IOs" };
    let mut lines = vec![
        "ORION VERSION 11.2.0.0.0".to_owned(),
        "Commandline:".to_owned(),
        format!("-run advanced -testname {name} -matrix detailed"),
        "This maps to this test:".to_owned(),
        format!("Test: {name}"),
    ];
    lines.extend(size(true).map(|kb| format!("Small IO size: {kb} KB")));
    lines.extend(size(false).map(|kb| format!("Large IO size: {kb} KB")));
    lines.push(format!("IO Types: Small Random IOs, {types}"));
    lines.extend(writes.map(|share| format!("Write: {share}%")));
    lines.extend(seconds.map(|s| format!("Duration for each Data Point: {s} seconds")));
    lines.push(format!("Total Data Points: {}", points.len()));
    for target in &run.manifest.targets {
        lines.push(format!("Name: {} Size: {}", target.given, target.size_bytes));
    }
    let best = |of: fn(&Point) -> Option<f64>, sign: f64| {
        let all = points.iter().filter_map(|(place, point)| Some((of(point)?, *place)));
        all.max_by(|one, other| (sign * one.0).total_cmp(&(sign * other.0)))
    };
    lines.extend(best(large_mb, 1.0).map(|(mb, (large, small))| {
        format!("Maximum Large MBPS={mb:.2} @ Small={small} and Large={large}")
    }));
    lines.extend(best(small_iops, 1.0).map(|(iops, (large, small))| {
        format!("Maximum Small IOPS={iops:.0} @ Small={small} and Large={large}")
    }));
    lines.extend(best(small_us, -1.0).map(|(us, (large, small))| {
        format!("Minimum Small Latency={us:.2} usecs @ Small={small} and Large={large}")
    }));
    lines.join("\n") + "\n"
}
