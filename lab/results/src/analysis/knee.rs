//! The knee of a load curve: four estimators, and a verdict in words when they agree.
//!
//! - Kneedle on throughput over log2 of the load
//! - N* = Xmax R0: where the line of no queueing meets the ceiling
//! - Kleinrock's power: the load at which X / R is greatest
//! - diminishing returns: the first load after which doubling it gains less than 10 %
//!
//! Gains are told for a doubling of the load, however narrow the steps of the ladder are. Orion's ladder
//! goes from 1 to 20: its last step gains 5 % on a device that scales linearly.

use serde::Serialize;

use super::kneedle::{Curve, kneedle};
use super::series::{self, Series};
use super::usl::{self, Usl};
use crate::result::{Axes, Point, Run};
use crate::table::whole_or_figure;

/// A doubling of the load that gains less has passed the knee.
const GAIN: f64 = 0.10;

/// Loads that lie less than this apart, in doublings, tell noise and not a gain.
const SPAN_LEAST: f64 = 0.25;

/// Loads that lie this far apart, in doublings, are compared where the ladder has them.
const SPAN: f64 = 0.5;

/// Throughput this far below its maximum at the last load is lost to the load.
const RETROGRADE: f64 = 0.05;

/// Service levels that are always answered: percentile (`None`: the mean) and limit.
const LEVELS: [(Option<f64>, f64); 4] =
    [(None, 1e6), (None, 5e6), (Some(99.0), 1e6), (Some(99.0), 1e7)];

/// One load of a curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadPoint {
    /// Requests in flight.
    pub outstanding: f64,
    /// Requests per second.
    pub iops: f64,
    /// Mean latency; `None` where the source has none.
    pub latency_ns: Option<f64>,
    /// 99th percentile of the requests of all repeats together; `None` where the source has none.
    pub p99_ns: Option<f64>,
    /// Throughput over latency, 1 / s^2: greatest at Kleinrock's knee.
    pub power: Option<f64>,
}

/// How far the estimators agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// All within one step of the ladder.
    Confident,
    /// Within two steps.
    Likely,
    /// Further apart.
    Unclear,
    /// Throughput still grows at the end of the ladder.
    NotSaturated,
    /// Too few loads, or no latencies.
    NotJudged,
}

/// The load at which one service level still holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceLevel {
    /// Percentile; `None` is the mean.
    pub percentile: Option<f64>,
    /// Limit of the latency.
    pub limit_ns: f64,
    /// Highest load that keeps it; `None` when none does.
    pub outstanding: Option<f64>,
    /// Throughput there.
    pub iops: Option<f64>,
}

/// The reading of a load curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Knee {
    /// Kneedle.
    pub kneedle: Option<f64>,
    /// N* = Xmax R0.
    pub asymptotic: Option<f64>,
    /// Greatest power.
    pub power: Option<f64>,
    /// Doubling gains less than 10 % from here.
    pub doubling: Option<f64>,
    /// How far they agree.
    pub confidence: Confidence,
    /// Lowest and highest estimate.
    pub between: Option<(f64, f64)>,
    /// The load of the ladder nearest to the middle of the estimates.
    pub at: Option<LoadPoint>,
    /// How far throughput has fallen below its maximum at the last load, as a share.
    pub retrograde: Option<f64>,
    /// The universal scalability law.
    pub usl: Usl,
    /// The service levels.
    pub service_levels: Vec<ServiceLevel>,
    /// The verdict in words.
    pub text: String,
}

/// Judges a ladder of loads: in the order of the load, each load once.
pub fn judge(ladder: &[LoadPoint]) -> Knee {
    let pairs: Vec<(f64, f64)> = ladder.iter().map(|p| (p.outstanding, p.iops)).collect();
    let mut knee = Knee {
        kneedle: by_kneedle(ladder),
        asymptotic: by_bounds(ladder),
        power: by_power(ladder),
        doubling: by_doubling(ladder),
        confidence: Confidence::NotJudged,
        between: None,
        at: None,
        retrograde: retrograde(ladder),
        usl: usl::fit(&pairs),
        service_levels: LEVELS.map(|(p, limit)| service_level(ladder, p, limit)).to_vec(),
        text: String::new(),
    };
    let estimates = [knee.kneedle, knee.asymptotic, knee.power, knee.doubling];
    let estimates: Vec<f64> = estimates.into_iter().flatten().collect();
    if ladder.len() >= 3 && last_gain(ladder).is_some_and(|gain| gain > GAIN) {
        knee.confidence = Confidence::NotSaturated;
    } else if ladder.len() >= 3 && estimates.len() >= 2 {
        locate(&mut knee, ladder, &estimates);
    }
    knee.text = describe(&knee, ladder);
    knee
}

fn locate(knee: &mut Knee, ladder: &[LoadPoint], estimates: &[f64]) {
    let mut steps: Vec<f64> = estimates.iter().map(|n| step_of(ladder, *n)).collect();
    steps.sort_by(f64::total_cmp);
    let spread = steps[steps.len() - 1] - steps[0];
    // A step is a step although its logarithm is not exact.
    knee.confidence = match spread {
        s if s <= 1.0 + 1e-6 => Confidence::Confident,
        s if s <= 2.0 + 1e-6 => Confidence::Likely,
        _ => Confidence::Unclear,
    };
    let low = estimates.iter().copied().fold(f64::MAX, f64::min);
    let high = estimates.iter().copied().fold(f64::MIN, f64::max);
    knee.between = Some((low, high));
    let middle = super::stats::median(&steps).unwrap_or(0.0).round() as usize;
    knee.at = ladder.get(middle.min(ladder.len() - 1)).cloned();
}

/// Where a load stands on the ladder, in steps, between two rungs by its logarithm.
fn step_of(ladder: &[LoadPoint], n: f64) -> f64 {
    let rungs: Vec<f64> = ladder.iter().map(|p| p.outstanding.log2()).collect();
    let at = n.log2();
    let above = rungs.iter().position(|rung| *rung >= at - 1e-9);
    match above {
        Some(0) => 0.0,
        None => (ladder.len() - 1) as f64,
        Some(i) => (i - 1) as f64 + (at - rungs[i - 1]) / (rungs[i] - rungs[i - 1]),
    }
}

fn by_kneedle(ladder: &[LoadPoint]) -> Option<f64> {
    let x: Vec<f64> = ladder.iter().map(|p| p.outstanding.log2()).collect();
    let y: Vec<f64> = ladder.iter().map(|p| p.iops).collect();
    kneedle(&x, &y, Curve::Concave, 1.0).map(|i| ladder[i].outstanding)
}

fn by_bounds(ladder: &[LoadPoint]) -> Option<f64> {
    // R0 is the latency at one request in flight; of a ladder that begins higher, that of its
    // lowest load, where the least waits.
    let r0 = ladder.first()?.latency_ns?;
    let top = ladder.iter().map(|p| p.iops).fold(f64::MIN, f64::max);
    Some(top * r0 / 1e9).filter(|n| n.is_finite() && *n > 0.0)
}

fn by_power(ladder: &[LoadPoint]) -> Option<f64> {
    let powers = ladder.iter().filter_map(|p| Some((p.outstanding, p.power?)));
    powers.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(n, _)| n)
}

/// The doublings of the load from one rung to another.
fn doublings(from: &LoadPoint, to: &LoadPoint) -> f64 {
    (to.outstanding / from.outstanding).log2()
}

/// How much throughput gains from one rung to another for each doubling of the load, as a share.
fn gain(from: &LoadPoint, to: &LoadPoint) -> f64 {
    (to.iops / from.iops).powf(1.0 / doublings(from, to)) - 1.0
}

/// The gain at the end of the ladder: up to the last rung from the next one that lies far enough
/// below.
fn last_gain(ladder: &[LoadPoint]) -> Option<f64> {
    let (last, below) = ladder.split_last()?;
    let far = below.iter().rev().find(|from| doublings(from, last) >= SPAN_LEAST - 1e-9);
    far.or(below.first()).map(|from| gain(from, last))
}

fn by_doubling(ladder: &[LoadPoint]) -> Option<f64> {
    let last = ladder.last()?;
    let is_flat = |(index, from): &(usize, &LoadPoint)| {
        let above = &ladder[index + 1..];
        let far = above.iter().find(|to| doublings(from, to) >= SPAN - 1e-9);
        let far = far.or((doublings(from, last) >= SPAN_LEAST - 1e-9).then_some(last));
        far.is_some_and(|to| gain(from, to) < GAIN)
    };
    ladder.iter().enumerate().find(is_flat).map(|(_, from)| from.outstanding)
}

fn retrograde(ladder: &[LoadPoint]) -> Option<f64> {
    let last = ladder.last()?.iops;
    let top = ladder.iter().map(|p| p.iops).fold(f64::MIN, f64::max);
    let lost = 1.0 - last / top;
    (lost > RETROGRADE).then_some(lost)
}

/// The highest load at which the percentile (or the mean) stays at or below a limit.
pub fn service_level(ladder: &[LoadPoint], percentile: Option<f64>, limit_ns: f64) -> ServiceLevel {
    let holds = |p: &&LoadPoint| {
        let latency = if percentile.is_some() { p.p99_ns } else { p.latency_ns };
        latency.is_some_and(|latency| latency <= limit_ns)
    };
    let best = ladder.iter().rev().find(holds);
    let (outstanding, iops) = (best.map(|p| p.outstanding), best.map(|p| p.iops));
    ServiceLevel { percentile, limit_ns, outstanding, iops }
}

fn describe(knee: &Knee, ladder: &[LoadPoint]) -> String {
    let mut text = match (knee.confidence, &knee.at, knee.between) {
        (Confidence::NotSaturated, ..) => {
            let last = ladder.last().map_or(0.0, |p| p.outstanding);
            let gain = 100.0 * last_gain(ladder).unwrap_or_default();
            format!(
                "no knee: at N={last} a doubling of the load still gains {gain:.0} %; raise the load"
            )
        }
        (Confidence::Unclear, _, Some((low, high))) => {
            let (low, high) = (whole_or_figure(low), whole_or_figure(high));
            format!("no clear knee: the estimates lie between N={low} and N={high}")
        }
        (confidence, Some(at), Some((low, high))) => {
            let latency = at.latency_ns.map(|r| format!(", R={:.0} us", r / 1e3));
            let (low, high) = (whole_or_figure(low), whole_or_figure(high));
            let is_least = ladder.first().is_some_and(|least| least.outstanding == at.outstanding);
            format!(
                "{} N={}, X={:.0}/s{}, {} (estimates N={low} to N={high}): {}",
                if is_least { "saturated from the least load on," } else { "knee at" },
                at.outstanding,
                at.iops,
                latency.unwrap_or_default(),
                if confidence == Confidence::Confident { "confident" } else { "likely" },
                if is_least { "more requests only wait" } else { "beyond it requests mostly wait" },
            )
        }
        _ => "not judged: three loads with latencies are needed".to_owned(),
    };
    if let Some(lost) = knee.retrograde {
        let lost = 100.0 * lost;
        text += &format!("; retrograde: throughput has fallen {lost:.0} % from its maximum");
    }
    text
}

/// A load curve of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurveVerdict {
    /// The target, by its name in the manifest.
    pub target: String,
    /// The curve in words, without what varies.
    pub label: String,
    /// The axis that varies: `depth`, `jobs`, `small` or `large`.
    pub varies: String,
    /// The points it was made from.
    pub points: Vec<String>,
    /// The ladder.
    pub ladder: Vec<LoadPoint>,
    /// The knee.
    pub knee: Knee,
}

/// An axis of the load: its name, how it is taken out, and its value.
type LoadAxis = (&'static str, fn(&mut Axes), fn(&Axes) -> Option<u32>);

const LOAD_AXES: [LoadAxis; 4] = [
    ("depth", |axes| axes.depth = None, |axes| axes.depth),
    ("jobs", |axes| axes.jobs = None, |axes| axes.jobs),
    ("small", |axes| axes.small = None, |axes| axes.small),
    ("large", |axes| axes.large = None, |axes| axes.large),
];

/// Every load curve of a run: at least three loads of something that is otherwise the same.
pub fn of_run(run: &Run) -> Vec<CurveVerdict> {
    let mut verdicts = Vec::new();
    for (varies, without, value) in LOAD_AXES {
        let groups = series::group(run, |axes| {
            without(axes);
            (axes.round, axes.pass) = (None, None);
        });
        for group in groups.iter().filter(|group| group.axes_of().all(|a| value(a).is_some())) {
            let ladder = ladder(run, group);
            if ladder.len() >= 3 {
                verdicts.push(CurveVerdict {
                    target: group.axes.target.clone(),
                    label: group.label(),
                    varies: varies.to_owned(),
                    points: group.ids(),
                    knee: judge(&ladder),
                    ladder,
                });
            }
        }
    }
    verdicts
}

/// The loads of a series in order; of a load measured in several rounds those of the window.
fn ladder(run: &Run, series: &Series<'_>) -> Vec<LoadPoint> {
    let mut loads: Vec<(f64, Vec<&Point>)> = Vec::new();
    for point in series::in_window(run, &series.points) {
        let Some(n) = series::outstanding(&point.axes).filter(|n| *n >= 1.0) else { continue };
        match loads.iter_mut().find(|(load, _)| *load == n) {
            Some((_, points)) => points.push(point),
            None => loads.push((n, vec![point])),
        }
    }
    loads.sort_by(|one, other| one.0.total_cmp(&other.0));
    loads.into_iter().filter_map(|(n, points)| load_point(n, &points)).collect()
}

fn load_point(outstanding: f64, points: &[&Point]) -> Option<LoadPoint> {
    let mean = |of: &dyn Fn(&Point) -> Option<f64>| {
        super::stats::mean(&points.iter().filter_map(|p| of(p)).collect::<Vec<_>>())
    };
    let iops = mean(&series::rate).filter(|x| x.is_finite() && *x > 0.0)?;
    let latency_ns = mean(&Point::latency_mean_ns);
    let p99_ns = super::latency::percentile_of(points, 99.0).map(|ns| ns as f64);
    let power = latency_ns.map(|ns| iops / (ns / 1e9)).filter(|power| power.is_finite());
    Some(LoadPoint { outstanding, iops, latency_ns, p99_ns, power })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder_of(points: &[(f64, f64, f64)]) -> Vec<LoadPoint> {
        let load = |&(n, x, us): &(f64, f64, f64)| LoadPoint {
            outstanding: n,
            iops: x,
            latency_ns: Some(us * 1e3),
            p99_ns: None,
            power: Some(x / (us / 1e6)),
        };
        points.iter().map(load).collect()
    }

    /// A device that serves `servers` requests at once in `us` each.
    fn device(servers: f64, us: f64) -> Vec<LoadPoint> {
        let loads = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
        ladder_of(&loads.map(|n: f64| {
            let x = n.min(servers) / (us / 1e6);
            (n, x, n / x * 1e6)
        }))
    }

    #[test]
    fn one_client_of_the_cubefs_table_has_its_knee_between_4_and_16() {
        let knee = judge(&ladder_of(&[
            (1.0, 1184.0, 842.2),
            (4.0, 5008.0, 794.34),
            (16.0, 9032.0, 1767.31),
            (64.0, 9040.0, 7074.55),
        ]));
        assert!((knee.asymptotic.unwrap() - 7.6).abs() < 0.05);
        assert_eq!((knee.power, knee.doubling), (Some(4.0), Some(16.0)));
        assert_eq!(knee.between, Some((4.0, 16.0)));
        assert_eq!(knee.confidence, Confidence::Confident);
        assert!(knee.text.contains("(estimates N=4 to N=16)"), "{}", knee.text);
        assert!(matches!(knee.usl, Usl::Refused { .. }));
    }

    #[test]
    fn a_device_of_known_width_has_its_knee_there() {
        for servers in [4.0, 8.0, 32.0] {
            let knee = judge(&device(servers, 100.0));
            assert_eq!(knee.confidence, Confidence::Confident, "{}", knee.text);
            assert_eq!(knee.at.unwrap().outstanding, servers);
        }
        let level = service_level(&device(8.0, 100.0), None, 1e6);
        assert_eq!((level.outstanding, level.iops), (Some(64.0), Some(80_000.0)));
        assert_eq!(service_level(&device(8.0, 100.0), None, 1e3).outstanding, None);
    }

    #[test]
    fn a_curve_that_still_grows_and_one_that_falls_are_said_to() {
        let knee = judge(&device(1000.0, 100.0));
        assert_eq!(knee.confidence, Confidence::NotSaturated);
        assert!(knee.text.contains("raise the load"), "{}", knee.text);
        let falling = ladder_of(&[
            (1.0, 1000.0, 1000.0),
            (2.0, 2000.0, 1000.0),
            (4.0, 2100.0, 1900.0),
            (8.0, 1500.0, 5300.0),
        ]);
        let knee = judge(&falling);
        assert!((knee.retrograde.unwrap() - 0.2857).abs() < 1e-3);
        assert!(knee.text.contains("retrograde"), "{}", knee.text);
    }

    #[test]
    fn a_narrow_ladder_that_scales_linearly_has_no_knee() {
        // Orion's ladder: the last step, from 19 to 20, gains 5 %.
        let linear = |servers: f64| {
            let loads: Vec<(f64, f64, f64)> = (1..=20)
                .map(|n| {
                    let x = f64::from(n).min(servers) * 1e4;
                    (f64::from(n), x, f64::from(n) / x * 1e6)
                })
                .collect();
            judge(&ladder_of(&loads))
        };
        let knee = linear(1000.0);
        assert_eq!((knee.confidence, knee.at), (Confidence::NotSaturated, None), "{}", knee.text);
        assert!(knee.text.starts_with("no knee"), "{}", knee.text);
        for servers in [6.0, 10.0, 15.0] {
            let knee = linear(servers);
            assert_eq!(knee.doubling, Some(servers));
            assert_eq!(knee.at.unwrap().outstanding, servers, "{}", knee.text);
        }
    }

    #[test]
    fn a_device_that_one_request_saturates_is_not_told_to_have_less() {
        let knee = judge(&device(1.0, 100.0));
        assert!(knee.text.starts_with("saturated from the least load on"), "{}", knee.text);
        assert!(!knee.text.contains("below"), "{}", knee.text);
    }

    #[test]
    fn the_percentile_of_a_load_is_that_of_all_its_rounds() {
        use crate::result::Histogram;
        let mut run = crate::analysis::sample::run();
        for (round, count, ns) in [(1, 9000, 100_000), (2, 1000, 900_000)] {
            for depth in [1, 2, 4] {
                let mut point =
                    crate::analysis::sample::point(&format!("{round}/{depth}"), 1e3, 1e5, depth);
                point.axes.round = Some(round);
                let mut bins = Histogram::default();
                bins.add(Histogram::bin_of(ns), count);
                let flow = point.read.as_mut().unwrap();
                (flow.requests, flow.histogram) = (count, Some(bins));
                run.points.push(point);
            }
        }
        // One request in ten is slow; the mean of the two percentiles would be 500 us.
        for load in &of_run(&run)[0].ladder {
            assert!((load.p99_ns.unwrap() - 900_000.0).abs() < 9e3, "{load:?}");
        }
    }

    #[test]
    fn too_little_is_not_judged() {
        let knee = judge(&device(8.0, 100.0)[..2]);
        assert_eq!(knee.confidence, Confidence::NotJudged);
        assert_eq!(judge(&[]).at, None);
    }
}
