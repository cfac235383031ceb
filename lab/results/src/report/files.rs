//! The figures for other programs: `points.csv` and `report.json` (`docs/formats/report.md`). Both
//! are made of the same columns, with all digits.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use voltier_block::Format;

use super::page::Line;
use super::summary::{is_partial, state, why};
use super::tables::command;
use crate::analysis::latency::{self, PERCENTILES, percentile_ns};
use crate::analysis::{Comparison, Verdicts, series};
use crate::result::{Access, Flow, Point, Run, Status};

/// The format of `report.json`: no part of it is optional.
const FORMAT: Format = Format { version: 1, features: &[] };

/// `report.json`.
pub(super) fn json(
    run: &Run,
    verdicts: &Verdicts,
    summary: &[Line],
    comparisons: &[Comparison],
) -> String {
    let points: Vec<Value> = run.points.iter().map(json_point).collect();
    let report = json!({
        "version": FORMAT.version,
        "features": [],
        "run": run.manifest,
        "is_partial": is_partial(run),
        "summary": summary,
        "verdicts": verdicts,
        "comparisons": comparisons,
        "rounds": run.rounds,
        "points": points,
    });
    format!("{report:#}\n")
}

fn json_point(point: &Point) -> Value {
    let figures = |columns: Vec<(String, Value)>| {
        Value::Object(columns.into_iter().collect::<Map<String, Value>>())
    };
    let flow = |flow: &Option<Flow>| flow.as_ref().map(|flow| figures(of_flow(flow)));
    json!({
        "id": point.id,
        "axes": point.axes,
        "role": point.role,
        "test": point.test,
        "rounds": point.rounds,
        "status": state(&point.status),
        "status_reason": why(&point.status),
        "started_unix_ms": point.started_unix_ms,
        "command": point.command,
        "total": figures(of_point(point)),
        "read": flow(&point.read),
        "write": flow(&point.write),
        "scheduled": point.scheduled.as_ref().map(|scheduled| json!({
            "read": flow(&scheduled.read),
            "write": flow(&scheduled.write),
        })),
        "cpu": point.cpu,
        "cache": point.cache,
        "metrics": point.metrics,
    })
}

/// Both directions together; what the source does not tell is null.
fn of_point(point: &Point) -> Vec<(String, Value)> {
    let has_figures = !matches!(point.status, Status::Failed(_));
    let known = |value: Option<f64>| json!(value.filter(|_| has_figures));
    let mut columns = vec![
        ("requests_per_second".to_owned(), known(series::rate(point))),
        ("bytes_per_second".to_owned(), known(point.bytes_per_second())),
        ("latency_mean_ns".to_owned(), known(point.latency_mean_ns())),
    ];
    columns.extend(PERCENTILES.iter().map(|percent| {
        let ns = percentile_ns(point, *percent).filter(|_| has_figures);
        (format!("latency_p{percent}_ns"), json!(ns))
    }));
    columns
}

/// One direction. Figures that were printed and not counted have no requests, bytes and times.
fn of_flow(flow: &Flow) -> Vec<(String, Value)> {
    let is_counted = flow.requests > 0;
    let count = |value: u64| json!((is_counted || value > 0).then_some(value));
    let figure = |value: f64| json!((is_counted || value > 0.0).then_some(value));
    let latency = &flow.latency;
    let mut columns: Vec<(String, Value)> = [
        ("requests", count(flow.requests)),
        ("bytes", count(flow.bytes)),
        ("runtime_ns", count(flow.runtime_ns)),
        ("requests_per_second", figure(flow.iops)),
        ("bytes_per_second", figure(flow.bytes_per_second)),
        ("latency_min_ns", count(latency.min_ns)),
        ("latency_mean_ns", figure(latency.mean_ns)),
        ("latency_max_ns", count(latency.max_ns)),
        ("latency_stddev_ns", figure(latency.stddev_ns)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    columns.extend(
        PERCENTILES
            .iter()
            .map(|percent| (format!("latency_p{percent}_ns"), json!(flow.percentile_ns(*percent)))),
    );
    columns
}

/// `points.csv` by RFC 4180: one row a point.
pub(super) fn csv(run: &Run) -> String {
    let metrics: BTreeSet<&str> =
        run.points.iter().flat_map(|point| point.metrics.keys()).map(String::as_str).collect();
    let mut text = String::new();
    let header = columns(&Point::default(), &metrics);
    line(&mut text, header.iter().map(|(name, _)| name.clone()));
    for point in &run.points {
        line(&mut text, columns(point, &metrics).into_iter().map(|(_, value)| cell(&value)));
    }
    text
}

fn line(text: &mut String, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.map(|cell| quoted(&cell)).collect();
    text.push_str(&cells.join(","));
    text.push_str("\r\n");
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

/// An unknown value is an empty cell, never a zero.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// All columns of a point, the same for every point of a run.
fn columns(point: &Point, metrics: &BTreeSet<&str>) -> Vec<(String, Value)> {
    let axes = &point.axes;
    let access = axes.access.map(|access| match access {
        Access::Sequential => "sequential",
        Access::Random => "random",
    });
    let mut columns: Vec<(String, Value)> = [
        ("id", json!(point.id)),
        ("target", json!(axes.target)),
        ("phase", json!(axes.phase)),
        ("round", json!(axes.round)),
        ("pass", json!(axes.pass)),
        ("access", json!(access)),
        ("read_percent", json!(axes.read_percent)),
        ("block_bytes", json!(axes.block_bytes)),
        ("depth", json!(axes.depth)),
        ("jobs", json!(axes.jobs)),
        ("clients", json!(axes.clients)),
        ("small", json!(axes.small)),
        ("large", json!(axes.large)),
        ("stream_depth", json!(axes.stream_depth)),
        ("idle_s", json!(axes.idle_s)),
        ("cache_bytes", json!(axes.cache_bytes)),
        ("role", json!(point.role)),
        ("test", json!(point.test)),
        ("rounds", json!(point.rounds)),
        ("status", json!(state(&point.status))),
        ("status_reason", json!(why(&point.status))),
        ("started_unix_ms", json!(point.started_unix_ms)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    let named = |prefix: &str, figures: Vec<(String, Value)>| -> Vec<(String, Value)> {
        figures.into_iter().map(|(name, value)| (format!("{prefix}_{name}"), value)).collect()
    };
    columns.extend(named("total", of_point(point)));
    for (prefix, flow) in [("read", &point.read), ("write", &point.write)] {
        let figures = match flow {
            Some(flow) => of_flow(flow),
            None => none(of_flow(&Flow::default())),
        };
        columns.extend(named(prefix, figures));
    }
    columns.extend(scheduled(point));
    columns.extend(costs(point));
    columns.extend(
        metrics.iter().map(|name| (format!("metric_{name}"), json!(point.metrics.get(*name)))),
    );
    columns.push(("command".to_owned(), json!(command(&point.command))));
    columns
}

fn none(figures: Vec<(String, Value)>) -> Vec<(String, Value)> {
    figures.into_iter().map(|(name, _)| (name, Value::Null)).collect()
}

/// Processor time and the cache's counters.
/// Latencies of a replay from the time at which each request was due, both directions together.
fn scheduled(point: &Point) -> Vec<(String, Value)> {
    let flows = || point.scheduled.iter().flat_map(|scheduled| scheduled.flows());
    let bins = latency::merged(flows());
    let mean_ns = bins.is_some().then(|| Flow::moments_ns(flows().collect::<Vec<_>>()).0);
    let mut columns = vec![("scheduled_latency_mean_ns".to_owned(), json!(mean_ns))];
    columns.extend(PERCENTILES.iter().map(|percent| {
        let ns = bins.as_ref().and_then(|bins| bins.percentile_ns(*percent));
        (format!("scheduled_latency_p{percent}_ns"), json!(ns))
    }));
    columns
}

fn costs(point: &Point) -> Vec<(String, Value)> {
    let cost = point.cpu;
    let mut columns = vec![
        ("cpu_process_us_per_request", json!(cost.map(|cpu| cpu.process_us_per_request))),
        ("cpu_system_us_per_request", json!(cost.map(|cpu| cpu.system_us_per_request))),
        ("cpu_busiest_thread_percent", json!(cost.and_then(|cpu| cpu.busiest_thread_percent))),
        ("cpu_steal_percent", json!(cost.and_then(|cpu| cpu.steal_percent))),
    ];
    let window = point.cache;
    columns.extend([
        ("cache_read_requests", json!(window.map(|w| w.read_requests))),
        ("cache_read_hits", json!(window.map(|w| w.read_hits))),
        ("cache_read_bypassed", json!(window.map(|w| w.read_bypassed))),
        ("cache_write_requests", json!(window.map(|w| w.write_requests))),
        ("cache_write_hits", json!(window.map(|w| w.write_hits))),
        ("cache_write_bypassed", json!(window.map(|w| w.write_bypassed))),
        ("cache_ssd_written_bytes", json!(window.map(|w| w.ssd_bytes_written))),
        ("cache_origin_read_bytes", json!(window.map(|w| w.origin_bytes_read))),
        ("cache_origin_written_bytes", json!(window.map(|w| w.origin_bytes_written))),
        ("cache_dirty_lines", json!(window.map(|w| w.dirty_lines))),
    ]);
    columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;
    use crate::csv::Table;

    #[test]
    fn every_row_has_every_column_and_hostile_cells_come_back() {
        let mut run = sample::run();
        let name = "a,\"b\"\r\nc=<script>";
        run.points.push(sample::point(name, 1000.5, 1e6, 4));
        run.points.push(Point {
            id: "gone".to_owned(),
            status: Status::Failed("fio ended with 1, so".to_owned()),
            ..Point::default()
        });
        run.points[0].metrics.insert("tps".to_owned(), 12.5);
        let text = csv(&run);
        let columns = text.split("\r\n").next().unwrap().split(',').count();
        assert!(crate::csv::rows(&text).iter().all(|row| row.len() == columns));
        let table = Table::read(&text).unwrap();
        let rows: Vec<_> = table.rows().collect();
        assert_eq!(rows[0].text("id"), Some(name));
        assert_eq!(rows[0].number("read_requests_per_second"), Some(1000.5));
        assert_eq!(rows[0].number("metric_tps"), Some(12.5));
        assert_eq!(rows[0].text("write_requests_per_second"), None);
        assert_eq!(rows[1].text("total_requests_per_second"), None);
        assert_eq!(rows[1].text("status_reason"), Some("fio ended with 1, so"));
    }
}
