//! fio's logs: bandwidth, requests, latencies and histograms over time, of all jobs of a prefix.

use std::collections::BTreeMap;

use super::files::{Files, manifest, target};
use crate::result::{BINS, Flow, Histogram, Latency, Point, Run, Sample, Status};

/// Kinds, the longer names first: `_clat_hist` ends in neither `_clat` nor `_lat`.
const KINDS: [&str; 6] = ["_clat_hist", "_iops", "_clat", "_slat", "_lat", "_bw"];

/// A time beyond this is not one of a run (ten years).
const MS_MAX: u64 = 315_360_000_000;

/// Counts beyond this were never made.
const COUNT_MAX: u64 = 1 << 48;

/// A log by its name: `PREFIX_KIND.JOB.log`, with a host behind it in client mode.
#[derive(Clone, Copy)]
struct Log<'a> {
    prefix: &'a str,
    kind: &'static str,
    /// The job with its host; empty where all jobs wrote one log.
    job: &'a str,
}

fn log(name: &str) -> Option<Log<'_>> {
    let at = name.rfind(".log")?;
    let stem = name[..at].trim_end_matches(|c: char| c.is_ascii_digit());
    let job = &name[stem.len()..];
    let stem = stem.strip_suffix('.').unwrap_or(stem);
    let of = |kind: &&'static str| Some((stem.strip_suffix(*kind)?, *kind));
    let (prefix, kind) = KINDS.iter().find_map(of)?;
    Some(Log { prefix, kind, job })
}

/// The prefix of a log's name; `None` when it is not named like a log of fio.
pub(super) fn prefix(name: &str) -> Option<&str> {
    log(name).map(|log| log.prefix)
}

/// One line: end of the window, direction (0 read, 1 write), size, and what follows.
struct Line<'a> {
    at_ms: u64,
    value: f64,
    direction: usize,
    size: u64,
    rest: Vec<&'a str>,
}

/// The lines of a log; a broken last line is dropped and told.
fn lines<'a>(name: &str, text: &'a str, histogram: bool) -> Result<(Vec<Line<'a>>, bool), String> {
    let mut lines = Vec::new();
    let whole = text.ends_with('\n');
    let count = text.lines().count();
    for (index, given) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match line(given, histogram) {
            Some(line) => lines.push(line),
            None if index + 1 == count && !whole => return Ok((lines, true)),
            None => return Err(format!("{name}, line {}: not a line of a fio log", index + 1)),
        }
    }
    Ok((lines, !whole))
}

fn line(text: &str, histogram: bool) -> Option<Line<'_>> {
    let cells: Vec<&str> = text.split(',').map(str::trim).collect();
    let at_ms = cells.first()?.parse::<u64>().ok().filter(|at| *at <= MS_MAX)?;
    let (value, from) = if histogram { (0.0, 1) } else { (cells.get(1)?.parse().ok()?, 2) };
    // log_window_value=both puts the greatest value of the window behind the mean.
    let from = if !histogram && cells.len() >= 6 && cells.get(2)?.parse::<usize>().ok()? > 2 {
        from + 1
    } else {
        from
    };
    let direction = cells.get(from)?.parse::<usize>().ok().filter(|d| *d <= 2)?;
    let size = cells.get(from + 1)?.parse().ok()?;
    let is_usable = f64::is_finite(value) && value >= 0.0;
    is_usable.then(|| Line { at_ms, value, direction, size, rest: cells[from + 2..].to_vec() })
}

/// A window of one job.
type JobWindow = (String, u64);

/// The figures of one direction in the logs of a prefix.
#[derive(Default)]
struct Direction {
    iops: BTreeMap<JobWindow, f64>,
    /// By the window's number, all jobs together.
    bytes: BTreeMap<u64, f64>,
    /// Sum and number of the means.
    latency: BTreeMap<JobWindow, (f64, f64)>,
    histogram: Option<Histogram>,
    /// Every single latency was logged.
    single: Option<Histogram>,
    size_bytes: u64,
    longest_ns: u64,
}

pub(super) fn parse(name: &str, files: &Files) -> Result<Run, String> {
    let prefix = prefix(name).unwrap_or_default();
    let mut directions = [Direction::default(), Direction::default()];
    let (mut is_cut, mut end_ms, mut window_ms) = (false, 0, 0);
    let belonging = || files.iter().filter_map(|(n, text)| Some((n, text, log(n)?)));
    let mut logs = Vec::new();
    for (name, text, log) in belonging().filter(|(_, _, log)| log.prefix == prefix) {
        let (lines, cut) = lines(name, text, log.kind == "_clat_hist")?;
        is_cut |= cut;
        end_ms = lines.iter().map(|line| line.at_ms).max().unwrap_or(0).max(end_ms);
        if log.kind != "_clat_hist" && lines.iter().all(|line| line.size == 0) {
            window_ms = window_ms.max(step(&lines));
        }
        logs.push((log, lines));
    }
    if logs.iter().all(|(_, lines)| lines.is_empty()) {
        return Err("its logs have no whole line".to_owned());
    }
    // Logs of every request are summed over seconds.
    let window_ms = if window_ms == 0 { 1000 } else { window_ms };
    for (log, lines) in &logs {
        for line in lines.iter().filter(|line| line.direction < 2) {
            keep(&mut directions[line.direction], log, line, window_ms)?;
        }
    }
    let has_clat = logs.iter().any(|(log, lines)| log.kind == "_clat" && !lines.is_empty());
    let mut point = build(&directions, end_ms, window_ms, has_clat);
    if is_cut && point.status == Status::Ok {
        point.status = Status::Partial("a log is cut off: its last line is left out".to_owned());
    }
    point.id = prefix.to_owned();
    point.axes.phase = prefix.to_owned();
    point.axes.target = "target".to_owned();
    let manifest = manifest("fio", vec![target("target", prefix)]);
    Ok(Run { manifest, points: vec![point], ..Run::default() })
}

/// The usual distance of two lines of one direction.
fn step(lines: &[Line<'_>]) -> u64 {
    let first = lines.first().map(|line| line.direction);
    let mut times = lines.iter().filter(|line| Some(line.direction) == first).map(|l| l.at_ms);
    let mut before = times.next().unwrap_or(0);
    let mut steps: Vec<u64> = Vec::new();
    for at in times {
        steps.push(at.saturating_sub(before));
        before = at;
    }
    steps.sort_unstable();
    steps.get(steps.len() / 2).copied().unwrap_or(0)
}

fn keep(
    direction: &mut Direction,
    log: &Log<'_>,
    line: &Line<'_>,
    window_ms: u64,
) -> Result<(), String> {
    let is_single = line.size > 0;
    let per_second = 1000.0 / window_ms as f64;
    let at = (line.at_ms + window_ms / 2) / window_ms;
    let key = || (log.job.to_owned(), at);
    match log.kind {
        "_iops" if is_single => *direction.iops.entry(key()).or_default() += per_second,
        "_iops" => *direction.iops.entry(key()).or_default() += line.value,
        "_bw" if is_single => {
            *direction.bytes.entry(at).or_default() += line.size as f64 * per_second;
        }
        "_bw" => *direction.bytes.entry(at).or_default() += line.value * 1024.0,
        "_clat_hist" => {
            let bins = direction.histogram.get_or_insert_default();
            add_bins(bins, &line.rest)?;
        }
        "_clat" | "_lat" => {
            if is_single && log.kind == "_lat" {
                direction.single.get_or_insert_default().record(line.value as u64);
                direction.size_bytes = direction.size_bytes.saturating_add(line.size);
            }
            // The whole latency where it is logged, else that of the completion.
            if log.kind == "_lat" {
                direction.longest_ns = direction.longest_ns.max(line.value as u64);
                let (sum, count) = direction.latency.entry(key()).or_default();
                (*sum, *count) = (*sum + line.value, *count + 1.0);
            }
        }
        _ => {}
    }
    Ok(())
}

/// A row of counts: 1,856 bins, or half, a quarter ... of them when it is coarse.
fn add_bins(bins: &mut Histogram, counts: &[&str]) -> Result<(), String> {
    let counts: Vec<&&str> = counts.iter().filter(|cell| !cell.is_empty()).collect();
    let coarse = (0..=6).find(|bits| BINS >> bits == counts.len());
    let Some(bits) = coarse else {
        return Err(format!("a histogram of {} bins, fio has {BINS}", counts.len()));
    };
    for (index, count) in counts.iter().enumerate() {
        let count = count.parse::<u64>().ok().filter(|count| *count < COUNT_MAX);
        let Some(count) = count else { return Err("a count that is no number".to_owned()) };
        // The middle of the bins that were put together.
        let bin = (index << bits) + (1 << bits) / 2;
        bins.add(bin.min(BINS - 1), count);
    }
    Ok(())
}

fn build(directions: &[Direction; 2], end_ms: u64, window_ms: u64, has_clat: bool) -> Point {
    let [read, write] = directions;
    let flow = |direction: &Direction| flow(direction, end_ms, window_ms);
    let (read_flow, write_flow) = (flow(read), flow(write));
    let mut series: BTreeMap<u64, Sample> = BTreeMap::new();
    let mut times: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for direction in directions {
        for ((_, at), iops) in &direction.iops {
            series.entry(*at).or_default().iops += iops;
        }
        for (at, bytes) in &direction.bytes {
            series.entry(*at).or_default().bytes_per_second += bytes;
        }
        for (at, sum, weight) in waits(direction) {
            let total = times.entry(at).or_default();
            *total = (total.0 + sum, total.1 + weight);
        }
    }
    for (at, (sum, weight)) in times.into_iter().filter(|(_, (_, weight))| *weight > 0.0) {
        series.entry(at).or_default().latency_mean_ns = sum / weight;
    }
    for (at, sample) in &mut series {
        sample.at_ms = at.saturating_mul(window_ms);
    }
    let status = match (&read_flow, &write_flow) {
        (None, None) if has_clat => Status::Failed("only completion latencies were logged".into()),
        (None, None) => Status::Failed("the logs have no figures".to_owned()),
        _ => Status::Ok,
    };
    let series = series.into_values().collect();
    Point { status, read: read_flow, write: write_flow, series, ..Point::default() }
}

/// Of each window of each job: its number, the sum of the latencies of its requests, and the
/// requests. Where no log has the requests each mean counts as one.
fn waits(direction: &Direction) -> impl Iterator<Item = (u64, f64, f64)> {
    direction.latency.iter().map(|(place, (sum, count))| {
        let weight = match direction.iops.is_empty() {
            true => *count,
            false => direction.iops.get(place).copied().unwrap_or(0.0),
        };
        (place.1, sum / count * weight, weight)
    })
}

fn flow(direction: &Direction, end_ms: u64, window_ms: u64) -> Option<Flow> {
    let windows = (end_ms as f64 / window_ms as f64).max(1.0);
    let (all_iops, all_bytes): (f64, f64) =
        (direction.iops.values().sum(), direction.bytes.values().sum());
    let histogram = direction.histogram.clone().or_else(|| direction.single.clone());
    let histogram = histogram.filter(|bins| bins.total() > 0);
    let counted = direction.single.as_ref().or(direction.histogram.as_ref());
    let requests = counted.map_or(0, Histogram::total);
    let (sum, weight) =
        waits(direction).fold((0.0, 0.0), |(sum, weight), (_, s, w)| (sum + s, weight + w));
    let from_bins = || -> f64 {
        let Some(bins) = &histogram else { return 0.0 };
        let sum: f64 = bins.bins().map(|(b, n)| Histogram::midpoint_ns(b) as f64 * n as f64).sum();
        sum / bins.total().max(1) as f64
    };
    let seconds = end_ms as f64 / 1e3;
    let counted_rate = if seconds > 0.0 { requests as f64 / seconds } else { 0.0 };
    let flow = Flow {
        requests,
        bytes: direction.size_bytes,
        runtime_ns: end_ms.saturating_mul(1_000_000),
        iops: if direction.iops.is_empty() { counted_rate } else { all_iops / windows },
        bytes_per_second: all_bytes / windows,
        latency: Latency {
            max_ns: if direction.single.is_some() { direction.longest_ns } else { 0 },
            mean_ns: if weight > 0.0 { sum / weight } else { from_bins() },
            ..Latency::default()
        },
        histogram,
    };
    let has_any = flow.iops > 0.0 || flow.bytes_per_second > 0.0 || flow.latency.mean_ns > 0.0;
    has_any.then_some(flow)
}
