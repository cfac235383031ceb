//! Miss-ratio curves: which policy misses least, and how near a sample comes to the exact curve.

use serde::Serialize;

use super::series;
use crate::result::{Point, Run};
use crate::size::bytes_in_words;

/// Ratios nearer than this are the same.
const SAME: f64 = 0.0005;

/// Share of references that miss in a cache of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MissPoint {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Of all line references.
    pub miss_ratio: f64,
    /// Of reads alone; `None` where they were not told apart.
    pub read_miss_ratio: Option<f64>,
    /// Of writes alone; `None` where they were not told apart.
    pub write_miss_ratio: Option<f64>,
}

/// One way to look at the trace, at every size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissCurve {
    /// `exact`, `shards:RATE`, or a policy.
    pub name: String,
    /// By size.
    pub points: Vec<MissPoint>,
}

/// The curves of one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissVerdict {
    /// The axes that the curves share, in words.
    pub label: String,
    /// In the order of the run.
    pub curves: Vec<MissCurve>,
    /// The reading of the curves.
    pub text: String,
}

impl MissCurve {
    /// The ratio in a cache of this size.
    pub fn at(&self, cache_bytes: u64) -> Option<f64> {
        let point = self.points.iter().find(|point| point.cache_bytes == cache_bytes);
        point.map(|point| point.miss_ratio)
    }

    /// Whether a policy was replayed: all others are LRU by distances.
    fn is_policy(&self) -> bool {
        self.name != "exact" && !self.is_sample()
    }

    fn is_sample(&self) -> bool {
        self.name.starts_with("shards")
    }
}

/// All miss-ratio curves of a run.
pub fn of_run(run: &Run) -> Vec<MissVerdict> {
    let groups = series::group(run, |axes| {
        axes.phase.clear();
        (axes.round, axes.pass, axes.cache_bytes) = (None, None, None);
    });
    let verdict = |group: &series::Series<'_>| {
        let mut curves = Vec::<MissCurve>::new();
        for (name, point) in group.points.iter().filter_map(|point| miss_point(point)) {
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(MissCurve { name: name.to_owned(), points: vec![point] }),
            }
        }
        for curve in &mut curves {
            curve.points.sort_by_key(|point| point.cache_bytes);
        }
        let text = describe(&curves)?;
        Some(MissVerdict { label: group.label(), curves, text })
    };
    groups.iter().filter_map(verdict).collect()
}

fn miss_point(point: &Point) -> Option<(&str, MissPoint)> {
    let metric = |name: &str| point.metrics.get(name).copied();
    let found = MissPoint {
        cache_bytes: point.axes.cache_bytes?,
        miss_ratio: metric("miss_ratio")?,
        read_miss_ratio: metric("read_miss_ratio"),
        write_miss_ratio: metric("write_miss_ratio"),
    };
    Some((&point.axes.phase, found))
}

/// `None` without a curve.
fn describe(curves: &[MissCurve]) -> Option<String> {
    let first = curves.first()?;
    let said = |point: &MissPoint| {
        let size = bytes_in_words(point.cache_bytes);
        format!("{:.1} % of references miss with {size}", point.miss_ratio * 100.0)
    };
    let (smallest, largest) = (first.points.first()?, first.points.last()?);
    let mut text = format!("{}: {}", first.name, said(smallest));
    if smallest != largest {
        let size = bytes_in_words(largest.cache_bytes);
        text += &format!(", {:.1} % with {size}", largest.miss_ratio * 100.0);
    }
    text.extend(best_policy(curves).map(|best| format!("; {best}")));
    let exact = curves.iter().find(|curve| curve.name == "exact");
    for sample in curves.iter().filter(|curve| curve.is_sample()) {
        let Some(apart) = exact.and_then(|exact| mean_apart(sample, exact, f64::abs)) else {
            continue;
        };
        let points = apart * 100.0;
        text += &format!("; {} is {points:.1} points beside exact on average", sample.name);
    }
    Some(text)
}

/// The policy that misses least at most sizes, and what that is worth against `lru`.
fn best_policy(curves: &[MissCurve]) -> Option<String> {
    let policies: Vec<&MissCurve> = curves.iter().filter(|curve| curve.is_policy()).collect();
    let sizes: Vec<u64> = policies.first()?.points.iter().map(|point| point.cache_bytes).collect();
    // A size at which two are the same has no best one.
    let is_least = |curve: &MissCurve, size: &u64| {
        let others = policies.iter().filter(|other| other.name != curve.name);
        curve.at(*size).is_some_and(|own| {
            others.clone().all(|other| other.at(*size).is_some_and(|ratio| ratio > own + SAME))
        })
    };
    let least = |curve: &&MissCurve| sizes.iter().filter(|size| is_least(curve, size)).count();
    // Of equals the first.
    let best = policies.iter().copied().rev().max_by_key(least)?;
    let count = least(&best);
    if policies.len() < 2 {
        return None;
    }
    if count == 0 {
        return Some("no policy misses less than all others at any size".to_owned());
    }
    let mut text = format!("{} misses least at {count} of {} sizes", best.name, sizes.len());
    let lru = policies.iter().find(|curve| curve.name == "lru" && curve.name != best.name);
    if let Some(apart) = lru.and_then(|lru| mean_apart(lru, best, |apart| apart)) {
        text += &format!(", {:.1} points below lru on average", apart * 100.0);
    }
    Some(text)
}

/// The mean over the sizes that both have.
fn mean_apart(curve: &MissCurve, base: &MissCurve, of: fn(f64) -> f64) -> Option<f64> {
    let both = curve
        .points
        .iter()
        .filter_map(|point| Some(of(point.miss_ratio - base.at(point.cache_bytes)?)));
    super::stats::mean(&both.collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::sample;
    use crate::result::Axes;

    #[test]
    fn the_best_policy_and_the_error_of_a_sample_are_those_one_counts() {
        let mut run = sample::run();
        let ratios = [
            ("exact", [0.9, 0.5, 0.1]),
            ("shards:0.1", [0.8, 0.5, 0.2]),
            ("lru", [0.9, 0.5, 0.1]),
            ("s3fifo", [0.7, 0.4, 0.1]),
        ];
        for (name, ratios) in ratios {
            // From the largest to the smallest: the order of a run is not that of the sizes.
            for (megabytes, ratio) in [1_u64, 2, 4].into_iter().zip(ratios).rev() {
                run.points.push(Point {
                    id: format!("{name}/{megabytes}"),
                    axes: Axes {
                        target: "trace".to_owned(),
                        phase: name.to_owned(),
                        block_bytes: Some(4096),
                        cache_bytes: Some(megabytes << 20),
                        ..Axes::default()
                    },
                    metrics: BTreeMap::from([("miss_ratio".to_owned(), ratio)]),
                    ..Point::default()
                });
            }
        }
        let verdicts = of_run(&run);
        let [verdict] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        assert_eq!((verdict.label.as_str(), verdict.curves.len()), ("trace, 4K", 4));
        assert_eq!(
            verdict.text,
            "exact: 90.0 % of references miss with 1M, 10.0 % with 4M; s3fifo misses least at 2 of \
             3 sizes, 10.0 points below lru on average; shards:0.1 is 6.7 points beside exact on \
             average"
        );
        run.points.retain(|point| point.axes.phase == "lru");
        assert!(of_run(&run)[0].text.ends_with("10.0 % with 4M"), "one policy is not the best");
        assert!(of_run(&sample::run()).is_empty());
    }
}
