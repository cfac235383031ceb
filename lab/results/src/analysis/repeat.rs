//! The same thing measured several times: mean, spread, 95 % interval.

use serde::Serialize;

use super::series::{self, Series};
use super::stats::{self, Estimate};
use crate::result::{Access, Point, Run, Variable};

/// Repeats vary by at most this much, else a report shows error bars.
pub const VARIATION_MAX: f64 = 0.05;

/// Repeats of one place in the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepeatVerdict {
    /// The target, by its name in the manifest.
    pub target: String,
    /// The place in words.
    pub label: String,
    /// The points.
    pub points: Vec<String>,
    /// The variable that was measured.
    pub variable: Variable,
    /// Mean and interval.
    pub estimate: Estimate,
    /// Whether three repeats or more lie within 5 %.
    pub is_repeatable: bool,
}

/// Repeats of a run: rounds of the steady window, or passes that are not a warm-up.
pub fn of_run(run: &Run) -> Vec<RepeatVerdict> {
    let groups = series::group(run, |axes| (axes.round, axes.pass) = (None, None));
    groups.iter().filter_map(|group| judge(run, group)).collect()
}

fn judge(run: &Run, series: &Series<'_>) -> Option<RepeatVerdict> {
    if series.points.len() < 2 || super::warm_up::is_warm_up(series) {
        return None;
    }
    let variable = match series.axes.access {
        Some(Access::Sequential) => Variable::BytesPerSecond,
        _ => Variable::Iops,
    };
    let value = |point: &Point| match variable {
        Variable::BytesPerSecond => point.bytes_per_second(),
        _ => series::rate(point),
    };
    let points = series::in_window(run, &series.points);
    let values: Vec<f64> = points.iter().filter_map(|point| value(point)).collect();
    let estimate = stats::estimate(&values).filter(|estimate| estimate.count >= 2)?;
    let close = estimate.variation.is_some_and(|variation| variation <= VARIATION_MAX);
    Some(RepeatVerdict {
        target: series.axes.target.clone(),
        label: series.label(),
        points: points.iter().map(|point| point.id.clone()).collect(),
        variable,
        estimate,
        is_repeatable: close && estimate.count >= 3,
    })
}
