//! Clients: how throughput grows with them, and how they share.

use plotly::Scatter;
use plotly::common::{DashType, Line, Mode};

use super::draw::{self, LINES_MAX, from_zero, ladder_axis, layout};
use super::page::{Chart, Section, Table, or_dash};
use super::places;
use crate::analysis::Verdicts;
use crate::analysis::scaling::ScalingVerdict;
use crate::table::figure;

/// Charts of one kind.
const CHARTS_MAX: usize = 6;

/// The section of scaling; `None` when the number of clients did not vary.
pub(super) fn section(verdicts: &Verdicts) -> Option<Section> {
    let all = &verdicts.scaling;
    if all.is_empty() {
        return None;
    }
    let mut section = Section::new("Scaling with clients");
    section.text(
        "Efficiency E(c) is the throughput of c clients divided by c times that of the fewest. \
         Fairness is Jain's index: 1 when all n clients get the same, 1 / n when one gets \
         everything.",
    );
    let mut table = Table::new(["series", "verdict"]);
    all.iter().for_each(|verdict| table.row(vec![verdict.label.clone(), verdict.text.clone()]));
    section.table_or_folded("Verdicts", table);
    let charts = all.chunks(LINES_MAX).take(CHARTS_MAX);
    section.charts(charts.flat_map(|some| [rates(some), efficiency(some)]));
    section.folded("Every number of clients", points(all));
    Some(section)
}

fn points(all: &[ScalingVerdict]) -> Table {
    let mut table = Table::new([
        "series",
        "clients",
        "requests/s",
        "efficiency",
        "fairness (Jain)",
        "slowest over fastest",
        "time in which all were active",
    ]);
    for verdict in all {
        for point in &verdict.points {
            let sharing = point.sharing.as_ref();
            table.row(vec![
                verdict.label.clone(),
                point.clients.to_string(),
                figure(point.rate),
                format!("{:.2}", point.efficiency),
                or_dash(sharing.map(|s| format!("{:.3}", s.jain))),
                or_dash(sharing.map(|s| format!("{:.2}", s.slowest_over_fastest))),
                or_dash(sharing.and_then(|s| s.common_interval).map(crate::table::percent)),
            ]);
        }
    }
    table
}

fn labels(some: &[ScalingVerdict]) -> Vec<String> {
    some.iter().map(|verdict| verdict.label.clone()).collect()
}

fn names(some: &[ScalingVerdict]) -> Vec<String> {
    places::short(&labels(some))
}

fn subject(some: &[ScalingVerdict]) -> String {
    places::subject(&labels(some))
}

fn ladder(some: &[ScalingVerdict]) -> Vec<f64> {
    some.iter().flat_map(|verdict| &verdict.points).map(|p| f64::from(p.clients)).collect()
}

fn rates(some: &[ScalingVerdict]) -> Chart {
    let names = names(some);
    let line = |(number, verdict): (usize, &ScalingVerdict)| {
        let points = verdict.points.iter().map(|p| (f64::from(p.clients), p.rate));
        draw::trace(&*draw::line(&names[number], points, number))
    };
    Chart {
        title: format!("Throughput over clients, {}", subject(some)),
        caption: "Requests per second of all clients together.".to_owned(),
        traces: some.iter().enumerate().map(line).collect(),
        layout: layout()
            .x_axis(ladder_axis("clients", &ladder(some)))
            .y_axis(draw::log_axis("requests/s")),
        table: points(some),
        is_3d: false,
    }
}

fn efficiency(some: &[ScalingVerdict]) -> Chart {
    let names = names(some);
    let line = |(number, verdict): (usize, &ScalingVerdict)| {
        let points = verdict.points.iter().map(|p| (f64::from(p.clients), p.efficiency));
        draw::trace(&*draw::line(&names[number], points, number))
    };
    let mut traces: Vec<_> = some.iter().enumerate().map(line).collect();
    let fair = some.iter().flat_map(|verdict| &verdict.points);
    let fair = fair.filter_map(|p| Some((f64::from(p.clients), p.sharing.as_ref()?.jain)));
    let (x, y): (Vec<f64>, Vec<f64>) = fair.unzip();
    if !x.is_empty() {
        let dots = Scatter::new(x, y).name("fairness (Jain)").mode(Mode::Markers);
        traces.push(draw::trace(&*dots));
    }
    let steps = ladder(some);
    let (low, high) = steps.iter().fold((f64::MAX, 1.0_f64), |(l, h), c| (l.min(*c), h.max(*c)));
    let half = Scatter::new(vec![low, high], vec![0.5, 0.5])
        .name("one half: stop there")
        .mode(Mode::Lines)
        .line(Line::new().color("#525252").width(1.0).dash(DashType::Dot));
    traces.push(draw::trace(&*half));
    Chart {
        title: format!("Efficiency over clients, {}", subject(some)),
        caption: "At 1 each client gets as much as with the fewest clients; below one half, more \
             clients are not worth it."
            .to_owned(),
        traces,
        layout: layout().x_axis(ladder_axis("clients", &steps)).y_axis(from_zero("efficiency")),
        table: points(some),
        is_3d: false,
    }
}
