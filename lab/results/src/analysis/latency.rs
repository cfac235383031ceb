//! Percentiles of merged histograms: of both directions, of all clients, of many points.

use serde::Serialize;

use crate::result::{Flow, Histogram, Point};

/// The percentiles a report shows, in percent.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// Whether a flow has any figure.
fn is_used(flow: &&Flow) -> bool {
    flow.requests > 0 || flow.iops > 0.0
}

/// All latencies of some flows together; `None` when one that has figures has no histogram. The others
/// would be a part that is passed off as the whole.
pub fn merged<'a>(flows: impl IntoIterator<Item = &'a Flow>) -> Option<Histogram> {
    let mut merged = None::<Histogram>;
    for flow in flows.into_iter().filter(is_used) {
        merged.get_or_insert_default().merge(flow.histogram.as_ref()?);
    }
    merged
}

/// The latency below which `percent` of a point's requests stayed: [`percentile_of`] one point.
pub fn percentile_ns(point: &Point, percent: f64) -> Option<u64> {
    percentile_of(&[point], percent)
}

/// The latency below which `percent` of the requests of all points stayed, from the merged
/// histograms. A stored percentile counts only where a single flow has figures: percentiles are
/// never averaged.
pub fn percentile_of(points: &[&Point], percent: f64) -> Option<u64> {
    let flows = || points.iter().flat_map(|point| point.flows());
    if let Some(bins) = merged(flows()) {
        return bins.percentile_ns(percent);
    }
    match flows().filter(is_used).collect::<Vec<_>>()[..] {
        [only] => only.percentile_ns(percent),
        _ => None,
    }
}

/// Whether a metric is a percentile that a program printed: `latency_p99_ms`, `late_p50_ms`.
pub(crate) fn is_percentile(metric: &str) -> bool {
    let names_one = |word: &str| {
        let digits = word.strip_prefix('p').unwrap_or_default();
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    metric.split('_').any(names_one)
}

/// One percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentile {
    /// In percent.
    pub percent: f64,
    /// The latency of this percentile.
    pub ns: u64,
}

/// The percentiles a report shows, as far as there are figures.
pub fn percentiles(point: &Point) -> Vec<Percentile> {
    let of = |percent| percentile_ns(point, percent).map(|ns| Percentile { percent, ns });
    PERCENTILES.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(latencies: impl Iterator<Item = u64>) -> Flow {
        let mut bins = Histogram::default();
        latencies.for_each(|ns| bins.record(ns));
        Flow { requests: bins.total(), histogram: Some(bins), ..Flow::default() }
    }

    #[test]
    fn percentiles_of_clients_are_those_of_one_big_run() {
        let whole = flow(1..100_000);
        let clients = [flow(1..20_000), flow(20_000..99_000), flow(99_000..100_000)];
        assert_eq!(merged(&clients), whole.histogram);
        let point = Point { read: Some(whole), ..Point::default() };
        assert_eq!(percentiles(&point).len(), PERCENTILES.len());
    }

    #[test]
    fn two_directions_without_histograms_have_no_percentile_together() {
        let stored = |ns| {
            let mut flow = Flow { requests: 5, ..Flow::default() };
            flow.latency.percentiles_ns.insert("99.000000".to_owned(), ns);
            Some(flow)
        };
        let point = Point { read: stored(5), write: stored(9), ..Point::default() };
        assert_eq!(percentile_ns(&point, 99.0), None);
        let point = Point { read: stored(5), ..Point::default() };
        assert_eq!(percentile_ns(&point, 99.0), Some(5));
        assert_eq!(percentile_ns(&point, 50.0), None);
    }
}
