//! The points and facts that checks look at.

use crate::analysis::facts::Facts;
use crate::analysis::series;
use crate::result::{Axes, Flow, Point, Run, Status};

/// The run as the checks see it.
pub(crate) struct Context<'a> {
    pub(crate) run: &'a Run,
    pub(crate) facts: Facts<'a>,
    /// Bandwidths of this run are printed as MB and are MiB.
    pub(crate) is_mib: bool,
}

impl<'a> Context<'a> {
    /// Points with figures, cut ones too: a cut figure must still be possible.
    pub(crate) fn points(&self) -> impl Iterator<Item = &'a Point> {
        let judged = |point: &&Point| {
            matches!(point.status, Status::Ok | Status::NotSteady | Status::Partial(_))
        };
        self.run.points.iter().filter(judged)
    }

    /// Points of one target.
    pub(crate) fn of_target(&self, target: &str) -> impl Iterator<Item = &'a Point> {
        let target = target.to_owned();
        self.points().filter(move |point| point.axes.target == target)
    }

    /// Bytes per second in true bytes: counted, or requests x size, or as printed.
    pub(crate) fn bandwidth(&self, point: &Point) -> Option<f64> {
        let counted = point.flows().any(|flow| flow.bytes > 0);
        if counted || (point.iops().is_some() && point.axes.block_bytes.is_some()) {
            return series::bandwidth(point);
        }
        let unit = if self.is_mib { MIB_OVER_MB } else { 1.0 };
        point.bytes_per_second().map(|printed| printed * unit)
    }

    /// Requests per second: stated, or bandwidth over size.
    pub(crate) fn iops(&self, point: &Point) -> Option<f64> {
        let by_bytes = || Some(self.bandwidth(point)? / point.axes.block_bytes? as f64);
        point.iops().or_else(by_bytes)
    }

    /// The best figure of a target for the same access, size and mix, whatever the load.
    pub(crate) fn best_like(&self, target: &str, axes: &Axes) -> Option<(f64, &'a Point)> {
        let like = self.of_target(target).filter(|point| is_like(&point.axes, axes));
        let figures = like.filter_map(|point| Some((self.iops(point)?, point)));
        figures.max_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// MiB per MB.
pub(crate) const MIB_OVER_MB: f64 = 1_048_576.0 / 1e6;

/// Whether a flow was printed somewhere, not counted.
pub(crate) fn is_printed(flow: &Flow) -> bool {
    flow.requests == 0 && flow.bytes == 0
}

/// Same access, size and mix.
pub(crate) fn is_like(one: &Axes, other: &Axes) -> bool {
    one.access == other.access
        && one.read_percent == other.read_percent
        && one.block_bytes == other.block_bytes
}
