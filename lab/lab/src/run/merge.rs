//! Flows of several jobs or clients as one, without loss: bins are added, never percentiles.

use voltier_results::result::{Flow, Histogram, Latency};

use crate::fio::Outcome;

/// The percentiles that every flow of a run has, as fio names them.
pub(super) const PERCENTILES: [&str; 8] = [
    "50.000000",
    "75.000000",
    "90.000000",
    "95.000000",
    "99.000000",
    "99.900000",
    "99.990000",
    "99.999000",
];

/// All flows together, which ran at the same time; `None` of none.
pub(super) fn together<'a>(flows: impl IntoIterator<Item = &'a Flow>) -> Option<Flow> {
    merged(flows, false)
}

/// All flows together, which ran one after the other.
pub(super) fn in_turn<'a>(flows: impl IntoIterator<Item = &'a Flow>) -> Option<Flow> {
    merged(flows, true)
}

fn merged<'a>(flows: impl IntoIterator<Item = &'a Flow>, in_turn: bool) -> Option<Flow> {
    let flows: Vec<&Flow> = flows.into_iter().filter(|flow| flow.requests > 0).collect();
    if let [one] = flows.as_slice() {
        return Some((*one).clone());
    }
    if flows.is_empty() {
        return None;
    }
    let requests: u64 = flows.iter().map(|flow| flow.requests).sum();
    let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
    let times = flows.iter().map(|flow| flow.runtime_ns);
    let runtime_ns = if in_turn { times.sum() } else { times.max().unwrap_or(0) };
    let (iops, bytes_per_second) = if in_turn {
        let seconds = runtime_ns as f64 / 1e9;
        (requests as f64 / seconds, bytes as f64 / seconds)
    } else {
        (flows.iter().map(|f| f.iops).sum(), flows.iter().map(|f| f.bytes_per_second).sum())
    };
    let bins = flows.iter().map(|flow| flow.histogram.as_ref()).collect::<Option<Vec<_>>>();
    let histogram = bins.map(|bins| {
        let mut all = Histogram::default();
        bins.into_iter().for_each(|each| all.merge(each));
        all
    });
    let (mean_ns, stddev_ns) = Flow::moments_ns(flows.iter().copied());
    let latency = Latency {
        min_ns: flows.iter().map(|flow| flow.latency.min_ns).min().unwrap_or(0),
        max_ns: flows.iter().map(|flow| flow.latency.max_ns).max().unwrap_or(0),
        percentiles_ns: histogram.as_ref().map(percentiles).unwrap_or_default(),
        mean_ns,
        stddev_ns,
    };
    Some(Flow { requests, bytes, runtime_ns, iops, bytes_per_second, latency, histogram })
}

/// The percentiles of a histogram by fio's names.
pub(super) fn percentiles(histogram: &Histogram) -> std::collections::BTreeMap<String, u64> {
    let of = |name: &&str| {
        let percent = name.parse().ok()?;
        Some(((*name).to_owned(), histogram.percentile_ns(percent)?))
    };
    PERCENTILES.iter().filter_map(of).collect()
}

/// Reads and writes of jobs that ran at the same time.
pub(super) fn outcomes(outcomes: &[Outcome]) -> (Option<Flow>, Option<Flow>) {
    let read = together(outcomes.iter().filter_map(|outcome| outcome.read.as_ref()));
    let write = together(outcomes.iter().filter_map(|outcome| outcome.write.as_ref()));
    (read, write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(latencies: &[u64]) -> Flow {
        let mut histogram = Histogram::default();
        latencies.iter().for_each(|ns| histogram.record(*ns));
        let count = latencies.len() as f64;
        let mean_ns = latencies.iter().sum::<u64>() as f64 / count;
        let squares = latencies.iter().map(|ns| (*ns as f64 - mean_ns).powi(2)).sum::<f64>();
        Flow {
            requests: latencies.len() as u64,
            bytes: 4096 * latencies.len() as u64,
            runtime_ns: 1_000_000_000,
            iops: count,
            bytes_per_second: 4096.0 * count,
            latency: Latency {
                min_ns: *latencies.iter().min().unwrap(),
                max_ns: *latencies.iter().max().unwrap(),
                mean_ns,
                stddev_ns: (squares / count).sqrt(),
                percentiles_ns: percentiles(&histogram),
            },
            histogram: Some(histogram),
        }
    }

    #[test]
    fn merged_percentiles_and_moments_are_those_of_one_big_run() {
        let all: Vec<u64> = (1..2000).map(|i| i * i % 7919 + 100).collect();
        let (odd, even): (Vec<u64>, Vec<u64>) = all.iter().partition(|ns| **ns % 3 == 0);
        let (whole, parts) = (flow(&all), [flow(&odd), flow(&even)]);
        let merged = together(&parts).unwrap();
        assert_eq!(merged.histogram, whole.histogram);
        assert_eq!(merged.latency.percentiles_ns, whole.latency.percentiles_ns);
        assert!((merged.latency.mean_ns - whole.latency.mean_ns).abs() < 1e-6);
        assert!((merged.latency.stddev_ns - whole.latency.stddev_ns).abs() < 1e-6);
        assert!((merged.iops - whole.iops).abs() < 1e-6);
        let one_by_one = in_turn(&parts).unwrap();
        assert!((one_by_one.iops - whole.iops / 2.0).abs() < 1e-6);
        assert!(together([]).is_none());
    }
}
