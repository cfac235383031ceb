//! Rounds: how the figures became steady, and the measurement window with its criteria.

use std::collections::BTreeMap;

use plotly::Scatter;
use plotly::common::{DashType, Line, Mode};

use super::draw::{self, LINES_MAX, MARK, axis, from_zero, layout};
use super::page::{Chart, Section, Table, latency, megabytes, or_dash};
use super::places;
use crate::analysis::Verdicts;
use crate::analysis::steady::{SteadyVerdict, Variable, Window};
use crate::table::figure;

/// Steps of a plan that get charts.
const STEPS_MAX: usize = 12;

/// The section of steady states; `None` when nothing has rounds.
pub(super) fn section(verdicts: &Verdicts) -> Option<Section> {
    let tracked: Vec<&SteadyVerdict> = verdicts.steady.iter().filter(|s| s.is_tracking).collect();
    if tracked.is_empty() {
        return None;
    }
    let mut section = Section::new("Steady state");
    section.text(
        "The state is steady when the greatest difference of five rounds in a row is at most 20 \
         % of their mean, and their fitted line rises or falls by at most 10 % of it. The \
         figures in the tables are means of these rounds, the window. NOT ACHIEVED is a result.",
    );
    section.table(window_table(&tracked));
    for steady in tracked.iter().take(STEPS_MAX) {
        section.charts([convergence(verdicts, steady)]);
        section.charts(steady.window.map(|window| measured(steady, &window)));
    }
    section.folded("Every round of every series", round_table(&verdicts.steady));
    Some(section)
}

/// A value of the tracked variable as people read it.
fn said(variable: Variable, value: f64) -> String {
    match variable {
        Variable::Iops => format!("{} /s", figure(value)),
        Variable::BytesPerSecond => format!("{} MB/s", megabytes(value)),
        Variable::LatencyNs => latency(value),
    }
}

/// A value in the unit of its axis.
fn scaled(variable: Variable, value: f64) -> f64 {
    match variable {
        Variable::Iops => value,
        Variable::BytesPerSecond => value / 1e6,
        Variable::LatencyNs => value / 1e3,
    }
}

fn unit(variable: Variable) -> &'static str {
    match variable {
        Variable::Iops => "requests/s",
        Variable::BytesPerSecond => "MB/s",
        Variable::LatencyNs => "mean latency, us",
    }
}

fn window_table(tracked: &[&SteadyVerdict]) -> Table {
    let mut table = Table::new([
        "tracked",
        "rounds",
        "window",
        "mean",
        "data excursion, measured",
        "allowed",
        "slope excursion, measured",
        "allowed",
        "fit",
        "correlation",
        "verdict",
    ]);
    for steady in tracked {
        let of = |value: fn(&Window) -> f64| {
            or_dash(steady.window.as_ref().map(|window| said(steady.variable, value(window))))
        };
        let window = steady.window.as_ref();
        table.row(vec![
            steady.label.clone(),
            steady.rounds.len().to_string(),
            or_dash(window.map(|w| format!("{} - {}", w.first_round, w.last_round))),
            of(|w| w.mean),
            of(|w| w.range),
            of(|w| w.range_allowed),
            of(|w| w.slope_excursion),
            of(|w| w.slope_allowed),
            or_dash(window.map(|w| {
                let (k, d) =
                    (scaled(steady.variable, w.slope), scaled(steady.variable, w.intercept));
                format!("{k:.3} R + {d:.1}")
            })),
            or_dash(window.and_then(|w| w.correlation).map(|r| format!("{r:.3}"))),
            steady.text.clone(),
        ]);
    }
    table
}

fn round_table(all: &[SteadyVerdict]) -> Table {
    let mut table = Table::new(["series", "tracked", "round", "value"]);
    for steady in all {
        for (round, value) in &steady.rounds {
            table.row(vec![
                steady.label.clone(),
                if steady.is_tracking { "yes" } else { "-" }.to_owned(),
                round.to_string(),
                said(steady.variable, *value),
            ]);
        }
    }
    table
}

/// All rounds: one line for each series of writes (of all, where there are few).
fn convergence(verdicts: &Verdicts, tracked: &SteadyVerdict) -> Chart {
    let mut of_step: Vec<&SteadyVerdict> =
        verdicts.steady.iter().filter(|series| series.of == tracked.of).collect();
    if of_step.len() > LINES_MAX {
        // The standard shows the sizes of writes alone.
        of_step.retain(|steady| steady.is_tracking || steady.label.contains(", 0 % reads"));
    }
    of_step.truncate(LINES_MAX);
    let variable = tracked.variable;
    let mut traces = Vec::new();
    let mut rounds = BTreeMap::<u32, Vec<Option<f64>>>::new();
    let labels: Vec<String> = of_step.iter().map(|steady| steady.label.clone()).collect();
    let names = places::short(&labels);
    for (number, steady) in of_step.iter().enumerate() {
        let points = steady.rounds.iter().map(|(r, y)| (f64::from(*r), scaled(variable, *y)));
        traces.push(draw::trace(&*draw::line(&names[number], points, number)));
        for (round, value) in &steady.rounds {
            let row = rounds.entry(*round).or_insert_with(|| vec![None; of_step.len()]);
            row[number] = Some(*value);
        }
    }
    let mut headings = vec!["round".to_owned()];
    headings.extend(names);
    let mut table = Table::new(headings);
    for (round, values) in rounds {
        let mut row = vec![round.to_string()];
        row.extend(values.into_iter().map(|value| or_dash(value.map(|y| said(variable, y)))));
        table.row(row);
    }
    let window = tracked.window.as_ref();
    let shapes =
        window.map(|w| draw::band(f64::from(w.first_round) - 0.3, f64::from(w.last_round) + 0.3));
    let layout = layout()
        .x_axis(axis("round").dtick(whole_step(tracked.rounds.len())))
        .y_axis(from_zero(unit(variable)))
        .shapes(shapes.into_iter().collect());
    Chart {
        title: format!("Convergence: {}", tracked.of.as_deref().unwrap_or(&tracked.phase)),
        caption: "Each series over the rounds. The measurement window is shaded.".to_owned(),
        traces,
        layout,
        table,
        is_3d: false,
    }
}

fn whole_step(rounds: usize) -> f64 {
    if rounds > 30 { 60.0 } else { rounds.div_ceil(12).max(1) as f64 }
}

/// The window: the tracked variable, its mean, 110 % and 90 % of it, and the fitted line.
fn measured(steady: &SteadyVerdict, window: &Window) -> Chart {
    let (first, last) = (f64::from(window.first_round), f64::from(window.last_round));
    let variable = steady.variable;
    let inside = window.first_round..=window.last_round;
    let five: Vec<(u32, f64)> =
        steady.rounds.iter().copied().filter(|(round, _)| inside.contains(round)).collect();
    let points = five.iter().map(|(r, y)| (f64::from(*r), scaled(variable, *y)));
    let mut traces = vec![draw::trace(&*draw::line("measured", points, 0))];
    let mut flat = |name: &str, from: f64, to: f64, dash: DashType, color: &'static str| {
        let ends = [scaled(variable, from), scaled(variable, to)];
        let line = Scatter::new(vec![first, last], ends.to_vec())
            .name(name)
            .mode(Mode::Lines)
            .line(Line::new().color(color).width(1.5).dash(dash));
        traces.push(draw::trace(&*line));
    };
    let mean = window.mean;
    flat("average", mean, mean, DashType::Solid, "#525252");
    flat("110 % of it", 1.1 * mean, 1.1 * mean, DashType::Dot, "#d55e00");
    flat("90 % of it", 0.9 * mean, 0.9 * mean, DashType::Dot, "#d55e00");
    let fit = |round: f64| window.slope * round + window.intercept;
    flat("slope", fit(first), fit(last), DashType::Dash, MARK);
    let mut table = Table::new(["round", "measured", "average", "90 %", "110 %", "fitted line"]);
    for (round, value) in &five {
        let all = [*value, mean, 0.9 * mean, 1.1 * mean, fit(f64::from(*round))];
        let mut row = vec![round.to_string()];
        row.extend(all.iter().map(|value| said(variable, *value)));
        table.row(row);
    }
    Chart {
        title: format!("Measurement window: {}", steady.label),
        caption: format!("{}.", steady.text),
        traces,
        layout: layout().x_axis(axis("round").dtick(1.0)).y_axis(axis(unit(variable)).n_ticks(6)),
        table,
        is_3d: false,
    }
}
