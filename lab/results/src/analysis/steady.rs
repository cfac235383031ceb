//! Steady state by the two criteria of SNIA's performance test specification.
//!
//! Two conditions hold over five consecutive rounds of a variable y. The first: max - min is at most 20
//! % of the mean. The second: the fitted line rises or falls by at most 10 % of the mean inside the
//! window (4 steps of the slope).

use serde::Serialize;

use super::series::{self, Series};
use super::stats;
pub use crate::result::Variable;
use crate::result::{Rounds, RoundsEnd, Run, Test};

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

/// One series of rounds of a run, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SteadyVerdict {
    /// The rounds that the series is of, by their name in the run; `None` where the file of the run
    /// does not tell.
    pub of: Option<String>,
    /// The test of the standard.
    pub test: Option<Test>,
    /// The target, by its name in the manifest.
    pub target: String,
    /// Step of the plan.
    pub phase: String,
    /// The series in words: "random, 4 KiB, 0 % reads".
    pub label: String,
    /// The variable that is watched; of a series that decides nothing that of the one that does.
    pub variable: Variable,
    /// Whether the rounds went on until this series was steady.
    pub is_tracking: bool,
    /// Every round with a value.
    pub rounds: Vec<(u32, f64)>,
    /// The measurement window, which is the same for all series of the rounds; `None` when there were
    /// fewer than five rounds in a row.
    pub window: Option<Window>,
    /// The verdict in words.
    pub text: String,
}

/// Judges every series of rounds of a run, by the trackers and the windows that the run stores.
pub fn of_run(run: &Run) -> Vec<SteadyVerdict> {
    let all = series::group(run, |axes| axes.round = None);
    let in_rounds = all.iter().filter(|s| s.axes_of().any(|axes| axes.round.is_some()));
    in_rounds.map(|series| judge(series, run.rounds_of(series.points[0]))).collect()
}

fn judge(series: &Series<'_>, of: Option<&Rounds>) -> SteadyVerdict {
    let tracker = of.and_then(|rounds| rounds.tracker(&series.axes));
    let deciding = tracker.or_else(|| of?.trackers.first());
    let variable = deciding.map_or(Variable::Iops, |tracker| tracker.variable);
    let found = series.points.iter().filter_map(|p| Some((p.axes.round?, variable.of(p)?)));
    let mut rounds: Vec<(u32, f64)> = found.collect();
    rounds.sort_by_key(|(round, _)| *round);
    let inside = |rounds_of: &Rounds| {
        let five: Vec<_> =
            rounds.iter().copied().filter(|(round, _)| rounds_of.counts(*round)).collect();
        window(&five)
    };
    let window = of.and_then(inside);
    SteadyVerdict {
        of: of.map(|rounds| rounds.name.clone()),
        test: series.points[0].test,
        target: series.axes.target.clone(),
        phase: series.axes.phase.clone(),
        label: series.label(),
        variable,
        is_tracking: tracker.is_some(),
        text: in_words(of, window.as_ref(), rounds.len()),
        rounds,
        window,
    }
}

fn in_words(of: Option<&Rounds>, window: Option<&Window>, count: usize) -> String {
    let Some(of) = of else {
        return "not judged: the file of the run does not say what was tracked, nor which rounds \
                count"
            .to_owned();
    };
    let why = match of.end {
        None => "; the rounds were interrupted",
        Some(RoundsEnd::BytesMax) => "; the bytes that the test writes at most were written",
        Some(RoundsEnd::Steady | RoundsEnd::RoundsMax) => "",
    };
    match window {
        None => format!("NOT ACHIEVED: {count} rounds, {WINDOW} in a row are needed{why}"),
        Some(window) => format!("{}{why}", describe(window)),
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
    use crate::result::{Axes, Tracker};

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
    fn gaps_are_not_bridged_and_nothing_is_no_round() {
        assert_eq!(window(&[(1, 9.0), (2, 9.0), (3, 9.0), (4, 9.0), (6, 9.0)]), None);
        assert_eq!(window(&[(1, 9.0), (2, 9.0), (3, 9.0), (4, 9.0)]), None);
        assert_eq!(window(&[(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0), (5, 0.0)]), None);
    }

    /// A point of some rounds.
    fn add(run: &mut Run, of: &str, round: u32, iops: f64, axes: Axes) {
        let id = format!("{of}/{round}/{:?}/{:?}", axes.block_bytes, axes.pass);
        let mut point = sample::point(&id, iops, 1e5, 8);
        point.axes = Axes { target: "ssd".to_owned(), round: Some(round), ..axes };
        point.rounds = Some(of.to_owned());
        run.points.push(point);
    }

    fn rounds(name: &str, axes: Axes, variable: Variable, window: (u32, u32)) -> Rounds {
        let axes = Axes { target: "ssd".to_owned(), ..axes };
        let trackers = vec![Tracker { axes, variable }];
        let (window, end) = (Some(window), Some(RoundsEnd::Steady));
        Rounds { name: name.to_owned(), trackers, window, end }
    }

    #[test]
    fn two_sizes_of_one_step_keep_the_windows_in_which_each_was_steady() {
        let mut run = sample::run();
        let axes = |block| Axes {
            phase: "tp".to_owned(),
            block_bytes: Some(block),
            read_percent: Some(0),
            ..Axes::default()
        };
        for round in 1..=5 {
            add(&mut run, "small", round, 4000.0, axes(128 << 10));
        }
        for round in 1..=9 {
            let iops = 4000.0 / f64::from(round.min(5));
            add(&mut run, "large", round, iops, axes(1 << 20));
        }
        let bandwidth = Variable::BytesPerSecond;
        run.keep_rounds(rounds("small", axes(128 << 10), bandwidth, (1, 5)));
        run.keep_rounds(rounds("large", axes(1 << 20), bandwidth, (5, 9)));
        let verdicts = of_run(&run);
        let windows: Vec<_> = verdicts
            .iter()
            .map(|v| (v.is_tracking, v.window.map(|w| (w.first_round, w.last_round, w.is_steady))))
            .collect();
        assert_eq!(windows, [(true, Some((1, 5, true))), (true, Some((5, 9, true)))]);
    }

    #[test]
    fn of_samples_that_are_alike_the_tracked_one_is_judged() {
        let mut run = sample::run();
        let axes = |pass| Axes {
            phase: "wsat".to_owned(),
            pass: Some(pass),
            read_percent: Some(0),
            block_bytes: Some(4096),
            ..Axes::default()
        };
        for round in 1..=5 {
            for pass in 1..=30 {
                // The last sample of a round climbs, the first is steady.
                let iops = if pass == 30 { 1000.0 * f64::from(round) } else { 5000.0 };
                add(&mut run, "wsat", round, iops, axes(pass));
            }
        }
        run.keep_rounds(rounds("wsat", axes(1), Variable::Iops, (1, 5)));
        let verdicts = of_run(&run);
        let tracked: Vec<_> = verdicts.iter().filter(|verdict| verdict.is_tracking).collect();
        assert_eq!((verdicts.len(), tracked.len()), (30, 1));
        assert!(tracked[0].window.unwrap().is_steady, "{}", tracked[0].text);
        assert!(tracked[0].rounds.iter().all(|(_, iops)| *iops == 5000.0));
    }

    #[test]
    fn a_file_that_does_not_tell_is_not_guessed_at() {
        let mut run = sample::run();
        for round in 1..=8 {
            add(&mut run, "lost", round, 4000.0, Axes::default());
        }
        let [verdict] = &of_run(&run)[..] else { panic!("one series") };
        assert!(!verdict.is_tracking && verdict.window.is_none());
        assert!(verdict.text.contains("does not say"), "{}", verdict.text);
    }
}
