//! Rounds of a part of a plan, as they were judged while they were measured.

use serde::{Deserialize, Serialize};

use super::{Axes, Point};

/// A variable that is watched from round to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variable {
    /// Requests per second.
    Iops,
    /// Bytes per second.
    BytesPerSecond,
    /// Mean latency.
    LatencyNs,
}

impl Variable {
    /// The value of a point; `None` when the point has none.
    pub fn of(self, point: &Point) -> Option<f64> {
        match self {
            Variable::Iops => point.iops(),
            Variable::BytesPerSecond => point.bytes_per_second(),
            Variable::LatencyNs => point.latency_mean_ns(),
        }
    }
}

/// A figure that had to become steady.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tracker {
    /// The place of its point, without the round.
    pub axes: Axes,
    /// The figure of this point.
    pub variable: Variable,
}

/// Why there were no more rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundsEnd {
    /// Every tracked figure was steady.
    Steady,
    /// As many rounds as the plan allows were measured.
    RoundsMax,
    /// As many bytes as the plan allows were written.
    BytesMax,
}

/// The rounds of a part of a plan. The run stores them before the first round, and again after the
/// last one; of one name the later counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// The name that its points have as [`Point::rounds`]; unique in the run.
    pub name: String,
    /// The figures that decide.
    pub trackers: Vec<Tracker>,
    /// First and last round of the measurement window; `None` before the end, or with fewer rounds
    /// than a window has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<(u32, u32)>,
    /// Why there were no more; `None` before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RoundsEnd>,
}

impl Rounds {
    /// Whether a round is one of the measurement window.
    pub fn counts(&self, round: u32) -> bool {
        self.window.is_some_and(|(first, last)| (first..=last).contains(&round))
    }

    /// The tracker of a point; `None` when its figures decide nothing.
    pub fn tracker(&self, axes: &Axes) -> Option<&Tracker> {
        let axes = Axes { round: None, ..axes.clone() };
        self.trackers.iter().find(|tracker| tracker.axes == axes)
    }
}
