//! Tables of everything: findings, limits, points, commands, processor time.

use super::page::{Block, Section, Table, latency, megabytes, or_dash};
use super::summary::{state, why};
use crate::analysis::latency::{merged, percentile_ns};
use crate::analysis::{Severity, Verdicts, checks, label, series};
use crate::result::{Flow, Point, Run, Status};
use crate::size::format_bytes;
use crate::table::{figure, percent};

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// The findings of the checks.
pub(super) fn findings(verdicts: &Verdicts) -> Section {
    let mut section = Section::new("Findings");
    if verdicts.findings.is_empty() {
        section.text(format!("No problems: {} consistency checks passed.", checks::CHECKS.len()));
        return section;
    }
    let mut table = Table::new(["severity", "check", "what was found", "points"]);
    for finding in &verdicts.findings {
        let points = match &finding.points[..] {
            some if some.len() <= 4 => some.join(", "),
            many => format!("{} and {} more", many[..3].join(", "), many.len() - 3),
        };
        table.row(vec![
            severity(finding.severity).to_owned(),
            finding.check.clone(),
            finding.text.clone(),
            points,
        ]);
    }
    section.table(table);
    section
}

/// The limits, by block sizes and by outer limits.
pub(super) fn limits(verdicts: &Verdicts) -> Option<Section> {
    let mut section = Section::new("What limits");
    let mut table =
        Table::new(["block sizes of", "verdict", "bandwidth", "requests/s", "crossover"]);
    for bound in &verdicts.bounds {
        let model = &bound.model;
        let of = |value: Option<f64>, said: fn(f64) -> String| {
            or_dash(value.filter(|_| model.is_accepted).map(said))
        };
        table.row(vec![
            bound.label.clone(),
            bound.text.clone(),
            of(model.bandwidth, |rate| format!("{} MB/s", megabytes(rate))),
            of(model.iops, figure),
            of(model.crossover_bytes, |bytes| format!("{:.1} KiB", bytes / 1024.0)),
        ]);
    }
    section.table(table);
    let mut outer = Table::new(["point", "near which outer limit", "share"]);
    for limit in &verdicts.limits {
        outer.row(vec![limit.point.clone(), limit.text.clone(), percent(limit.share)]);
    }
    section.table_or_folded("Points near an outer limit", outer);
    (!section.blocks.is_empty()).then_some(section)
}

/// The three points of every demand grid.
pub(super) fn demand(verdicts: &Verdicts) -> Option<Section> {
    let mut section = Section::new("Demand");
    let mut table =
        Table::new(["target", "step", "which", "threads", "depth", "requests/s", "mean latency"]);
    for verdict in &verdicts.demand {
        let chosen = [
            ("most below 5 ms", &verdict.choices.max),
            ("middle", &verdict.choices.middle),
            ("least", &verdict.choices.min),
        ];
        for (which, demand) in chosen {
            let Some(demand) = demand else { continue };
            table.row(vec![
                verdict.target.clone(),
                verdict.phase.clone(),
                which.to_owned(),
                demand.jobs.to_string(),
                demand.depth.to_string(),
                figure(demand.iops),
                latency(demand.latency_ns),
            ]);
        }
    }
    section.table(table);
    (!section.blocks.is_empty()).then_some(section)
}

/// Replays: how late their requests were made, and latencies from being sent and from the time at
/// which each was due.
pub(super) fn replays(run: &Run) -> Option<Section> {
    let kept = |point: &&Point| point.scheduled.is_some();
    let mut table = Table::new([
        "replay",
        "late, p50",
        "late, p99",
        "mean latency, from being sent",
        "from the time due",
        "p99 latency, from being sent",
        "from the time due",
        "verdict",
    ]);
    for point in run.points.iter().filter(kept) {
        let Some(scheduled) = &point.scheduled else { continue };
        let due: Vec<&Flow> = scheduled.flows().collect();
        let late = |name: &str| or_dash(point.metrics.get(name).map(|ms| latency(ms * 1e6)));
        let due_p99 = merged(due.iter().copied()).and_then(|bins| bins.percentile_ns(99.0));
        table.row(vec![
            label(&point.axes),
            late("late_p50_ms"),
            late("late_p99_ms"),
            or_dash(point.latency_mean_ns().map(latency)),
            latency(Flow::moments_ns(due).0),
            or_dash(percentile_ns(point, 99.0).map(|ns| latency(ns as f64))),
            or_dash(due_p99.map(|ns| latency(ns as f64))),
            match &point.status {
                Status::Ok => "kept its times".to_owned(),
                status => format!("LATE: {}", why(status)),
            },
        ]);
    }
    let mut section = Section::new("Replays");
    section.text(
        "A request that is sent late has already waited, so its latency counted from the time in \
         the trace is longer. A replay is late when one request in a hundred is more than 10 ms \
         late.",
    );
    let is_empty = table.rows.is_empty();
    section.table(table);
    (!is_empty).then_some(section)
}

/// Processor time of every point.
pub(super) fn cpu(verdicts: &Verdicts) -> Option<Section> {
    if verdicts.cpu.is_empty() {
        return None;
    }
    let mut section = Section::new("Processor time of a request");
    section.text(
        "Of the load generator, and of the whole machine (kernel threads and daemons included; other \
         work of the machine too).",
    );
    let mut table = Table::new([
        "point",
        "load generator, us per request",
        "whole machine, us per request",
        "requests/s of one processor",
    ]);
    let us = |value: Option<f64>| or_dash(value.map(|us| format!("{us:.2}")));
    for cost in &verdicts.cpu {
        table.row(vec![
            cost.point.clone(),
            us(cost.process_us_per_request),
            us(cost.system_us_per_request),
            or_dash(cost.iops_per_core.map(figure)),
        ]);
    }
    section.table_or_folded("Every point", table);
    Some(section)
}

/// Every point, and how it was measured.
pub(super) fn points(run: &Run) -> Section {
    let mut section = Section::new("Every point");
    let mut table = Table::new([
        "point",
        "status",
        "requests/s",
        "MB/s",
        "mean latency",
        "p99",
        "p99.9",
        "longest",
        "read hits",
        "write hits",
        "remark",
    ]);
    run.points.iter().for_each(|point| table.row(row(point)));
    section.table_or_folded("Figures of every point", table);
    let metrics = metrics(run);
    section.folded("Further figures by name", metrics);
    let with_commands: Vec<&Point> = run.points.iter().filter(|p| !p.command.is_empty()).collect();
    if !with_commands.is_empty() {
        let mut commands = Table::new(["point", "exact command"]);
        for point in with_commands {
            commands.row(vec![point.id.clone(), command(&point.command)]);
        }
        section.folded("The exact command of every point", commands);
    }
    section.blocks.push(Block::Text(
        "All figures with all their digits: points.csv and report.json beside this page; histograms and \
         time lines: run.jsonl."
            .to_owned(),
    ));
    section
}

fn row(point: &Point) -> Vec<String> {
    // A failed point has no figures, whatever is stored.
    let has_figures = !matches!(point.status, crate::result::Status::Failed(_));
    let shown = |value: Option<String>| or_dash(value.filter(|_| has_figures));
    let p = |percent| percentile_ns(point, percent).map(|ns| latency(ns as f64));
    let longest = point.flows().map(|flow| flow.latency.max_ns).max().filter(|ns| *ns > 0);
    let (read_hits, write_hits) = hits(point);
    vec![
        point.id.clone(),
        state(&point.status).to_owned(),
        shown(series::rate(point).map(figure)),
        shown(point.bytes_per_second().map(megabytes)),
        shown(point.latency_mean_ns().map(latency)),
        shown(p(99.0)),
        shown(p(99.9)),
        shown(longest.map(|ns| latency(ns as f64))),
        shown(read_hits),
        shown(write_hits),
        why(&point.status).to_owned(),
    ]
}

/// Hit rates over exactly the window: counted ones, else those a document prints.
fn hits(point: &Point) -> (Option<String>, Option<String>) {
    let share = |hits: u64, of: u64| (of > 0).then(|| percent(hits as f64 / of as f64));
    let counted = point.cache.map(|window| {
        let reads = share(window.read_hits, window.read_requests);
        (reads, share(window.write_hits, window.write_requests))
    });
    let printed = |name: &str| point.metrics.get(name).map(|value| percent(value / 100.0));
    counted.unwrap_or_else(|| (printed("read_hit_percent"), printed("write_hit_percent")))
}

fn metrics(run: &Run) -> Table {
    let mut table = Table::new(["point", "name", "value"]);
    for point in &run.points {
        for (name, value) in &point.metrics {
            table.row(vec![point.id.clone(), name.clone(), figure(*value)]);
        }
        if let Some(window) = point.cache {
            let bytes = [
                ("written to the SSD", window.ssd_bytes_written),
                ("read from the backing disk", window.origin_bytes_read),
                ("written to the backing disk", window.origin_bytes_written),
            ];
            for (name, value) in bytes {
                table.row(vec![point.id.clone(), name.to_owned(), format_bytes(value)]);
            }
        }
    }
    table
}

/// A command as a shell takes it.
pub(super) fn command(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_typed_again() {
        let words = ["fio", "--name=a b", "--size=1M", "it's"].map(str::to_owned);
        assert_eq!(command(&words), "fio '--name=a b' --size=1M 'it'\\''s'");
    }
}
