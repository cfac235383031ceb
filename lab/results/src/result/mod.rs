//! The file that a run leaves: JSON lines that everything else reads.
//!
//! The first line is the [`Manifest`] (plan, target, machine). Then comes one line for each [`Point`]
//! as it was finished, so that an interrupted run keeps its points and a resumed one appends.
//! [`Rounds`] say what was watched while points were measured again and again, and which rounds
//! count. Nothing derived is stored beside: verdicts, checks and charts are made from these lines, by
//! any later version.
//!
//! Reading route: [`Point`] is one measurement, [`Flow`] one direction of it, [`Histogram`] its
//! latencies.

mod flow;
mod histogram;
mod manifest;
mod point;
mod role;
mod rounds;
mod store;

pub use flow::{Flow, Latency};
pub use histogram::{BINS, Histogram};
pub use manifest::{Environment, FORMAT, Manifest, TargetInfo};
pub use point::{
    Access, Axes, CacheWindow, ClientResult, CpuCost, Part, Point, Sample, Scheduled, Status,
};
pub use role::{Role, Test};
pub use rounds::{Rounds, RoundsEnd, Tracker, Variable};
pub use store::{Run, RunWriter};
