//! A run of small and large loads in the files that Orion 11.2 writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::LabError;
use crate::date::Moment;
use crate::result::{Access, Flow, Histogram, Point, Run, Status};

/// The first bucket of a histogram ends here, the last one at the other, microseconds.
const BUCKETS_US: (u64, u64) = (32, 1 << 28);

/// Writes `NAME_yyyymmdd_hhmm_summary.txt`, `_iops.csv`, `_lat.csv`, `_mbps.csv`, and `_hist.txt` where
/// there are histograms, into a folder, and gives their paths. Microseconds, and MB of a million bytes.
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
    let mut files = vec![
        ("summary.txt", summary(run, name, &points)),
        ("iops.csv", table(&points, |point| small_iops(point).map(|x| format!("{x:.0}")))),
        ("lat.csv", table(&points, |point| small_us(point).map(|us| format!("{us:.2}")))),
        ("mbps.csv", table(&points, |point| large_mb(point).map(|mb| format!("{mb:.2}")))),
    ];
    files.extend(histograms(&points).map(|text| ("hist.txt", text)));
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

/// Reads and writes of the small or the large requests of a point.
fn flows(point: &Point, is_small: bool) -> [Option<&Flow>; 2] {
    let (small, large) = (point.axes.small.unwrap_or(0), point.axes.large.unwrap_or(0));
    let (own, other, name) =
        if is_small { (small, large, "small") } else { (large, small, "large") };
    match point.parts.iter().find(|part| part.name == name) {
        Some(part) => [part.read.as_ref(), part.write.as_ref()],
        None if own > 0 && other == 0 => [point.read.as_ref(), point.write.as_ref()],
        None => [None, None],
    }
}

/// The latencies of every point, small and large requests apart; `None` without any histogram.
fn histograms(points: &Matrix<'_>) -> Option<String> {
    let mut text = String::new();
    for ((large, small), point) in points {
        for (kind, is_small) in [("Small", true), ("Large", false)] {
            let flows = flows(point, is_small);
            let bins = flows.map(|flow| flow.and_then(|flow| flow.histogram.as_ref()));
            if let Some(table) = histogram(bins) {
                let place = format!("@ Small={small} and Large={large}");
                text += &format!("\n{kind} Read / Write Latency Histogram {place}\n{table}");
            }
        }
    }
    let head = "Latencies of each data point, small and large requests apart: how many IOs took so long, \
                and the share of those that took at most so long.\n";
    (!text.is_empty()).then(|| head.to_owned() + &text)
}

/// Reads and writes in buckets that double, up to the one with the longest, then one for the rest.
/// `None` when nothing was counted.
fn histogram(both: [Option<&Histogram>; 2]) -> Option<String> {
    let counts = both.map(|bins| {
        let bins = bins.into_iter().flat_map(Histogram::bins);
        bins.map(|(bin, count)| (Histogram::midpoint_ns(bin), count)).collect::<Vec<_>>()
    });
    let longest = counts.iter().flatten().map(|(ns, _)| *ns).max()?;
    let (first, last) = BUCKETS_US;
    let mut text =
        format!("{:>16}{:>40}{:>26}\n", "Latency:", "# of IOs (read)", "# of IOs (write)");
    let (mut from, mut to) = (0, first);
    while from < last {
        let cell = |counts: &Vec<(u64, u64)>| {
            let up_to = |us: u64| -> u64 {
                let within = counts.iter().filter(|(ns, _)| *ns < us * 1000 || us == last);
                within.map(|(_, count)| count).sum()
            };
            let share = up_to(to) as f64 / up_to(last).max(1) as f64;
            (up_to(to) - if from == 0 { 0 } else { up_to(from) }, share * 100.0)
        };
        let [(reads, read), (writes, write)] = [cell(&counts[0]), cell(&counts[1])];
        writeln!(
            text,
            "{from:>9} - {to:<11}us:{reads:>16} ({read:6.2}%){writes:>15} ({write:6.2}%)"
        )
        .expect("a string takes everything");
        let is_longest = longest < to * 1000;
        (from, to) = (to, if is_longest { last } else { (to * 2).min(last) });
    }
    Some(text)
}

/// Minimum, mean, maximum and deviation of a direction, as Orion says them.
fn latency(point: &Point, (large, small): (u32, u32)) -> Vec<String> {
    let said = |(name, flow): (&str, Option<&Flow>)| {
        let latency = &flow.filter(|flow| flow.requests > 0)?.latency;
        let [mean, least, most, deviation] =
            [latency.mean_ns, latency.min_ns as f64, latency.max_ns as f64, latency.stddev_ns]
                .map(|ns| ns / 1e3);
        Some(format!(
            "Small {name} Latency: avg={mean:.3} us, min={least:.3} us, max={most:.3} us, std \
             dev={deviation:.3} us @ Small={small} and Large={large}"
        ))
    };
    let [read, write] = flows(point, true);
    [("Read", read), ("Write", write)].into_iter().filter_map(said).collect()
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
    if let Some((iops, place @ (large, small))) = best(small_iops, 1.0) {
        lines.push(format!("Maximum Small IOPS={iops:.0} @ Small={small} and Large={large}"));
        lines.extend(latency(points[&place], place));
    }
    if let Some((us, place @ (large, small))) = best(small_us, -1.0) {
        lines
            .push(format!("Minimum Small Latency={us:.2} usecs @ Small={small} and Large={large}"));
        lines.extend(latency(points[&place], place));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double_up_to_the_longest_and_shares_add_up() {
        let mut reads = Histogram::default();
        for (us, count) in [(40, 1), (100, 90), (200, 8), (2000, 1)] {
            (0..count).for_each(|_| reads.record(us * 1000));
        }
        let text = histogram([Some(&reads), None]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 9, "{text}");
        assert_eq!(
            lines[0],
            "        Latency:                         # of IOs (read)          # of IOs (write)"
        );
        for (line, expected) in [
            (1, "        0 - 32         us:               0 (  0.00%)              0 (  0.00%)"),
            (3, "       64 - 128        us:              90 ( 91.00%)              0 (  0.00%)"),
            (7, "     1024 - 2048       us:               1 (100.00%)              0 (  0.00%)"),
            (8, "     2048 - 268435456  us:               0 (100.00%)              0 (  0.00%)"),
        ] {
            assert_eq!(lines[line], expected);
        }
        let mut slow = Histogram::default();
        slow.record(400_000_000_000_000);
        let text = histogram([None, Some(&slow)]).unwrap();
        assert!(text.contains(" 1 (100.00%)"), "longer than the bins tell, and counted: {text}");
        assert_eq!(histogram([Some(&Histogram::default()), None]), None);
    }
}
