//! Load curves: throughput and latency over the load with the knee marked, and latency against
//! throughput.

use plotly::Scatter;
use plotly::common::{Line, Marker, Mode};
use plotly::layout::Annotation;

use super::draw::{self, LINES_MAX, MARK, from_zero, ladder_axis, layout, log_axis};
use super::page::{Chart, Section, Table, latency, or_dash};
use super::places;
use crate::analysis::Verdicts;
use crate::analysis::knee::{Confidence, CurveVerdict, LoadPoint};
use crate::analysis::usl::Usl;
use crate::table::figure;

/// Curves that get a chart of their own.
const CHARTS_MAX: usize = 6;

/// Charts of latency against throughput.
const AGAINST_MAX: usize = 4;

/// The section of load curves; `None` when there are none.
pub(super) fn section(verdicts: &Verdicts) -> Option<Section> {
    let curves = &verdicts.curves;
    if curves.is_empty() {
        return None;
    }
    let mut section = Section::new("Load curves and the knee");
    section.text(
        "The knee is the load beyond which more requests in flight mostly wait. Four estimators \
         look for it, and the verdict says how far they agree. Below the knee a higher load \
         brings more throughput; above it, mostly more latency.",
    );
    section.table_or_folded("Estimates and verdicts", verdict_table(curves));
    let shown = curves.len().min(CHARTS_MAX);
    section.charts(curves.iter().take(shown).map(over_load));
    if curves.len() > shown {
        section.text(format!(
            "{shown} of {} curves are drawn over the load; all are in the tables.",
            curves.len()
        ));
    }
    section.charts(against_throughput(curves));
    section.folded("Service levels: the highest load that keeps a latency", level_table(curves));
    section.folded("Every load of every curve", load_table(curves));
    Some(section)
}

/// A curve in words.
fn name(curve: &CurveVerdict) -> String {
    format!("{} over {}", curve.label, curve.varies)
}

fn load(value: Option<f64>) -> String {
    or_dash(value.map(|n| draw::short_whole((n * 10.0).round() / 10.0)))
}

fn verdict_table(curves: &[CurveVerdict]) -> Table {
    let headings =
        ["curve", "Kneedle", "N* = Xmax R0", "greatest X / R", "doubling gains < 10 %", "verdict"];
    let mut table = Table::new(headings);
    for curve in curves {
        let knee = &curve.knee;
        table.row(vec![
            name(curve),
            load(knee.kneedle),
            load(knee.asymptotic),
            load(knee.power),
            load(knee.doubling),
            knee.text.clone(),
        ]);
    }
    table
}

fn level_table(curves: &[CurveVerdict]) -> Table {
    let mut table =
        Table::new(["curve", "latency", "highest load", "requests/s there", "law of scaling"]);
    for curve in curves {
        let law = match &curve.knee.usl {
            Usl::Fitted { sigma, kappa, .. } => {
                format!("contention {sigma:.4}, coherency {kappa:.6}")
            }
            Usl::Refused { why } => format!("not fitted: {why}"),
        };
        for level in &curve.knee.service_levels {
            let what = level.percentile.map_or("mean".to_owned(), |p| format!("p{p}"));
            table.row(vec![
                name(curve),
                format!("{what} up to {}", latency(level.limit_ns)),
                load(level.outstanding),
                or_dash(level.iops.map(figure)),
                law.clone(),
            ]);
        }
    }
    table
}

fn load_table(curves: &[CurveVerdict]) -> Table {
    let mut table = Table::new(["curve", "in flight", "requests/s", "mean latency", "p99 latency"]);
    for curve in curves {
        for point in &curve.ladder {
            let mut row = vec![name(curve)];
            row.extend(cells(point));
            table.row(row);
        }
    }
    table
}

fn cells(point: &LoadPoint) -> Vec<String> {
    vec![
        draw::short_whole(point.outstanding),
        figure(point.iops),
        or_dash(point.latency_ns.map(latency)),
        or_dash(point.p99_ns.map(latency)),
    ]
}

/// The load of a curve, by name.
fn load_title(curve: &CurveVerdict) -> &'static str {
    match curve.varies.as_str() {
        "small" => "small requests in flight",
        "large" => "large requests in flight",
        "jobs" => "requests in flight (jobs vary)",
        _ => "requests in flight",
    }
}

fn over_load(curve: &CurveVerdict) -> Chart {
    let ladder = &curve.ladder;
    let rates = ladder.iter().map(|point| (point.outstanding, point.iops));
    let mut traces = vec![draw::trace(&*draw::line("requests/s", rates, 0))];
    for (index, (title, of)) in latencies().into_iter().enumerate() {
        let points: Vec<(f64, f64)> =
            ladder.iter().filter_map(|p| Some((p.outstanding, of(p)? / 1e3))).collect();
        if !points.is_empty() {
            let line = draw::line(title, points, index + 1).y_axis("y2");
            traces.push(draw::trace(&*line));
        }
    }
    traces.extend(estimates(curve));
    let steps: Vec<f64> = ladder.iter().map(|point| point.outstanding).collect();
    let has_latency = ladder.iter().any(|point| point.latency_ns.is_some());
    let mut layout =
        layout().x_axis(ladder_axis(load_title(curve), &steps)).y_axis(from_zero("requests/s"));
    if has_latency {
        layout = layout.y_axis2(draw::right(log_axis("latency, us")));
    }
    let mut shapes = Vec::new();
    let mut words = Vec::<Annotation>::new();
    if let Some(at) = &curve.knee.at {
        shapes.extend(curve.knee.between.map(|(low, high)| draw::band(low, high)));
        shapes.push(draw::upright(at.outstanding));
        let sure = match curve.knee.confidence {
            Confidence::Confident => "knee",
            Confidence::Likely => "knee, likely",
            _ => "no clear knee",
        };
        words.push(draw::words_at(at.outstanding.log10(), sure));
    }
    let mut table = Table::new(["in flight", "requests/s", "mean latency", "p99 latency"]);
    ladder.iter().for_each(|point| table.row(cells(point)));
    Chart {
        title: format!("Load curve: {}", curve.label),
        caption: match curve.knee.at {
            Some(_) => format!("{}. The estimates span the shaded range.", curve.knee.text),
            None => format!("{}.", curve.knee.text),
        },
        traces,
        layout: layout.shapes(shapes).annotations(words),
        table,
        is_3d: false,
    }
}

type Figure = (&'static str, fn(&LoadPoint) -> Option<f64>);

fn latencies() -> [Figure; 2] {
    [("mean latency", |point| point.latency_ns), ("p99 latency", |point| point.p99_ns)]
}

/// The four estimates, on the curve.
fn estimates(curve: &CurveVerdict) -> Vec<serde_json::Value> {
    let knee = &curve.knee;
    let all = [
        ("Kneedle", knee.kneedle),
        ("N*", knee.asymptotic),
        ("greatest X/R", knee.power),
        ("doubling", knee.doubling),
    ];
    let one = |(index, (name, at)): (usize, (&str, Option<f64>))| {
        let at = at.filter(|n| *n > 0.0)?;
        let marker = Marker::new()
            .color(MARK)
            .size(11)
            .symbol(draw::symbol(index))
            .line(Line::new().color("#ffffff").width(1.5));
        let dot = Scatter::new(vec![at], vec![rate_at(&curve.ladder, at)])
            .name(name)
            .mode(Mode::Markers)
            .marker(marker);
        Some(draw::trace(&*dot))
    };
    all.into_iter().enumerate().filter_map(one).collect()
}

/// Throughput at a load between two of the ladder, along its logarithm.
fn rate_at(ladder: &[LoadPoint], n: f64) -> f64 {
    let above = ladder.iter().position(|point| point.outstanding >= n);
    match above {
        Some(0) => ladder[0].iops,
        None => ladder.last().map_or(0.0, |point| point.iops),
        Some(i) => {
            let (low, high) = (&ladder[i - 1], &ladder[i]);
            let span = high.outstanding.ln() - low.outstanding.ln();
            let share = if span > 0.0 { (n.ln() - low.outstanding.ln()) / span } else { 1.0 };
            low.iops + share * (high.iops - low.iops)
        }
    }
}

/// Latency against throughput, some curves to a chart.
fn against_throughput(curves: &[CurveVerdict]) -> Vec<Chart> {
    let known: Vec<&CurveVerdict> =
        curves.iter().filter(|c| c.ladder.iter().any(|p| p.latency_ns.is_some())).collect();
    known.chunks(LINES_MAX).take(AGAINST_MAX).map(against).collect()
}

fn against(curves: &[&CurveVerdict]) -> Chart {
    let mut traces = Vec::new();
    let mut table = Table::new(["curve", "in flight", "requests/s", "mean latency"]);
    let mut knees = (Vec::new(), Vec::new());
    let labels: Vec<String> = curves.iter().map(|curve| curve.label.clone()).collect();
    let names = places::short(&labels);
    for (number, curve) in curves.iter().enumerate() {
        let known = curve.ladder.iter().filter_map(|p| Some((p, p.latency_ns?)));
        let known: Vec<(&LoadPoint, f64)> = known.collect();
        let points = known.iter().map(|(point, ns)| (point.iops, ns / 1e3));
        let loads = known.iter().map(|(point, _)| format!("N={}", point.outstanding));
        let line = draw::line(&names[number], points, number).hover_text_array(loads.collect());
        traces.push(draw::trace(&*line));
        let at = curve.knee.at.as_ref().and_then(|at| Some((at.iops, at.latency_ns? / 1e3)));
        if let Some((x, y)) = at {
            knees.0.push(x);
            knees.1.push(y);
        }
        for (point, ns) in &known {
            table.row(vec![
                name(curve),
                draw::short_whole(point.outstanding),
                figure(point.iops),
                latency(*ns),
            ]);
        }
    }
    if !knees.0.is_empty() {
        let ring = Marker::new()
            .color(MARK)
            .size(15)
            .symbol(plotly::common::MarkerSymbol::CircleOpen)
            .line(Line::new().color(MARK).width(2.0));
        let dots = Scatter::new(knees.0, knees.1).name("knee").mode(Mode::Markers).marker(ring);
        traces.push(draw::trace(&*dots));
    }
    let layout = layout().x_axis(from_zero("requests/s")).y_axis(log_axis("mean latency, us"));
    let what = match curves {
        [only] => only.label.clone(),
        _ => places::subject(&labels),
    };
    Chart {
        title: format!("Latency against throughput: {what}"),
        caption: "Each step of a line is a higher load. Where a line turns upwards more load buys \
                  latency, not throughput; rings mark the knees."
            .to_owned(),
        traces,
        layout: layout.show_legend(curves.len() > 1),
        table,
        is_3d: false,
    }
}
