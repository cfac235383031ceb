//! Warming up: passes over a hot set, how soon the plateau is reached, and what learning cost.

use serde::Serialize;

use super::facts::Facts;
use super::series::{self, Series};
use super::stats;
use crate::result::{Axes, Point, Run};

/// Passes of the plateau.
const PLATEAU: usize = 3;

/// A pass has arrived when it reaches this share of the plateau.
const ARRIVED: f64 = 0.90;

/// The passes of one hot set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WarmUpVerdict {
    /// The target, by its name in the manifest.
    pub target: String,
    /// The passes in words.
    pub label: String,
    /// Pass and files (or requests) per second.
    pub passes: Vec<(u32, f64)>,
    /// Mean of the last three passes.
    pub plateau: f64,
    /// The first pass that reaches 90 % of the plateau.
    pub passes_to_90: Option<u32>,
    /// Time lost against the plateau, in passes of the plateau.
    pub learning_passes: f64,
    /// The same in seconds, where the passes have a length.
    pub learning_s: Option<f64>,
    /// Plateau over that of the disk alone, where it was measured in this run.
    pub speed_up: Option<f64>,
    /// Hit rate (0 to 1) that the speed-up implies, from t = h t_fast + (1 - h) t_disk.
    pub implied_hit_rate: Option<f64>,
    /// Hit rate (0 to 1) that the cache counted in the passes of the plateau.
    pub counted_hit_rate: Option<f64>,
    /// The verdict in words.
    pub text: String,
}

/// Whether a series is passes over a hot set, not repeats.
pub(crate) fn is_warm_up(series: &Series<'_>) -> bool {
    let learns = |point: &&Point| point.metrics.contains_key("files_per_second");
    series.axes_of().any(|axes| axes.pass.is_some()) && series.points.iter().any(learns)
}

/// Plateau, arrival and cost of a list of passes in order; `None` with fewer than four.
pub fn learn(passes: &[(u32, f64)]) -> Option<(f64, Option<u32>, f64)> {
    if passes.len() <= PLATEAU || passes.iter().any(|(_, y)| !(y.is_finite() && *y > 0.0)) {
        return None;
    }
    let last: Vec<f64> = passes[passes.len() - PLATEAU..].iter().map(|(_, y)| *y).collect();
    let plateau = stats::mean(&last)?;
    let arrived = passes.iter().find(|(_, y)| *y >= ARRIVED * plateau).map(|(pass, _)| *pass);
    let lost = passes.iter().map(|(_, y)| (plateau / y - 1.0).max(0.0)).sum();
    Some((plateau, arrived, lost))
}

/// Share of hits that explains a measured rate between those of the two tiers; `None` when the
/// tiers do not differ.
pub fn implied_hit_rate(measured: f64, fast: f64, disk: f64) -> Option<f64> {
    let (t, t_fast, t_disk) = (1.0 / measured, 1.0 / fast, 1.0 / disk);
    let hits = (t_disk - t) / (t_disk - t_fast);
    (t_disk > t_fast && hits.is_finite()).then(|| hits.clamp(0.0, 1.0))
}

/// Every warm-up of a run.
pub fn of_run(run: &Run) -> Vec<WarmUpVerdict> {
    let groups = series::group(run, |axes| axes.pass = None);
    let passes = groups.iter().filter(|group| is_warm_up(group));
    passes.filter_map(|group| judge(run, group, &groups)).collect()
}

fn judge(run: &Run, series: &Series<'_>, all: &[Series<'_>]) -> Option<WarmUpVerdict> {
    let passes = passes_of(series);
    let (plateau, passes_to_90, learning_passes) = learn(&passes)?;
    let facts = Facts::new(run);
    let target = &series.axes.target;
    let of = |other: Option<&str>| {
        let axes = Axes { target: other?.to_owned(), ..series.axes.clone() };
        all.iter().find(|group| group.axes == axes).and_then(|group| plateau_of(&passes_of(group)))
    };
    let disk = of(facts.backing(target));
    let fast = of(facts.fast_tier(target));
    let late = series.points.iter().filter(|point| {
        let from = passes[passes.len() - PLATEAU].0;
        point.axes.pass.is_some_and(|pass| pass >= from)
    });
    let counted_hit_rate = counted(late.copied());
    let implied = fast.zip(disk).and_then(|(fast, disk)| implied_hit_rate(plateau, fast, disk));
    let arrival = passes_to_90.map_or("never".to_owned(), |pass| format!("in pass {pass}"));
    let speed_up = disk.map(|disk| plateau / disk);
    let mut text = format!(
        "plateau {plateau:.1}/s, 90 % of it {arrival}; learning cost {learning_passes:.1} passes"
    );
    if let Some(times) = speed_up {
        text += &format!("; {times:.1} times the disk alone");
    }
    Some(WarmUpVerdict {
        target: target.clone(),
        label: series.label(),
        plateau,
        passes_to_90,
        learning_passes,
        learning_s: pass_seconds(series).map(|seconds| seconds * learning_passes),
        speed_up,
        implied_hit_rate: implied,
        counted_hit_rate,
        text,
        passes,
    })
}

fn passes_of(series: &Series<'_>) -> Vec<(u32, f64)> {
    let value = |p: &Point| p.metrics.get("files_per_second").copied().or(series::rate(p));
    let found = series.points.iter().filter_map(|p| Some((p.axes.pass?, value(p)?)));
    let mut passes: Vec<(u32, f64)> = found.collect();
    passes.sort_by_key(|(pass, _)| *pass);
    passes
}

fn plateau_of(passes: &[(u32, f64)]) -> Option<f64> {
    let last = passes.len().saturating_sub(PLATEAU);
    stats::mean(&passes[last..].iter().map(|(_, y)| *y).collect::<Vec<_>>())
}

/// Hits over requests of reads that did not go around the cache.
fn counted<'a>(points: impl Iterator<Item = &'a Point>) -> Option<f64> {
    let (mut hits, mut requests) = (0, 0);
    for window in points.filter_map(|point| point.cache) {
        hits += window.read_hits;
        requests += window.read_requests;
    }
    (requests > 0).then(|| hits as f64 / requests as f64)
}

/// Length of a pass at the plateau: the shortest of the last three.
fn pass_seconds(series: &Series<'_>) -> Option<f64> {
    let mut points = series.points.clone();
    points.sort_by_key(|point| point.axes.pass);
    let last = &points[points.len().saturating_sub(PLATEAU)..];
    let length = |p: &&Point| p.flows().map(|flow| flow.runtime_ns).max().filter(|ns| *ns > 0);
    last.iter().filter_map(length).min().map(|ns| ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;
    use crate::result::CacheWindow;

    #[test]
    fn passes_to_90_percent_and_the_cost_of_learning() {
        let passes = [(1, 50.0), (2, 80.0), (3, 95.0), (4, 100.0), (5, 100.0), (6, 100.0)];
        let (plateau, arrived, lost) = learn(&passes).unwrap();
        assert_eq!((plateau, arrived), (100.0, Some(3)));
        assert!((lost - (1.0 + 0.25 + 100.0 / 95.0 - 1.0)).abs() < 1e-9);
        assert_eq!(learn(&passes[..3]), None);
    }

    #[test]
    fn a_cache_of_known_hit_rate_is_judged_right() {
        // Disk 10 ms, SSD 0.1 ms, 75 % hits.
        let rate = 1.0 / (0.75 * 1e-4 + 0.25 * 1e-2);
        assert!((implied_hit_rate(rate, 1e4, 100.0).unwrap() - 0.75).abs() < 1e-9);
        assert_eq!(implied_hit_rate(rate, 100.0, 100.0), None);
        let mut run = sample::run();
        for pass in 1..=6 {
            for (target, y) in [("hdd", 100.0), ("ssd", 1e4), ("accelerated", rate)] {
                let mut point = sample::point(&format!("{target}/{pass}"), y, 1e5, 1);
                point.axes.target = target.to_owned();
                point.axes.pass = Some(pass);
                point.metrics.insert("files_per_second".to_owned(), y);
                point.cache = (target == "accelerated").then(|| CacheWindow {
                    read_requests: 1000,
                    read_hits: 750,
                    ..CacheWindow::default()
                });
                run.points.push(point);
            }
        }
        let verdicts = of_run(&run);
        let cached = verdicts.iter().find(|v| v.target == "accelerated").unwrap();
        assert!((cached.implied_hit_rate.unwrap() - 0.75).abs() < 1e-9);
        assert_eq!(cached.counted_hit_rate, Some(0.75));
        assert!((cached.speed_up.unwrap() - rate / 100.0).abs() < 1e-9);
        assert_eq!(cached.passes_to_90, Some(1));
    }
}
