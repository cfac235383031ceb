//! One entry of fio's `jobs` or `client_stats`: a direction of it, of any version, and several as one.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::result::{Flow, Histogram, Latency};

/// More latencies than this in a bin were never counted by anyone.
const COUNT_MAX: u64 = 1 << 48;

/// The number under a key; `None` when the key is missing, or the number negative or not finite.
pub fn number(value: &Value, key: &str) -> Option<f64> {
    value.get(key)?.as_f64().filter(|number| number.is_finite() && *number >= 0.0)
}

/// The whole number under a key; fractions are cut off.
pub fn whole(value: &Value, key: &str) -> Option<u64> {
    let found = value.get(key)?;
    found.as_u64().or_else(|| number(value, key).map(|number| number as u64))
}

/// A direction; `None` when it has no requests.
pub fn flow(part: &Value) -> Option<Flow> {
    let requests = whole(part, "total_ios").filter(|count| *count > 0 && *count < COUNT_MAX)?;
    // Before 3.0 `io_bytes` was KiB and there was no `bw_bytes`, only `bw` in KiB/s.
    let is_old = part.get("io_kbytes").is_none();
    let unit = if is_old { 1024 } else { 1 };
    let kib = || number(part, "bw").map(|kib| kib * 1024.0);
    let (latency, histogram) = latency(part).unwrap_or_default();
    Some(Flow {
        requests,
        bytes: whole(part, "io_bytes").unwrap_or(0).saturating_mul(unit),
        runtime_ns: whole(part, "runtime").unwrap_or(0).saturating_mul(1_000_000),
        // Totals over time. `iops_mean` and `bw_mean` are samples of one job of a group.
        iops: number(part, "iops").unwrap_or(0.0),
        bytes_per_second: number(part, "bw_bytes").or_else(kib).unwrap_or(0.0),
        latency,
        histogram,
    })
}

/// Completion latency: the one with bins, else with percentiles, else any that was measured.
fn latency(part: &Value) -> Option<(Latency, Option<Histogram>)> {
    // Microseconds before 3.0.
    let names = [("clat_ns", 1), ("lat_ns", 1), ("clat", 1000), ("lat", 1000)];
    let found: Vec<(&Value, u64)> = names
        .iter()
        .filter_map(|(name, unit)| Some((part.get(*name)?, *unit)))
        .filter(|(value, _)| number(value, "mean").is_some_and(|mean| mean > 0.0))
        .collect();
    let with = |key: &str| found.iter().find(|(value, _)| value.get(key).is_some());
    let (value, unit) = with("bins").or_else(|| with("percentile")).or(found.first())?;
    let ns = |key: &str| number(value, key).unwrap_or(0.0) * *unit as f64;
    let latency = Latency {
        min_ns: ns("min") as u64,
        max_ns: ns("max") as u64,
        mean_ns: ns("mean"),
        stddev_ns: ns("stddev"),
        percentiles_ns: percentiles(value.get("percentile"), *unit),
    };
    Some((latency, value.get("bins").and_then(|bins| histogram(bins, *unit))))
}

fn percentiles(values: Option<&Value>, unit: u64) -> BTreeMap<String, u64> {
    let all = values.and_then(Value::as_object).into_iter().flatten();
    let real = all.filter_map(|(name, value)| {
        let percent: f64 = name.parse().ok()?;
        let ns = value.as_u64()?.saturating_mul(unit);
        (percent > 0.0 && percent <= 100.0).then(|| (name.clone(), ns))
    });
    real.collect()
}

/// Bins of json+: by midpoint in nanoseconds; before 3.0 by index, in microseconds.
fn histogram(bins: &Value, unit: u64) -> Option<Histogram> {
    let is_indexed = bins.get("FIO_IO_U_PLAT_NR").is_some();
    let mut histogram = Histogram::default();
    for (name, count) in bins.as_object()? {
        let (Ok(key), Some(count)) = (name.parse::<u64>(), count.as_u64()) else { continue };
        let value = if is_indexed {
            Histogram::midpoint_ns(usize::try_from(key).ok()?.min(crate::result::BINS - 1))
        } else {
            key
        };
        if count >= COUNT_MAX {
            return None;
        }
        histogram.add(Histogram::bin_of(value.saturating_mul(unit)), count);
    }
    (histogram.total() > 0).then_some(histogram)
}

/// Several flows at the same time as one: totals over the longest window, merged latencies.
/// Percentiles come from merged bins or not at all.
pub fn merge(flows: &[Flow]) -> Option<Flow> {
    let [first, rest @ ..] = flows else { return None };
    if rest.is_empty() {
        return Some(first.clone());
    }
    let mut merged = Flow { histogram: Some(Histogram::default()), ..Flow::default() };
    merged.latency.min_ns = u64::MAX;
    for flow in flows {
        merged.requests = merged.requests.saturating_add(flow.requests);
        merged.bytes = merged.bytes.saturating_add(flow.bytes);
        merged.runtime_ns = merged.runtime_ns.max(flow.runtime_ns);
        merged.latency.min_ns = merged.latency.min_ns.min(flow.latency.min_ns);
        merged.latency.max_ns = merged.latency.max_ns.max(flow.latency.max_ns);
        merged.histogram = merged.histogram.zip(flow.histogram.as_ref()).map(|(mut all, bins)| {
            all.merge(bins);
            all
        });
    }
    let seconds = merged.runtime_ns as f64 / 1e9;
    (merged.latency.mean_ns, merged.latency.stddev_ns) = Flow::moments_ns(flows);
    if seconds > 0.0 {
        merged.iops = merged.requests as f64 / seconds;
        merged.bytes_per_second = merged.bytes as f64 / seconds;
    } else {
        merged.iops = flows.iter().map(|flow| flow.iops).sum();
        merged.bytes_per_second = flows.iter().map(|flow| flow.bytes_per_second).sum();
    }
    Some(merged)
}
