//! Runs side by side: the ratio of every figure to that of the first run, with its interval.

use serde::Serialize;

use super::repeat;
use super::series::{self, Series, label};
use super::stats::{self, Estimate, estimate};
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
    /// Mean and interval.
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

type Figure = (&'static str, fn(&Point) -> Option<f64>);

/// Points and the values of one figure.
type Sample = (Vec<String>, Vec<f64>);

const FIGURES: [Figure; 4] = [
    ("iops", Point::iops),
    ("bytes_per_second", Point::bytes_per_second),
    ("latency_mean_ns", Point::latency_mean_ns),
    ("latency_p99_ns", |point| super::latency::percentile_ns(point, 99.0).map(|ns| ns as f64)),
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
        if columns[1..].iter().any(Option::is_some) {
            rows.extend(rows_of(&columns));
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

fn rows_of(columns: &[Option<&Series<'_>>]) -> Vec<Row> {
    let Some(base) = columns[0] else { return Vec::new() };
    let mut rows = Vec::new();
    for (name, of) in FIGURES {
        rows.extend(row(columns, name, &|point| of(point)));
    }
    let named = base.points.iter().flat_map(|point| point.metrics.keys());
    for name in named.collect::<std::collections::BTreeSet<_>>() {
        rows.extend(row(columns, name, &|point| point.metrics.get(name.as_str()).copied()));
    }
    rows
}

fn row(
    columns: &[Option<&Series<'_>>],
    figure: &str,
    of: &dyn Fn(&Point) -> Option<f64>,
) -> Option<Row> {
    let samples: Vec<Option<Sample>> = columns
        .iter()
        .map(|column| {
            let points = repeat::in_window((*column)?, of);
            let found: Vec<(String, f64)> =
                points.iter().filter_map(|p| Some((p.id.clone(), of(p)?))).collect();
            (!found.is_empty()).then(|| found.into_iter().unzip())
        })
        .collect();
    let base = samples[0].as_ref()?;
    if samples[1..].iter().all(Option::is_none) {
        return None;
    }
    let costs = ["latency", "_us_", "miss_ratio", "late_p"];
    let is_cost = figure.ends_with("_ns") || costs.iter().any(|name| figure.contains(name));
    let cell = |(index, sample): (usize, &Option<Sample>)| {
        let (points, values) = sample.as_ref()?;
        let against = (index > 0).then(|| against(&base.1, values, is_cost)).flatten();
        Some(Cell { points: points.clone(), estimate: estimate(values)?, against })
    };
    let cells = samples.iter().enumerate().map(cell).collect();
    Some(Row { label: label(&columns[0]?.axes), figure: figure.to_owned(), cells })
}

/// One sample against another. `less_is_better` for latencies. `None` when a mean is not positive.
pub fn against(base: &[f64], values: &[f64], less_is_better: bool) -> Option<Against> {
    let (one, other) = (stats::mean(base)?, stats::mean(values)?);
    if !(one > 0.0 && other > 0.0) {
        return None;
    }
    let ratio = other / one;
    let interval = ratio_interval(base, values, ratio);
    let inside = interval.is_some_and(|(low, high)| low <= 1.0 && 1.0 <= high);
    let difference = match () {
        () if (ratio - 1.0).abs() < SAME || inside => Difference::Same,
        () if interval.is_none() => Difference::Unconfirmed,
        () if (ratio > 1.0) != less_is_better => Difference::Better,
        () => Difference::Worse,
    };
    let mann_whitney_p = mann_whitney(base, values);
    Some(Against { ratio, interval, mann_whitney_p, difference })
}

/// Welch's interval of the difference of the logarithms, by the delta method.
fn ratio_interval(base: &[f64], values: &[f64], ratio: f64) -> Option<(f64, f64)> {
    let part = |sample: &[f64]| {
        let (mean, deviation) = (stats::mean(sample)?, stats::deviation(sample)?);
        Some(((deviation / mean).powi(2) / sample.len() as f64, sample.len() as f64 - 1.0))
    };
    let ((one, n), (other, m)) = (part(base)?, part(values)?);
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
        assert_eq!(against(&[100.0], &[150.0], false).unwrap().difference, Difference::Unconfirmed);
        assert_eq!(against(&[100.0], &[0.0], false), None);
        let mut other = run("b", 1.0);
        other.points.truncate(1);
        other.points[0].axes.block_bytes = Some(512);
        assert!(compare(&[run("a", 1.0), other]).rows.is_empty());
        assert!(compare(&[]).rows.is_empty());
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
