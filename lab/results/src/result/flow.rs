//! One direction (reads or writes) of a point.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Histogram;

/// The requests of one direction in the measured window of a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Requests completed.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Length of the window.
    pub runtime_ns: u64,
    /// Requests per second over the window.
    pub iops: f64,
    /// Bytes per second over the window.
    pub bytes_per_second: f64,
    /// Latency of the requests, from submission to completion as the client sees it.
    pub latency: Latency,
    /// All latencies in fio's bins. `None` where the source has only a summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Histogram>,
}

/// A summary of latencies, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Shortest.
    pub min_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub stddev_ns: f64,
    /// Percentiles by name in percent, as fio writes them: "50.000000", "99.900000".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub percentiles_ns: BTreeMap<String, u64>,
}

impl Latency {
    /// The stored percentile nearest to `percent` within a thousandth, if there is one.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let near = |name: &str| name.parse::<f64>().is_ok_and(|p| (p - percent).abs() < 0.001);
        self.percentiles_ns.iter().find(|(name, _)| near(name)).map(|(_, value)| *value)
    }
}

impl Flow {
    /// Mean and standard deviation of the latencies of all of these, from those of each.
    pub fn moments_ns<'a>(flows: impl IntoIterator<Item = &'a Flow> + Clone) -> (f64, f64) {
        let of = |of: &dyn Fn(&Flow) -> f64| -> f64 { flows.clone().into_iter().map(of).sum() };
        let requests = of(&|flow| flow.requests as f64).max(1.0);
        let weighted = |moment: &dyn Fn(&Latency) -> f64| {
            of(&|flow| moment(&flow.latency) * flow.requests as f64) / requests
        };
        let mean = weighted(&|latency| latency.mean_ns);
        let variance =
            weighted(&|latency| latency.stddev_ns.powi(2) + (latency.mean_ns - mean).powi(2));
        (mean, variance.max(0.0).sqrt())
    }

    /// The latency below which `percent` of the requests stayed: from the histogram where there is
    /// one, else the stored percentile.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let from_bins = self.histogram.as_ref().and_then(|bins| bins.percentile_ns(percent));
        from_bins.or_else(|| self.latency.percentile_ns(percent))
    }

    /// Mean bytes of a request; zero when there was none.
    pub fn block_bytes(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.bytes as f64 / self.requests as f64 }
    }
}
