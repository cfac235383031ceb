//! Passes and repeats: how a cache learns, and how far repeats agree.

use std::collections::BTreeMap;

use plotly::Scatter;
use plotly::common::{DashType, ErrorData, ErrorType, Line, Mode};

use super::draw::{self, LINES_MAX, PALETTE, axis, from_zero, layout};
use super::page::{Chart, Section, Table, or_dash};
use super::places;
use crate::analysis::Verdicts;
use crate::analysis::repeat::RepeatVerdict;
use crate::analysis::series;
use crate::analysis::steady::Variable;
use crate::analysis::warm_up::WarmUpVerdict;
use crate::result::{Axes, Point, Run};
use crate::table::{figure, percent};

/// The section of warm-ups; `None` when nothing learned.
pub(super) fn warm_up(run: &Run, verdicts: &Verdicts) -> Option<Section> {
    let learned = &verdicts.warm_up;
    if learned.is_empty() {
        return None;
    }
    let mut section = Section::new("Warming up");
    section.text(
        "A pass touches every file, or extent, of the hot set once. The plateau is the mean of \
         the last three passes; the learning cost is what the passes before lost against it.",
    );
    let mut table = Table::new([
        "passes",
        "plateau, 1/s",
        "90 % of it in pass",
        "learning cost, passes",
        "seconds",
        "times the disk",
        "hit rate implied",
        "counted",
    ]);
    for verdict in learned {
        table.row(vec![
            verdict.label.clone(),
            figure(verdict.plateau),
            verdict.passes_to_90.map_or("never".to_owned(), |pass| pass.to_string()),
            format!("{:.1}", verdict.learning_passes),
            or_dash(verdict.learning_s.map(|seconds| format!("{seconds:.2}"))),
            or_dash(verdict.speed_up.map(|times| format!("{times:.2}"))),
            or_dash(verdict.implied_hit_rate.map(percent)),
            or_dash(verdict.counted_hit_rate.map(percent)),
        ]);
    }
    section.table(table);
    section.charts(learned.chunks(LINES_MAX).map(curve));
    section.charts(acceleration(learned));
    section.charts(hits(run));
    Some(section)
}

fn label(axes: &Axes) -> String {
    crate::analysis::label(axes)
}

/// Files per second over the pass.
fn curve(learned: &[WarmUpVerdict]) -> Chart {
    let mut traces = Vec::new();
    let mut rows = BTreeMap::<u32, Vec<Option<f64>>>::new();
    let mut said = Vec::new();
    let labels: Vec<String> = learned.iter().map(|verdict| verdict.label.clone()).collect();
    let names = places::short(&labels);
    for (number, verdict) in learned.iter().enumerate() {
        let points = verdict.passes.iter().map(|(pass, rate)| (f64::from(*pass), *rate));
        traces.push(draw::trace(&*draw::line(&names[number], points, number)));
        let ends = verdict.passes.first().zip(verdict.passes.last());
        if let Some(((first, _), (last, _))) = ends {
            let plateau = Scatter::new(
                vec![f64::from(*first), f64::from(*last)],
                vec![0.9 * verdict.plateau, 0.9 * verdict.plateau],
            )
            .mode(Mode::Lines)
            .name("90 % of the plateau")
            .show_legend(number == 0)
            .line(Line::new().color(PALETTE[number % 8]).width(1.0).dash(DashType::Dot));
            traces.push(draw::trace(&*plateau));
        }
        for (pass, rate) in &verdict.passes {
            rows.entry(*pass).or_insert_with(|| vec![None; learned.len()])[number] = Some(*rate);
        }
        said.push(format!("{}: {}", verdict.label, verdict.text));
    }
    let mut headings = vec!["pass".to_owned()];
    headings.extend(names);
    let mut table = Table::new(headings);
    for (pass, rates) in rows {
        let mut row = vec![pass.to_string()];
        row.extend(rates.into_iter().map(|rate| or_dash(rate.map(figure))));
        table.row(row);
    }
    Chart {
        title: "Learning curve".to_owned(),
        caption: format!("Files (or extents) per second over the pass. {}.", said.join(". ")),
        traces,
        layout: layout().x_axis(axis("pass").dtick(1.0)).y_axis(from_zero("files/s")),
        table,
        is_3d: false,
    }
}

/// On over off, pass by pass, where both were measured.
fn acceleration(learned: &[WarmUpVerdict]) -> Option<Chart> {
    let named = |word: &str, verdict: &WarmUpVerdict| {
        let parts: Vec<&str> = verdict.label.split(", ").collect();
        parts.contains(&word).then(|| {
            let rest: Vec<&str> = parts.into_iter().filter(|part| *part != word).collect();
            rest.join(", ")
        })
    };
    let mut traces = Vec::new();
    let mut table = Table::new(["passes", "pass", "cache on over off"]);
    for on in learned {
        let Some(name) = named("on", on) else { continue };
        let Some(off) = learned.iter().find(|off| named("off", off).as_ref() == Some(&name)) else {
            continue;
        };
        let ratio = |(pass, rate): &(u32, f64)| {
            let before = off.passes.iter().find(|(other, _)| other == pass)?.1;
            (before > 0.0).then_some((f64::from(*pass), rate / before))
        };
        let ratios: Vec<(f64, f64)> = on.passes.iter().filter_map(ratio).collect();
        for (pass, times) in &ratios {
            table.row(vec![name.clone(), draw::short_whole(*pass), format!("{times:.2}")]);
        }
        traces.push(draw::trace(&*draw::line(&name, ratios, traces.len())));
    }
    (!traces.is_empty()).then(|| Chart {
        title: "Acceleration".to_owned(),
        caption: "Passes with the cache over passes without it: 1 is no gain.".to_owned(),
        traces,
        layout: layout().x_axis(axis("pass").dtick(1.0)).y_axis(from_zero("times as fast")),
        table,
        is_3d: false,
    })
}

/// The cache's own hit rate of each pass.
fn hits(run: &Run) -> Option<Chart> {
    let counted = |point: &&Point| {
        point.axes.pass.is_some() && point.cache.is_some_and(|window| window.read_requests > 0)
    };
    let mut series = Vec::<(String, Vec<(f64, f64)>)>::new();
    for point in run.points.iter().filter(|p| series::is_usable(p)).filter(counted) {
        let (Some(pass), Some(window)) = (point.axes.pass, point.cache) else { continue };
        let share = 100.0 * window.read_hits as f64 / window.read_requests as f64;
        let name = label(&point.axes);
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((f64::from(pass), share)),
            None => series.push((name, vec![(f64::from(pass), share)])),
        }
    }
    let mut table = Table::new(["passes", "pass", "read requests served by the SSD, %"]);
    let mut traces = Vec::new();
    for (number, (name, points)) in series.iter().enumerate().take(LINES_MAX) {
        traces.push(draw::trace(&*draw::line(name, points.iter().copied(), number)));
        for (pass, share) in points {
            table.row(vec![name.clone(), draw::short_whole(*pass), format!("{share:.1}")]);
        }
    }
    (!traces.is_empty()).then(|| Chart {
        title: "Hits of each pass".to_owned(),
        caption: "Share of read requests that the cache served wholly, by its own counters over \
                  exactly the pass."
            .to_owned(),
        traces,
        layout: layout().x_axis(axis("pass").dtick(1.0)).y_axis(from_zero("hits, %")),
        table,
        is_3d: false,
    })
}

/// An application's figures over its repeats, with the interval of their mean.
pub(super) fn repeats(run: &Run, verdicts: &Verdicts) -> Option<Section> {
    let mut section = Section::new("Repeats");
    section.charts(application(run));
    let mut table =
        Table::new(["place", "repeats", "mean", "95 % interval", "variation", "verdict"]);
    for verdict in &verdicts.repeats {
        table.row(row(verdict));
    }
    section.table_or_folded("Mean and interval of every place", table);
    (!section.blocks.is_empty()).then_some(section)
}

fn row(verdict: &RepeatVerdict) -> Vec<String> {
    let said = |value: f64| match verdict.variable {
        Variable::BytesPerSecond => format!("{} MB/s", figure(value / 1e6)),
        _ => format!("{} /s", figure(value)),
    };
    let estimate = &verdict.estimate;
    vec![
        verdict.label.clone(),
        estimate.count.to_string(),
        said(estimate.value),
        or_dash(estimate.interval.map(|(low, high)| format!("{} to {}", said(low), said(high)))),
        or_dash(estimate.variation.map(|share| format!("{:.1} %", 100.0 * share))),
        match (verdict.is_repeatable, estimate.count) {
            (true, _) => "repeats within 5 %",
            (false, 0..3) => "three repeats are needed",
            (false, _) => "varies by more than 5 %",
        }
        .to_owned(),
    ]
}

/// Transactions per second of a database, run after run.
fn application(run: &Run) -> Option<Chart> {
    let mut series = Vec::<(String, Vec<(f64, f64)>)>::new();
    for point in run.points.iter().filter(|point| series::is_usable(point)) {
        let (Some(pass), Some(tps)) = (point.axes.pass, point.metrics.get("tps")) else { continue };
        let name = label(&point.axes);
        let at = (f64::from(pass), *tps);
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(at),
            None => series.push((name, vec![at])),
        }
    }
    let mut table = Table::new(["series", "run", "transactions/s"]);
    let mut traces = Vec::new();
    for (number, (name, points)) in series.iter().enumerate().take(LINES_MAX) {
        traces.push(draw::trace(&*draw::line(name, points.iter().copied(), number)));
        for (pass, tps) in points {
            table.row(vec![name.clone(), draw::short_whole(*pass), figure(*tps)]);
        }
    }
    (!traces.is_empty()).then(|| Chart {
        title: "Transactions over repeated runs".to_owned(),
        caption: "Transactions per second, run after run on the same database.".to_owned(),
        traces,
        layout: layout().x_axis(axis("run").dtick(1.0)).y_axis(from_zero("transactions/s")),
        table,
        is_3d: false,
    })
}

/// The systems of a run side by side, where they were given the same jobs.
pub(super) fn side_by_side(run: &Run, places: &[places::Place<'_>]) -> Option<Section> {
    let targets: Vec<&str> = run.manifest.targets.iter().map(|t| t.name.as_str()).collect();
    let mut jobs = Vec::<Axes>::new();
    for place in places {
        let job = Axes { target: String::new(), ..place.axes.clone() };
        if !jobs.contains(&job) {
            jobs.push(job);
        }
    }
    let is_wide = jobs.len() > 24 || targets.len() > 6;
    if jobs.len() < 2 || is_wide {
        return None;
    }
    let of = |target: &str, job: &Axes| {
        let axes = Axes { target: target.to_owned(), ..job.clone() };
        places.iter().find(|place| place.axes == axes)
    };
    let is_shared = |job: &&Axes| targets.iter().filter(|t| of(t, job).is_some()).count() > 1;
    let mut steps: Vec<&str> = jobs.iter().map(|job| job.phase.as_str()).collect();
    steps.sort_unstable();
    steps.dedup();
    // Of a single system only jobs of different names are worth a bar each.
    let is_worth_it = match targets.len() {
        0 | 1 => steps.len() == jobs.len(),
        _ => jobs.iter().any(|job| is_shared(&job)),
    };
    if !is_worth_it {
        return None;
    }
    let mut section = Section::new("Side by side");
    for (unit, is_sequential) in [("requests/s", false), ("MB/s", true)] {
        let value = |place: &places::Place<'_>| match is_sequential {
            true => place.bytes_per_second().map(|rate| rate / 1e6),
            false => place.rate(),
        };
        let of_unit: Vec<Axes> = jobs
            .iter()
            .filter(|job| (job.access == Some(crate::result::Access::Sequential)) == is_sequential)
            .cloned()
            .collect();
        section.charts(bars(&targets, &of_unit, unit, &|t, job| value(of(t, job)?)));
    }
    Some(section)
}

fn bars(
    targets: &[&str],
    jobs: &[Axes],
    unit: &str,
    value: &dyn Fn(&str, &Axes) -> Option<f64>,
) -> Option<Chart> {
    let (mut names, shared) = places::names(jobs);
    let phases: Vec<String> = jobs.iter().map(|job| job.phase.clone()).collect();
    let distinct: std::collections::BTreeSet<&String> = phases.iter().collect();
    if distinct.len() == phases.len() {
        // Where every step has a name of its own, that is enough.
        names = phases;
    }
    let mut headings = vec!["job".to_owned()];
    headings.extend(targets.iter().map(|target| (*target).to_owned()));
    let mut table = Table::new(headings);
    for (name, job) in names.iter().zip(jobs) {
        let mut row = vec![name.clone()];
        row.extend(targets.iter().map(|target| or_dash(value(target, job).map(figure))));
        if row[1..].iter().any(|cell| cell != "-") {
            table.row(row);
        }
    }
    if table.rows.is_empty() {
        return None;
    }
    let mut traces = Vec::new();
    for (number, target) in targets.iter().enumerate() {
        let known =
            names.iter().zip(jobs).filter_map(|(name, job)| Some((name, value(target, job)?)));
        let (x, y): (Vec<String>, Vec<f64>) =
            known.map(|(name, value)| (draw::plain(name), value)).unzip();
        let texts: Vec<String> = y.iter().map(|value| super::page::short(*value)).collect();
        let bar = plotly::Bar::new(x, y)
            .name(draw::plain(target))
            .text_array(texts)
            .text_position(plotly::common::TextPosition::Outside)
            .clip_on_axis(false)
            .marker(plotly::common::Marker::new().color(PALETTE[number % 8]));
        traces.push(draw::trace(&*bar));
    }
    let place = if shared.is_empty() { String::new() } else { format!(": {shared}") };
    Some(Chart {
        title: format!("{unit} of every job{place}"),
        caption: "Every system under the same jobs. The axis is logarithmic.".to_owned(),
        traces,
        layout: layout().x_axis(draw::places("")).y_axis(draw::log_axis(unit)),
        table,
        is_3d: false,
    })
}

/// A value with its interval as the chart library takes it.
pub(super) fn errors(above: Vec<f64>, below: Vec<f64>) -> ErrorData {
    ErrorData::new(ErrorType::Data).array(above).array_minus(below).symmetric(false)
}
