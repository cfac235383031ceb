//! Requests x size against bandwidth: MB, MiB, and thousands taken for 1,024.

use super::context::{Context, MIB_OVER_MB, is_printed};
use crate::analysis::finding::{Finding, Severity, finding};
use crate::result::{Access, Flow, Point, Run};

/// How far requests x size may be from the bandwidth.
const TOLERANCE: f64 = 0.005;

/// The same where a source says "about".
const APPROXIMATE: f64 = 0.05;

/// "10.0k" multiplied by 1,024, seen through three printed digits.
const EXPANDED: std::ops::Range<f64> = 1.018..1.030;

/// IOPS x size over bandwidth, as the figures stand.
fn ratio(point: &Point, flow: &Flow) -> Option<f64> {
    let size = if is_printed(flow) {
        point.axes.block_bytes? as f64
    } else {
        // Counted: the sizes may be mixed, their mean is known. Few requests have rounded rates.
        (flow.requests >= 1000).then(|| flow.bytes as f64 / flow.requests as f64)?
    };
    let ratio = flow.iops * size / flow.bytes_per_second;
    (flow.iops > 0.0 && flow.bytes_per_second > 0.0 && ratio.is_finite()).then_some(ratio)
}

fn is_near(ratio: f64, unit: f64) -> bool {
    (ratio / unit - 1.0).abs() <= TOLERANCE
}

/// Whether the bandwidths a run prints as MB are MiB, as far as its own figures tell.
pub(super) fn is_mib(run: &Run) -> bool {
    let (mb, mib) = evidence(run);
    mib.len() > mb.len()
}

/// Points that speak for MB, and those that speak for MiB.
fn evidence(run: &Run) -> (Vec<&Point>, Vec<&Point>) {
    let (mut mb, mut mib) = (Vec::new(), Vec::new());
    let mut hear = |point, ratio: f64| {
        if is_near(ratio, 1.0) {
            mb.push(point);
        } else if is_near(ratio, MIB_OVER_MB) {
            mib.push(point);
        }
    };
    for point in &run.points {
        let printed = point.flows().filter(|flow| is_printed(flow));
        printed.filter_map(|flow| ratio(point, flow)).for_each(|ratio| hear(point, ratio));
        // A table of bandwidth beside one of requests: sequential reads against random reads of the
        // same size, where the device delivers both at its limit.
        if let Some(ratio) = across(run, point) {
            hear(point, ratio);
        }
    }
    (mb, mib)
}

/// Random reads x size over a printed sequential bandwidth of the same target and size.
fn across(run: &Run, sequential: &Point) -> Option<f64> {
    let axes = &sequential.axes;
    let printed = sequential.flows().all(is_printed) && sequential.iops().is_none();
    if axes.access != Some(Access::Sequential) || axes.read_percent != Some(100) || !printed {
        return None;
    }
    let random = run.points.iter().find(|point| {
        point.axes.access == Some(Access::Random)
            && point.axes.read_percent == axes.read_percent
            && point.axes.block_bytes == axes.block_bytes
            && point.axes.target == axes.target
            && point.flows().all(is_printed)
            && point.bytes_per_second().is_none()
    })?;
    Some(random.iops()? * axes.block_bytes? as f64 / sequential.bytes_per_second()?)
}

pub(super) fn check(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if context.is_mib {
        let (_, points) = evidence(context.run);
        let text = "what is printed as MB/s is MiB/s: requests x size agree only so";
        findings.push(finding("units", Severity::Warning, &points, text));
    }
    let (mut expanded, mut partly) = (Vec::new(), Vec::new());
    for point in context.points() {
        let approximate = context.facts.text(&point.axes.target, "precision");
        let tolerance = if approximate.is_some() { APPROXIMATE } else { TOLERANCE };
        for flow in point.flows() {
            let unit = if is_printed(flow) && context.is_mib { MIB_OVER_MB } else { 1.0 };
            let Some(ratio) = ratio(point, flow).map(|ratio| ratio / unit) else { continue };
            if (ratio - 1.0).abs() <= tolerance {
                continue;
            }
            if is_printed(flow) && EXPANDED.contains(&ratio) {
                expanded.push(point);
            } else if is_printed(flow) && (1.0..EXPANDED.start).contains(&ratio) {
                partly.push((point, ratio));
            } else {
                findings.push(finding("units", Severity::Error, &[point], contradiction(ratio)));
            }
        }
    }
    if expanded.is_empty() {
        for (point, ratio) in partly {
            findings.push(finding("units", Severity::Error, &[point], contradiction(ratio)));
        }
    } else {
        expanded.extend(partly.iter().map(|(point, _)| *point));
        let text = "IOPS are 2.4 % too high (in part less): figures printed as \"10.0k\" were \
                    multiplied by 1,024; bandwidth over size is right";
        findings.push(finding("units", Severity::Error, &expanded, text));
    }
    findings
}

fn contradiction(ratio: f64) -> String {
    format!("requests x size are {ratio:.3} of the stated bandwidth: one of them is wrong")
}
