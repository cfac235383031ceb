//! The meaning of the figures of a run, and whether the figures can be true.
//!
//! Everything is computed from a [`Run`] alone, ours or imported: [`judge`] gives the [`Verdicts`]
//! of one, [`compare()`] sets several side by side. Figures that are missing stay missing (`None`).
//!
//! - [`steady`]: steady state by the standard's two criteria
//! - [`knee`], [`kneedle`], [`usl`]: load curves
//! - [`bound`], [`limits`]: what limits
//! - [`scaling`], [`warm_up`], [`demand`], [`cpu`], [`repeat`]: clients, caches, grids, processors,
//!   repeats
//! - [`misses`]: miss-ratio curves
//! - [`checks`]: physical consistency, each check a name with its rule
//! - [`latency`], [`stats`]: percentiles of merged histograms; means and intervals

pub mod bound;
pub mod checks;
pub mod compare;
pub mod cpu;
pub mod demand;
mod facts;
mod finding;
pub mod knee;
pub mod kneedle;
pub mod latency;
pub mod limits;
pub mod misses;
pub mod repeat;
pub mod scaling;
pub(crate) mod series;
pub mod stats;
pub mod steady;
pub mod usl;
pub mod warm_up;

use serde::Serialize;

pub use compare::{Comparison, compare};
pub use finding::{Finding, Severity};
pub use series::{label, outstanding, rate};

use crate::result::Run;

/// Everything that can be said of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdicts {
    /// Series of rounds.
    pub steady: Vec<steady::SteadyVerdict>,
    /// Load curves.
    pub curves: Vec<knee::CurveVerdict>,
    /// Ladders of block sizes.
    pub bounds: Vec<bound::BoundVerdict>,
    /// Points near an outer limit.
    pub limits: Vec<limits::LimitVerdict>,
    /// Numbers of clients.
    pub scaling: Vec<scaling::ScalingVerdict>,
    /// Passes over a hot set.
    pub warm_up: Vec<warm_up::WarmUpVerdict>,
    /// Repeats.
    pub repeats: Vec<repeat::RepeatVerdict>,
    /// Grids of threads and depths.
    pub demand: Vec<demand::DemandVerdict>,
    /// Miss-ratio curves.
    pub misses: Vec<misses::MissVerdict>,
    /// Processor time.
    pub cpu: Vec<cpu::CpuVerdict>,
    /// The findings of the checks, worst first.
    pub findings: Vec<Finding>,
}

/// Judges a run. Never fails: what cannot be judged is not in the verdicts.
pub fn judge(run: &Run) -> Verdicts {
    Verdicts {
        steady: steady::of_run(run),
        curves: knee::of_run(run),
        bounds: bound::of_run(run),
        limits: limits::of_run(run),
        scaling: scaling::of_run(run),
        warm_up: warm_up::of_run(run),
        repeats: repeat::of_run(run),
        demand: demand::of_run(run),
        misses: misses::of_run(run),
        cpu: cpu::of_run(run),
        findings: checks::of_run(run),
    }
}

/// Small runs for tests.
#[cfg(test)]
pub(crate) mod sample {
    use crate::result::{Access, Axes, Flow, Latency, Manifest, Point, Run, TargetInfo};

    /// A run of the three usual targets without points.
    pub(crate) fn run() -> Run {
        let target = |name: &&str| TargetInfo { name: (*name).to_owned(), ..Default::default() };
        let targets = ["hdd", "ssd", "accelerated"].iter().map(target).collect();
        Run { manifest: Manifest { targets, ..Manifest::default() }, ..Run::default() }
    }

    /// A counted point: random reads of 4 KiB for ten seconds.
    pub(crate) fn point(id: &str, iops: f64, latency_ns: f64, depth: u32) -> Point {
        let requests = (iops * 10.0) as u64;
        let read = Flow {
            requests,
            bytes: requests * 4096,
            runtime_ns: 10_000_000_000,
            iops,
            bytes_per_second: iops * 4096.0,
            latency: Latency { mean_ns: latency_ns, ..Latency::default() },
            histogram: None,
        };
        let axes = Axes {
            target: "hdd".to_owned(),
            access: Some(Access::Random),
            read_percent: Some(100),
            block_bytes: Some(4096),
            depth: Some(depth),
            ..Axes::default()
        };
        Point { id: id.to_owned(), axes, read: Some(read), ..Point::default() }
    }
}
