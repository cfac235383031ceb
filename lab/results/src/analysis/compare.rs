//! Runs side by side: the ratio of every figure to that of the first run, with its interval.

use serde::Serialize;

use super::latency;
use super::series::{self, Series, label};
use super::stats::{self, Estimate, Repeats};
use crate::result::{Axes, Point, Run};

/// Below this difference two figures are the same.
pub const SAME: f64 = 0.03;

/// Runs beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Names of the runs, the first the base.
    pub runs: Vec<String>,
    /// One row for each place in the plan and figure that the first run and another have.
    pub rows: Vec<Row>,
    /// Notes that a reader must know before the figures.
    pub notes: Vec<String>,
}

/// One figure of one place in the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The place in words.
    pub label: String,
    /// `iops`, `bytes_per_second`, `latency_mean_ns`, `latency_p99_ns`, or an application's figure.
    pub figure: String,
    /// One for each run; `None` where it has no such figure.
    pub cells: Vec<Option<Cell>>,
}

/// One run's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The points of the cell.
    pub points: Vec<String>,
    /// The figure of all repeats and its interval.
    pub estimate: Estimate,
    /// Against the first run; `None` in the first run itself.
    pub against: Option<Against>,
}

/// A figure against that of the first run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Against {
    /// This over the first.
    pub ratio: f64,
    /// 95 % interval of the ratio; `None` when one of them was measured once.
    pub interval: Option<(f64, f64)>,
    /// Two-sided p of the Mann-Whitney test; `None` below five measurements each.
    pub mann_whitney_p: Option<f64>,
    /// The verdict.
    pub difference: Difference,
}

/// Whether a figure differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Below 3 %, or 1 lies inside the interval.
    Same,
    /// Better than the first: more throughput, less latency.
    Better,
    /// Worse than the first.
    Worse,
    /// More than 3 %, but measured once: repeat it.
    Unconfirmed,
}

/// The repeats of a place in one run; `None` where the run has no such place.
type Column<'a> = Option<Vec<&'a Point>>;

/// A figure of a point: how repeats are put together.
enum Figure<'a> {
    /// A rate or a mean.
    Mean(&'a dyn Fn(&Point) -> Option<f64>),
    /// A percentile of the latencies of all repeats.
    Percentile(f64),
    /// A percentile that a program printed: nothing puts several together.
    Printed(&'a dyn Fn(&Point) -> Option<f64>),
}

impl Figure<'_> {
    fn of(&self, point: &Point) -> Option<f64> {
        match self {
            Figure::Mean(of) | Figure::Printed(of) => of(point),
            Figure::Percentile(percent) => {
                latency::percentile_ns(point, *percent).map(|ns| ns as f64)
            }
        }
    }

    /// The figure of each point that has it, and of all together.
    fn repeats(&self, points: &[&Point]) -> Option<Repeats> {
        let values: Vec<f64> = points.iter().filter_map(|point| self.of(point)).collect();
        match self {
            Figure::Mean(_) => Repeats::of_mean(values),
            Figure::Percentile(percent) => {
                let whole = latency::percentile_of(points, *percent)? as f64;
                Some(Repeats { values, whole })
            }
            Figure::Printed(_) => Repeats::of_mean(values).filter(|all| all.values.len() == 1),
        }
    }
}

/// The figures of every plan, by name.
const FIGURES: [(&str, Figure<'static>); 4] = [
    ("iops", Figure::Mean(&Point::iops)),
    ("bytes_per_second", Figure::Mean(&Point::bytes_per_second)),
    ("latency_mean_ns", Figure::Mean(&Point::latency_mean_ns)),
    ("latency_p99_ns", Figure::Percentile(99.0)),
];

/// Compares runs, place by place in the plan. Rounds and passes of one place are its repeats.
pub fn compare(runs: &[Run]) -> Comparison {
    let names = runs.iter().map(|run| run.manifest.run.clone()).collect();
    let groups: Vec<Vec<Series<'_>>> = runs.iter().map(grouped).collect();
    let mut rows = Vec::new();
    let Some((base, others)) = groups.split_first() else {
        return Comparison { runs: names, rows, notes: Vec::new() };
    };
    for series in base {
        let mut columns = vec![Some(series)];
        columns
            .extend(others.iter().zip(&runs[1..]).map(|(g, run)| matching(series, run, g, runs)));
        let columns: Vec<Column<'_>> = columns
            .into_iter()
            .zip(runs)
            .map(|(column, run)| column.map(|found| series::in_window(run, &found.points)))
            .collect();
        if columns[1..].iter().any(Option::is_some) {
            rows.extend(rows_of(&label(&series.axes), &columns));
        }
    }
    Comparison { runs: names, rows, notes: notes(runs) }
}

fn grouped(run: &Run) -> Vec<Series<'_>> {
    series::group(run, |axes| (axes.round, axes.pass) = (None, None))
}

/// The same place in another run: by all axes; where a run has one target only, whatever its name. The
/// last try is by all axes but the name of the step, if that is one place.
fn matching<'a, 'b>(
    series: &Series<'_>,
    run: &Run,
    groups: &'b [Series<'a>],
    runs: &[Run],
) -> Option<&'b Series<'a>> {
    let single = |run: &Run| run.manifest.targets.len() <= 1;
    let any_target = single(run) && runs.first().is_some_and(single);
    let plain = |axes: &Axes, with_phase: bool| {
        let mut axes = axes.clone();
        if any_target {
            axes.target.clear();
        }
        if !with_phase {
            axes.phase.clear();
        }
        axes
    };
    let find = |with_phase: bool| {
        let wanted = plain(&series.axes, with_phase);
        let mut found = groups.iter().filter(move |g| plain(&g.axes, with_phase) == wanted);
        let first = found.next();
        (first, found.next().is_some())
    };
    match find(true) {
        (Some(found), _) => Some(found),
        (None, _) => match find(false) {
            (found, false) => found,
            (_, true) => None,
        },
    }
}

fn rows_of(label: &str, columns: &[Column<'_>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, figure) in &FIGURES {
        rows.extend(row(label, columns, name, figure));
    }
    let named = columns[0].iter().flatten().flat_map(|point| point.metrics.keys());
    for name in named.collect::<std::collections::BTreeSet<_>>() {
        let of = |point: &Point| point.metrics.get(name.as_str()).copied();
        let figure = match latency::is_percentile(name) {
            true => Figure::Printed(&of),
            false => Figure::Mean(&of),
        };
        rows.extend(row(label, columns, name, &figure));
    }
    rows
}

fn row(label: &str, columns: &[Column<'_>], name: &str, figure: &Figure<'_>) -> Option<Row> {
    let samples: Vec<Option<(Vec<String>, Repeats)>> = columns
        .iter()
        .map(|column| {
            let has_figure = |point: &&&Point| figure.of(point).is_some();
            let points: Vec<&Point> = column.as_ref()?.iter().filter(has_figure).copied().collect();
            let ids = points.iter().map(|point| point.id.clone()).collect();
            Some((ids, figure.repeats(&points)?))
        })
        .collect();
    let (_, base) = samples[0].as_ref()?;
    if samples[1..].iter().all(Option::is_none) {
        return None;
    }
    let costs = ["latency", "_us_", "miss_ratio", "late_p"];
    let is_cost = name.ends_with("_ns") || costs.iter().any(|cost| name.contains(cost));
    let cell = |(index, sample): (usize, &Option<(Vec<String>, Repeats)>)| {
        let (points, repeats) = sample.as_ref()?;
        let against = (index > 0).then(|| against(base, repeats, is_cost)).flatten();
        Some(Cell { points: points.clone(), estimate: repeats.estimate(), against })
    };
    let cells = samples.iter().enumerate().map(cell).collect();
    Some(Row { label: label.to_owned(), figure: name.to_owned(), cells })
}

/// Repeats against those of the first run. `less_is_better` for latencies. `None` when a figure is
/// not positive.
pub fn against(base: &Repeats, repeats: &Repeats, less_is_better: bool) -> Option<Against> {
    if !(base.whole > 0.0 && repeats.whole > 0.0) {
        return None;
    }
    let ratio = repeats.whole / base.whole;
    let interval = ratio_interval(base, repeats, ratio);
    let inside = interval.is_some_and(|(low, high)| low <= 1.0 && 1.0 <= high);
    let difference = match () {
        () if (ratio - 1.0).abs() < SAME || inside => Difference::Same,
        () if interval.is_none() => Difference::Unconfirmed,
        () if (ratio > 1.0) != less_is_better => Difference::Better,
        () => Difference::Worse,
    };
    let mann_whitney_p = mann_whitney(&base.values, &repeats.values);
    Some(Against { ratio, interval, mann_whitney_p, difference })
}

/// Welch's interval of the difference of the logarithms, by the delta method.
fn ratio_interval(base: &Repeats, repeats: &Repeats, ratio: f64) -> Option<(f64, f64)> {
    let part = |sample: &Repeats| {
        let count = sample.values.len() as f64;
        Some(((sample.deviation()? / sample.whole).powi(2) / count, count - 1.0))
    };
    let ((one, n), (other, m)) = (part(base)?, part(repeats)?);
    let variance = one + other;
    if variance == 0.0 {
        return Some((ratio, ratio));
    }
    let degrees = variance.powi(2) / (one.powi(2) / n + other.powi(2) / m);
    let half = stats::t_95(degrees) * variance.sqrt();
    Some((ratio * (-half).exp(), ratio * half.exp()))
}

/// Two-sided p by the normal approximation with the correction for ties.
pub fn mann_whitney(one: &[f64], other: &[f64]) -> Option<f64> {
    let (n, m) = (one.len() as f64, other.len() as f64);
    if one.len() < 5 || other.len() < 5 {
        return None;
    }
    let wins = |a: &f64| {
        other
            .iter()
            .map(|b| {
                if a > b {
                    1.0
                } else if a == b {
                    0.5
                } else {
                    0.0
                }
            })
            .sum::<f64>()
    };
    let u: f64 = one.iter().map(wins).sum();
    let mut all: Vec<f64> = one.iter().chain(other).copied().collect();
    all.sort_by(f64::total_cmp);
    let ties: f64 = all
        .chunk_by(|a, b| a == b)
        .map(|equal| (equal.len() as f64).powi(3) - equal.len() as f64)
        .sum();
    let total = n + m;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return Some(1.0);
    }
    let z = (((u - n * m / 2.0).abs() - 0.5).max(0.0)) / variance.sqrt();
    Some(complementary_error(z / std::f64::consts::SQRT_2))
}

/// 1 - erf(x) for x >= 0 by Abramowitz and Stegun 7.1.26, to 1.5e-7.
fn complementary_error(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let c = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let polynomial = c.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    polynomial * (-x * x).exp()
}

fn notes(runs: &[Run]) -> Vec<String> {
    let mut notes = Vec::new();
    for run in runs {
        let name = &run.manifest.run;
        if run.manifest.is_simulation {
            notes.push(format!("{name}: modelled drives, virtual time"));
        }
        if let Some(source) = &run.manifest.imported_from {
            notes.push(format!("{name}: figures from {source}"));
        }
        if run.is_cut {
            notes.push(format!("{name}: its file is cut off, the last point is missing"));
        }
    }
    let texts: Vec<u32> = runs.iter().map(|run| run.manifest.plan_crc32c).collect();
    if texts.windows(2).any(|pair| pair[0] != pair[1]) {
        notes.push("the runs were not made by the same plan".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;

    fn run(name: &str, factor: f64) -> Run {
        let mut run = sample::run();
        run.manifest.run = name.to_owned();
        for pass in 1..=5 {
            let swing = 1.0 + f64::from(pass % 3) / 100.0;
            let mut point =
                sample::point(&format!("p{pass}"), 1000.0 * factor * swing, 1e5 / factor, 4);
            point.axes.pass = Some(pass);
            run.points.push(point);
        }
        run
    }

    #[test]
    fn a_faster_run_is_better_in_both_figures() {
        let compared = compare(&[run("a", 1.0), run("b", 1.5), run("c", 1.01)]);
        let of = |figure: &str, column: usize| {
            let row = compared.rows.iter().find(|row| row.figure == figure).unwrap();
            row.cells[column].as_ref().unwrap().against.unwrap()
        };
        let iops = of("iops", 1);
        assert!((iops.ratio - 1.5).abs() < 1e-9 && iops.difference == Difference::Better);
        let (low, high) = iops.interval.unwrap();
        assert!(low > 1.45 && high < 1.55 && low < 1.5 && high > 1.5);
        assert!(iops.mann_whitney_p.unwrap() < 0.02);
        assert_eq!(of("latency_mean_ns", 1).difference, Difference::Better);
        assert_eq!(of("iops", 2).difference, Difference::Same);
    }

    #[test]
    fn one_measurement_confirms_nothing_and_a_missing_figure_is_none() {
        let once = |value: f64| Repeats::of_mean(vec![value]).unwrap();
        let judged = against(&once(100.0), &once(150.0), false).unwrap();
        assert_eq!(judged.difference, Difference::Unconfirmed);
        assert_eq!(against(&once(100.0), &once(0.0), false), None);
        let mut other = run("b", 1.0);
        other.points.truncate(1);
        other.points[0].axes.block_bytes = Some(512);
        assert!(compare(&[run("a", 1.0), other]).rows.is_empty());
        assert!(compare(&[]).rows.is_empty());
    }

    #[test]
    fn the_percentile_of_repeats_is_that_of_all_their_requests() {
        // Four passes of 1,000 requests at 100 us and one of 4,000 at 900 us: of all 8,000 requests
        // half are slow. The mean of five medians would be 260 us.
        let with = |name: &str, factor: u64| {
            let mut run = run(name, 1.0);
            for (index, point) in run.points.iter_mut().enumerate() {
                let (count, ns) = if index == 4 { (4001, 900_000) } else { (1000, 100_000) };
                let mut bins = crate::result::Histogram::default();
                bins.add(crate::result::Histogram::bin_of(ns * factor), count);
                let flow = point.read.as_mut().unwrap();
                (flow.requests, flow.histogram) = (count, Some(bins));
                point.metrics.insert("late_p99_ms".to_owned(), 5.0);
            }
            run
        };
        let runs = [with("a", 1), with("b", 2)];
        let points: Vec<&Point> = runs[0].points.iter().collect();
        let median = Figure::Percentile(50.0).repeats(&points).unwrap();
        assert!((median.whole - 900_000.0).abs() < 9e3, "{median:?}");
        assert_eq!(median.values.len(), 5);
        let compared = compare(&runs);
        let row = compared.rows.iter().find(|row| row.figure == "latency_p99_ns").unwrap();
        let cell = row.cells[1].as_ref().unwrap();
        assert!((cell.estimate.value - 1_800_000.0).abs() < 18e3, "{cell:?}");
        // The repeats lie far from the figure of all, and the interval knows.
        assert_eq!(cell.against.unwrap().difference, Difference::Same, "{cell:?}");
        assert!(
            compared.rows.iter().all(|row| row.figure != "late_p99_ms"),
            "printed, and several"
        );
    }

    #[test]
    fn mann_whitney_knows_equals_and_strangers() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(mann_whitney(&a, &[1.0; 5]).map(|p| p < 0.1), Some(true));
        assert_eq!(mann_whitney(&a, &a).map(|p| p > 0.9), Some(true));
        assert_eq!(mann_whitney(&[7.0; 5], &[7.0; 5]), Some(1.0));
        // U = 0 of 5 x 5: z = 12 / sqrt(22.92) = 2.507, p = 0.0122
        let p = mann_whitney(&a, &[6.0, 7.0, 8.0, 9.0, 10.0]).unwrap();
        assert!((p - 0.0122).abs() < 2e-4, "{p}");
    }
}
