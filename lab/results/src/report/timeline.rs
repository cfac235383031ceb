//! Time lines: what each point did while it ran.

use plotly::Scatter;
use plotly::common::{Line, Mode};

use super::draw::{self, LINES_MAX, PALETTE, axis, from_zero, layout, log_axis};
use super::page::{Chart, Section, Table, latency, megabytes, or_dash};
use super::places;
use crate::analysis::series::is_usable;
use crate::result::{Access, Point, RoundsEnd, Run, Sample};
use crate::table::figure;

/// Steps of a plan that get time lines.
const STEPS_MAX: usize = 10;

/// Samples of a line; more are drawn as means of neighbours.
const SAMPLES_MAX: usize = 600;

/// Rows of the table below a chart.
const ROWS_MAX: usize = 60;

/// The section of time lines; `None` when no point kept one.
pub(super) fn section(run: &Run) -> Option<Section> {
    let mut steps = Vec::<Vec<&Point>>::new();
    for point in run.points.iter().filter(|point| is_usable(point) && point.series.len() > 1) {
        let is_same = |step: &&mut Vec<&Point>| {
            step[0].axes.target == point.axes.target && step[0].axes.phase == point.axes.phase
        };
        match steps.iter_mut().find(is_same) {
            Some(step) => step.push(point),
            None => steps.push(vec![point]),
        }
    }
    steps.sort_by_key(|step| !places::is_measurement(step[0]));
    if steps.is_empty() {
        return None;
    }
    let mut section = Section::new("Time lines");
    section.text(
        "What a point did while it ran, sample by sample. A gap in a line is a gap between points.",
    );
    for step in steps.iter().take(STEPS_MAX) {
        section.charts(of_step(run, step));
    }
    if steps.len() > STEPS_MAX {
        section.text(format!("{STEPS_MAX} of {} steps are drawn.", steps.len()));
    }
    Some(section)
}

/// Points of one step, one after the other.
fn of_step(run: &Run, points: &[&Point]) -> Vec<Chart> {
    // Streams are told in bytes; so is what is partly a stream.
    let is_sequential = points.iter().any(|p| p.axes.access == Some(Access::Sequential));
    let unit = if is_sequential { "MB/s" } else { "requests/s" };
    let value = |some: &[(f64, Sample)]| match is_sequential {
        true => mean(some, |sample| sample.bytes_per_second) / 1e6,
        false => mean(some, |sample| sample.iops),
    };
    let lines = in_turn(points);
    let has_latency = points.iter().any(|p| p.series.iter().any(|s| s.latency_mean_ns > 0.0));
    let window = window(run, points, &lines);
    let mut charts = vec![chart(points, &lines, window, (unit, false), value)];
    if has_latency {
        let latency = |some: &[(f64, Sample)]| latency_ns(some) / 1e3;
        charts.push(chart(points, &lines, window, ("mean latency, us", true), latency));
    }
    charts
}

/// The mean of a rate over neighbours, which are equally long.
fn mean(some: &[(f64, Sample)], of: impl Fn(&Sample) -> f64) -> f64 {
    some.iter().map(|(_, sample)| of(sample)).sum::<f64>() / some.len() as f64
}

/// The mean latency of the requests of neighbours: a sample counts by its requests.
fn latency_ns(some: &[(f64, Sample)]) -> f64 {
    let requests = mean(some, |sample| sample.iops);
    let waited = mean(some, |sample| sample.iops * sample.latency_mean_ns);
    // A source may have latencies and no requests.
    if requests > 0.0 { waited / requests } else { mean(some, |sample| sample.latency_mean_ns) }
}

/// Samples with their seconds since the step began: points by their clocks, or end to end where the
/// time was virtual.
fn in_turn(points: &[&Point]) -> Vec<Vec<(f64, Sample)>> {
    let first = points.iter().map(|point| point.started_unix_ms).min().unwrap_or(0);
    let mut end = 0.0_f64;
    let mut lines = Vec::new();
    for point in points {
        let by_clock = (point.started_unix_ms - first) as f64 / 1e3;
        let begin = if by_clock >= end { by_clock } else { end };
        let line: Vec<(f64, Sample)> =
            point.series.iter().map(|s| (begin + s.at_ms as f64 / 1e3, *s)).collect();
        end = line.last().map_or(end, |(at, _)| *at);
        lines.push(line);
    }
    lines
}

/// The seconds of the rounds of the measurement window, where the rounds became steady. `None` of a
/// step that was measured in several sets of rounds, each with its own window.
fn window(run: &Run, points: &[&Point], lines: &[Vec<(f64, Sample)>]) -> Option<(f64, f64)> {
    let rounds = run.rounds_of(points[0]).filter(|all| all.end == Some(RoundsEnd::Steady))?;
    if points.iter().any(|point| point.rounds != points[0].rounds) {
        return None;
    }
    let inside = points.iter().zip(lines).filter(|(point, line)| {
        point.axes.round.is_some_and(|round| rounds.counts(round)) && !line.is_empty()
    });
    let ends = inside.map(|(_, line)| (line[0].0, line[line.len() - 1].0));
    ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
}

fn chart(
    points: &[&Point],
    lines: &[Vec<(f64, Sample)>],
    window: Option<(f64, f64)>,
    (unit, is_log): (&str, bool),
    value: impl Fn(&[(f64, Sample)]) -> f64,
) -> Chart {
    let total: usize = lines.iter().map(Vec::len).sum();
    let every = total.div_ceil(SAMPLES_MAX).max(1);
    let axes: Vec<_> = points.iter().map(|point| point.axes.clone()).collect();
    let (names, shared) = places::names(&axes);
    let mut traces = Vec::new();
    // One colour for each place, however many rounds it has.
    let mut seen = Vec::<&String>::new();
    for (line, name) in lines.iter().zip(&names) {
        let is_first = !seen.contains(&name);
        if is_first {
            seen.push(name);
        }
        let number = seen.iter().position(|known| *known == name).unwrap_or(0);
        let (x, y): (Vec<f64>, Vec<f64>) = line
            .chunks(every)
            .map(|some| {
                let value = value(some);
                (some[some.len() - 1].0, if is_log && value <= 0.0 { f64::NAN } else { value })
            })
            .unzip();
        let color = PALETTE[number % PALETTE.len()];
        let scatter = Scatter::new(x, y)
            .name(draw::plain(name))
            .mode(Mode::Lines)
            .line(Line::new().color(color).width(1.6))
            .legend_group(draw::plain(name))
            .show_legend(is_first);
        traces.push(draw::trace(&*scatter));
    }
    let y = if is_log { log_axis(unit) } else { from_zero(unit) };
    let merged = match every {
        1 => String::new(),
        n => format!(" Lines are means of {n} samples, latencies weighted by requests."),
    };
    let shaded = if window.is_some() { " The steady window is shaded." } else { "" };
    let shapes = window.map(|(from, to)| draw::band(from, to)).into_iter().collect();
    Chart {
        title: format!("{unit} over time: {shared}"),
        caption: format!("{} points, one after the other.{merged}{shaded}", points.len()),
        traces,
        layout: layout()
            .x_axis(axis("seconds"))
            .y_axis(y)
            .shapes(shapes)
            .show_legend(seen.len() > 1 && seen.len() <= LINES_MAX),
        table: table(lines, &names, total),
        is_3d: false,
    }
}

/// Some of the samples; all of them are in `run.jsonl`.
fn table(lines: &[Vec<(f64, Sample)>], names: &[String], total: usize) -> Table {
    let every = total.div_ceil(ROWS_MAX).max(1);
    let mut table = Table::new(["point", "second", "requests/s", "MB/s", "mean latency"]);
    for (line, name) in lines.iter().zip(names) {
        for (at, sample) in line.iter().step_by(every) {
            let known = |value: f64| (value > 0.0).then_some(value);
            table.row(vec![
                name.clone(),
                format!("{at:.2}"),
                figure(sample.iops),
                megabytes(sample.bytes_per_second),
                or_dash(known(sample.latency_mean_ns).map(latency)),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_drawn_as_one_count_by_their_requests() {
        let sample = |iops, latency_mean_ns| Sample { iops, latency_mean_ns, ..Sample::default() };
        let some = [(1.0, sample(900.0, 1e6)), (2.0, sample(100.0, 11e6))];
        assert!((latency_ns(&some) - 2e6).abs() < 1e-6);
        assert!((mean(&some, |sample| sample.iops) - 500.0).abs() < 1e-9);
        let unknown = [(1.0, sample(0.0, 1e6)), (2.0, sample(0.0, 3e6))];
        assert!((latency_ns(&unknown) - 2e6).abs() < 1e-6);
    }
}
