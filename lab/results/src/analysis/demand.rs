//! Demand intensity: which points of a thread x depth grid stand for maximum, middle and minimum.

use serde::Serialize;

use super::series;
use crate::result::{Point, Run};

/// The mean response time that the maximum must stay below.
const RESPONSE_MAX_NS: f64 = 5e6;

/// One chosen point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// The point.
    pub point: String,
    /// Threads.
    pub jobs: u32,
    /// Depth.
    pub depth: u32,
    /// Requests per second, both directions.
    pub iops: f64,
    /// Mean response time, both directions.
    pub latency_ns: f64,
}

/// The three choices of a grid.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Choices {
    /// The most requests with a mean response time below 5 ms; `None` when none has.
    pub max: Option<Demand>,
    /// The point nearest to the middle of the two others.
    pub middle: Option<Demand>,
    /// The least load: one thread, one request, where the grid has it.
    pub min: Option<Demand>,
}

/// The three choices of one target and phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemandVerdict {
    /// The target, by its name in the manifest.
    pub target: String,
    /// Step of the plan.
    pub phase: String,
    /// The choices.
    #[serde(flatten)]
    pub choices: Choices,
}

/// The choices of every grid of a run: at least two depths and two numbers of threads.
pub fn of_run(run: &Run) -> Vec<DemandVerdict> {
    let groups = series::group(run, |axes| {
        (axes.depth, axes.jobs, axes.round, axes.pass) = (None, None, None, None);
    });
    let grids = groups.iter().filter_map(|group| {
        let grid = last_round(&group.points);
        let distinct = |of: fn(&Demand) -> u32| {
            grid.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
        };
        if distinct(|d| d.jobs) < 2 || distinct(|d| d.depth) < 2 {
            return None;
        }
        let (target, phase) = (group.axes.target.clone(), group.axes.phase.clone());
        Some(DemandVerdict { target, phase, choices: choose(&grid) })
    });
    grids.collect()
}

/// The choices of the points of a grid, of rounds of the last one.
pub fn choices(points: &[&Point]) -> Choices {
    choose(&last_round(points))
}

fn last_round(points: &[&Point]) -> Vec<Demand> {
    let last = points.iter().filter_map(|point| point.axes.round).max();
    let late = points.iter().filter(|point| point.axes.round == last);
    late.filter_map(|point| demand(point)).collect()
}

fn demand(point: &Point) -> Option<Demand> {
    Some(Demand {
        point: point.id.clone(),
        jobs: point.axes.jobs?,
        depth: point.axes.depth?,
        iops: point.iops()?,
        latency_ns: point.latency_mean_ns()?,
    })
}

fn choose(grid: &[Demand]) -> Choices {
    let quick = grid.iter().filter(|d| d.latency_ns < RESPONSE_MAX_NS);
    let max = quick.max_by(|one, other| one.iops.total_cmp(&other.iops)).cloned();
    let min = grid.iter().min_by_key(|d| u64::from(d.jobs) * u64::from(d.depth)).cloned();
    let middle = max.as_ref().zip(min.as_ref()).and_then(|(max, min)| {
        let wanted = f64::midpoint(max.iops, min.iops);
        let off = |d: &&Demand| (d.iops - wanted).abs();
        grid.iter().min_by(|one, other| off(one).total_cmp(&off(other))).cloned()
    });
    Choices { max, middle, min }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;

    #[test]
    fn the_maximum_is_the_fastest_below_5_ms_and_the_middle_lies_between() {
        let mut run = sample::run();
        for (jobs, depth, iops, us) in [
            (1, 1, 1000.0, 1000.0),
            (1, 8, 6000.0, 1333.0),
            (4, 8, 11_000.0, 2900.0),
            (32, 32, 12_000.0, 85_000.0),
        ] {
            let mut point = sample::point(&format!("{jobs}x{depth}"), iops, us * 1e3, depth);
            point.axes.jobs = Some(jobs);
            run.points.push(point);
        }
        let [verdict] = &of_run(&run)[..] else { panic!("one grid") };
        let name = |d: &Option<Demand>| d.as_ref().unwrap().point.clone();
        assert_eq!(name(&verdict.choices.max), "4x8");
        assert_eq!(name(&verdict.choices.middle), "1x8");
        assert_eq!(name(&verdict.choices.min), "1x1");
    }
}
