//! Latency by nines: what the slowest of a hundred, a thousand, a million requests waited.

use super::draw::{self, LINES_MAX, axis, layout, log_axis};
use super::page::{Chart, Section, Table, latency, or_dash};
use super::places::{self, Place};
use crate::analysis::latency::PERCENTILES;

/// Charts of one report.
const CHARTS_MAX: usize = 8;

/// The section of latencies; `None` when no point has percentiles.
pub(super) fn section(places: &[Place<'_>]) -> Option<Section> {
    let known: Vec<&Place<'_>> = places.iter().filter(|place| !steps(place).is_empty()).collect();
    if known.is_empty() {
        return None;
    }
    let mut section = Section::new("Latency percentiles");
    section.text(
        "Percentiles come from the histograms of all repeats together; they are never averaged. A \
         percentile is drawn only where enough requests were measured to have one.",
    );
    let mut steps = Vec::<Vec<&Place<'_>>>::new();
    for place in &known {
        let is_same = |step: &&mut Vec<&Place<'_>>| {
            (&step[0].axes.target, &step[0].axes.phase) == (&place.axes.target, &place.axes.phase)
        };
        match steps.iter_mut().find(is_same) {
            Some(step) => step.push(place),
            None => steps.push(vec![place]),
        }
    }
    // Steps of one place each belong side by side.
    let (single, several): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.len() == 1);
    let single: Vec<&Place<'_>> = single.into_iter().flatten().collect();
    let mut charts: Vec<Chart> = single.chunks(LINES_MAX).map(chart).collect();
    charts.extend(several.iter().map(|step| chart(step)));
    let all = charts.len();
    section.charts(charts.into_iter().take(CHARTS_MAX));
    if all > CHARTS_MAX {
        section.text(format!("{CHARTS_MAX} of {all} steps are drawn; the table has them all."));
    }
    section.folded("Percentiles of every place", table(&known));
    Some(section)
}

/// Percentile in percent, and its latency, as far as the requests reach.
fn steps(place: &Place<'_>) -> Vec<(f64, f64)> {
    let requests = place.histogram().map(|bins| bins.total());
    let is_there = |percent: &f64| {
        let beyond = requests.map(|all| all as f64 * (1.0 - percent / 100.0));
        beyond.is_none_or(|beyond| beyond >= 1.0)
    };
    let of = |percent: f64| Some((percent, place.percentile_ns(percent).filter(|ns| *ns > 0.0)?));
    PERCENTILES.into_iter().filter(is_there).filter_map(of).collect()
}

/// Where a percentile stands: one unit for each nine.
fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).log10()
}

fn chart(places: &[&Place<'_>]) -> Chart {
    // If there are many places, only every n-th one is drawn.
    let every = places.len().div_ceil(LINES_MAX).max(1);
    let shown: Vec<&Place<'_>> = places.iter().copied().step_by(every).collect();
    let axes: Vec<_> = shown.iter().map(|place| place.axes.clone()).collect();
    let (names, shared) = places::names(&axes);
    let mut traces = Vec::new();
    for (number, (place, name)) in shown.iter().zip(&names).enumerate() {
        let points = steps(place).into_iter().map(|(percent, ns)| (nines(percent), ns / 1e3));
        traces.push(draw::trace(&*draw::line(name, points, number)));
    }
    let ticks: Vec<f64> = PERCENTILES.iter().map(|percent| nines(*percent)).collect();
    let texts: Vec<String> = PERCENTILES.iter().map(|percent| format!("p{percent}")).collect();
    let x = axis("share of requests").tick_values(ticks).tick_text(texts);
    let some = match every {
        1 => String::new(),
        _ => format!(" {} of {} are drawn.", shown.len(), places.len()),
    };
    Chart {
        title: format!("Latency percentiles: {shared}"),
        caption: format!("Each step to the right is a tenth of the requests.{some}"),
        traces,
        layout: layout().x_axis(x).y_axis(log_axis("latency, us")),
        table: table(&shown),
        is_3d: false,
    }
}

fn table(places: &[&Place<'_>]) -> Table {
    let mut headings = vec!["place".to_owned(), "requests".to_owned(), "mean".to_owned()];
    headings.extend(PERCENTILES.iter().map(|percent| format!("p{percent}")));
    headings.push("longest".to_owned());
    let mut table = Table::new(headings);
    for place in places {
        let known = steps(place);
        let requests = place.histogram().map(|bins| bins.total().to_string());
        let mut row = vec![crate::analysis::label(&place.axes), or_dash(requests)];
        row.push(or_dash(place.latency_ns().map(latency)));
        row.extend(PERCENTILES.iter().map(|percent| {
            let found = known.iter().find(|(known, _)| known == percent);
            or_dash(found.map(|(_, ns)| latency(*ns)))
        }));
        row.push(or_dash(place.latency_max_ns().map(latency)));
        table.row(row);
    }
    table
}
