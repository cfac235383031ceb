//! Steady state by the two criteria of SNIA's performance test specification.
//!
//! Two conditions hold over five consecutive rounds of a variable y. The first: max - min is at most 20
//! % of the mean. The second: the fitted line rises or falls by at most 10 % of the mean inside the
//! window (4 steps of the slope).

use serde::Serialize;

use super::series::{self, Series};
use super::stats;
use crate::result::{Access, Run};

/// Rounds of a window.
pub const WINDOW: usize = 5;

/// Allowed max - min, as a share of the mean.
pub const RANGE_ALLOWED: f64 = 0.20;

/// Allowed excursion of the fitted line, as a share of the mean.
pub const SLOPE_ALLOWED: f64 = 0.10;

/// Beyond this a legal window without slope is still worth a word: rounds swing.
const SCATTER: f64 = 0.15;

/// Five rounds, judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Number of its first round.
    pub first_round: u32,
    /// Number of its last round.
    pub last_round: u32,
    /// Mean of the variable.
    pub mean: f64,
    /// Measured data excursion, max - min.
    pub range: f64,
    /// Allowed data excursion.
    pub range_allowed: f64,
    /// Slope of the fitted line, per round.
    pub slope: f64,
    /// The fitted line at round 0: y = slope * round + intercept.
    pub intercept: f64,
    /// Correlation coefficient of the fit; `None` when all rounds are equal.
    pub correlation: Option<f64>,
    /// Measured slope excursion, |slope| * 4.
    pub slope_excursion: f64,
    /// Allowed slope excursion.
    pub slope_allowed: f64,
    /// Both criteria hold.
    pub is_steady: bool,
    /// Steady by the letter, but the rounds swing by more than 15 % of the mean.
    pub is_scattered: bool,
}

/// Judges five consecutive rounds: number and value. `None` when there are not exactly five, they
/// are not consecutive, or a value is not a positive number.
pub fn window(rounds: &[(u32, f64)]) -> Option<Window> {
    let consecutive = rounds.windows(2).all(|pair| pair[0].0.checked_add(1) == Some(pair[1].0));
    let usable = rounds.iter().all(|(_, y)| y.is_finite() && *y > 0.0);
    if rounds.len() != WINDOW || !consecutive || !usable {
        return None;
    }
    let values: Vec<f64> = rounds.iter().map(|(_, y)| *y).collect();
    let mean = stats::mean(&values)?;
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min);
    let points: Vec<(f64, f64)> = rounds.iter().map(|(r, y)| (f64::from(*r), *y)).collect();
    let fit = stats::line(&points)?;
    let range = max - min;
    let (range_allowed, slope_allowed) = (RANGE_ALLOWED * mean, SLOPE_ALLOWED * mean);
    let slope_excursion = fit.slope.abs() * (WINDOW - 1) as f64;
    let is_steady = range <= range_allowed && slope_excursion <= slope_allowed;
    Some(Window {
        first_round: rounds[0].0,
        last_round: rounds[WINDOW - 1].0,
        mean,
        range,
        range_allowed,
        slope: fit.slope,
        intercept: fit.intercept,
        correlation: fit.correlation,
        slope_excursion,
        slope_allowed,
        is_steady,
        is_scattered: is_steady && range > SCATTER * mean,
    })
}

/// The first steady window, or the last window there is: the standard stops at the first.
pub fn first_steady(rounds: &[(u32, f64)]) -> Option<Window> {
    let mut last = None;
    for five in rounds.windows(WINDOW) {
        let Some(judged) = window(five) else { continue };
        last = Some(judged);
        if judged.is_steady {
            break;
        }
    }
    last
}

/// The variable that is watched from round to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variable {
    /// Requests per second.
    Iops,
    /// Bytes per second.
    BytesPerSecond,
    /// Mean latency.
    LatencyNs,
}

/// One series of rounds of a run, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SteadyVerdict {
    /// The target, by its name in the manifest.
    pub target: String,
    /// Step of the plan.
    pub phase: String,
    /// The series in words: "random, 4 KiB, 0 % reads".
    pub label: String,
    /// The variable that is watched.
    pub variable: Variable,
    /// Whether this is the variable the standard tracks (4 KiB writes at the highest load). The window of
    /// the other series of the phase is the same rounds.
    pub is_tracking: bool,
    /// Every round with a value.
    pub rounds: Vec<(u32, f64)>,
    /// The window; `None` when there were fewer than five rounds in a row.
    pub window: Option<Window>,
    /// The verdict in words.
    pub text: String,
}

/// Judges every series of rounds of a run.
pub fn of_run(run: &Run) -> Vec<SteadyVerdict> {
    let all = series::group(run, |axes| axes.round = None);
    let all: Vec<_> = all.into_iter().filter(|s| s.axes_of().any(|a| a.round.is_some())).collect();
    let mut verdicts = Vec::new();
    for series in &all {
        let phase: Vec<&Series<'_>> =
            all.iter().filter(|other| other.is_same_phase(series)).collect();
        let best = phase.iter().max_by_key(|other| rank(other)).copied();
        let tracking = best.is_some_and(|best| std::ptr::eq(best, series));
        let watched = best.unwrap_or(series);
        verdicts.push(judge(series, tracking, first_steady(&rounds(watched)).as_ref()));
    }
    verdicts
}

/// The standard tracks writes, of 4 KiB (or the smallest size there is), at the highest load.
fn rank(series: &Series<'_>) -> (bool, bool, u64, u64) {
    let axes = &series.axes;
    let block = axes.block_bytes.unwrap_or(u64::MAX);
    let load = u64::from(axes.jobs.unwrap_or(1)) * u64::from(axes.depth.unwrap_or(1));
    (axes.read_percent == Some(0), block == 4096, u64::MAX - block, load)
}

fn variable(series: &Series<'_>) -> Variable {
    match series.axes.access {
        _ if series.axes.phase.starts_with("lat") => Variable::LatencyNs,
        Some(Access::Sequential) => Variable::BytesPerSecond,
        _ => Variable::Iops,
    }
}

fn rounds(series: &Series<'_>) -> Vec<(u32, f64)> {
    let variable = variable(series);
    let value = |point: &crate::result::Point| match variable {
        Variable::Iops => series::rate(point),
        Variable::BytesPerSecond => point.bytes_per_second(),
        Variable::LatencyNs => point.latency_mean_ns(),
    };
    let found = series.points.iter().filter_map(|p| Some((p.axes.round?, value(p)?)));
    let mut rounds: Vec<(u32, f64)> = found.collect();
    rounds.sort_by_key(|(round, _)| *round);
    rounds
}

fn judge(series: &Series<'_>, is_tracking: bool, tracked: Option<&Window>) -> SteadyVerdict {
    let rounds = rounds(series);
    let same_rounds = |tracked: &Window| {
        let inside = tracked.first_round..=tracked.last_round;
        let five: Vec<_> = rounds.iter().copied().filter(|(r, _)| inside.contains(r)).collect();
        window(&five)
    };
    let window = tracked.and_then(same_rounds);
    let text = match &window {
        None => format!("NOT ACHIEVED: {} rounds, {WINDOW} in a row are needed", rounds.len()),
        Some(w) => describe(w),
    };
    SteadyVerdict {
        target: series.axes.target.clone(),
        phase: series.axes.phase.clone(),
        label: series.label(),
        variable: variable(series),
        is_tracking,
        rounds,
        window,
        text,
    }
}

fn describe(w: &Window) -> String {
    let percent = |part: f64| 100.0 * part / w.mean;
    format!(
        "{}: rounds {} - {}, data excursion {:.1} % of {:.0} %, slope excursion {:.1} % of {:.0} %{}",
        if w.is_steady { "steady" } else { "NOT ACHIEVED" },
        w.first_round,
        w.last_round,
        percent(w.range),
        100.0 * RANGE_ALLOWED,
        percent(w.slope_excursion),
        100.0 * SLOPE_ALLOWED,
        if w.is_scattered { "; the rounds swing" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;

    fn five(values: [f64; 5]) -> Window {
        let rounds: Vec<_> = (11..16).zip(values).collect();
        window(&rounds).unwrap()
    }

    #[test]
    fn the_worked_example_of_the_standard_is_steady() {
        let w = five([228.90, 240.21, 240.60, 240.71, 240.71]);
        assert!((w.mean - 238.226).abs() < 1e-9);
        assert!((w.range - 11.81).abs() < 1e-9 && (100.0 * w.range / w.mean - 4.96).abs() < 0.01);
        assert!((w.slope - 2.412).abs() < 1e-9 && (w.slope_excursion - 9.648).abs() < 1e-9);
        assert!((100.0 * w.slope_excursion / w.mean - 4.05).abs() < 0.01);
        assert!(w.is_steady && !w.is_scattered);
        assert_eq!((w.first_round, w.last_round), (11, 15));
        assert!((w.slope * 13.0 + w.intercept - w.mean).abs() < 1e-9);
    }

    #[test]
    fn a_climb_is_not_steady_and_a_swing_is_steady_with_a_word() {
        assert!(!five([100.0, 110.0, 120.0, 130.0, 140.0]).is_steady);
        let swing = five([100.0, 121.0, 100.0, 121.0, 100.0]);
        assert!(swing.is_steady && swing.is_scattered && swing.slope.abs() < 1e-9);
    }

    #[test]
    fn the_first_steady_window_is_taken_and_gaps_are_not_bridged() {
        let mut rounds: Vec<_> = (1..=9).map(|r| (r, 1000.0 / f64::from(r.min(4)))).collect();
        assert_eq!(first_steady(&rounds).unwrap().first_round, 4);
        rounds.remove(5);
        assert!(!first_steady(&rounds).unwrap().is_steady);
        assert_eq!(first_steady(&rounds[..4]), None);
        assert_eq!(window(&[(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0), (5, 0.0)]), None);
    }

    #[test]
    fn every_cell_has_the_window_of_the_tracked_one() {
        let mut run = sample::run();
        for round in 1..=8 {
            for (read, iops) in [(0, 4000.0 / f64::from(round.min(3))), (100, 9000.0)] {
                let mut point = sample::point(&format!("{round}/{read}"), iops, 1e5, 8);
                point.axes.round = Some(round);
                point.axes.read_percent = Some(read);
                run.points.push(point);
            }
        }
        let verdicts = of_run(&run);
        assert_eq!(verdicts.len(), 2);
        assert!(verdicts[0].is_tracking && !verdicts[1].is_tracking);
        for verdict in &verdicts {
            assert_eq!(verdict.window.unwrap().first_round, 3, "{}", verdict.text);
        }
    }
}
