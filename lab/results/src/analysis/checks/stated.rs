//! Statements of a document about its own figures: summaries, ratios, claims.

use super::context::{Context, is_like, is_printed};
use crate::analysis::finding::{Finding, Severity, finding};
use crate::result::{Axes, Point};

/// Phase of points that a document states again in its summary.
pub(super) const SUMMARY: &str = "summary";

pub(super) fn restated(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for summary in context.points().filter(|point| point.axes.phase == SUMMARY) {
        let measured = context
            .of_target(&summary.axes.target)
            .filter(|point| point.axes.phase != SUMMARY && is_like(&point.axes, &summary.axes));
        for point in measured {
            findings.extend(
                differ(context, summary, point)
                    .map(|text| finding("restated", Severity::Error, &[summary, point], text)),
            );
        }
    }
    findings
}

fn differ(context: &Context<'_>, summary: &Point, point: &Point) -> Option<String> {
    let latencies = summary.latency_mean_ns().zip(point.latency_mean_ns());
    let rates = context.iops(summary).zip(context.iops(point));
    // With latencies, these are points of one curve: more requests in less time contradict it.
    if let Some(((r_summary, r), (x_summary, x))) = latencies.zip(rates) {
        return (x_summary > x && r_summary <= r).then(|| {
            format!(
                "the summary has {x_summary:.0}/s at {:.1} ms or less, the test reaches {:.1} ms \
                 at {x:.0}/s",
                r_summary / 1e6,
                r / 1e6
            )
        });
    }
    let (stated, x) = rates?;
    let off = stated / x - 1.0;
    (off.abs() > 0.02)
        .then(|| format!("the summary has {stated:.0}/s, the test {x:.0}/s: {:+.0} %", 100.0 * off))
}

/// Ratios in percent of the SSD alone, or of the disk alone.
pub(super) fn ratio(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for point in context.points() {
        let Some(stated) = point.metrics.get("stated_ratio_percent") else { continue };
        let target = &point.axes.target;
        let over = |tier: Option<&'_ str>| {
            let (base, _) = context.best_like(tier?, &point.axes)?;
            Some(100.0 * context.iops(point)? / base)
        };
        let (fast, disk) =
            (over(context.facts.fast_tier(target)), over(context.facts.backing(target)));
        let is_near = |ratio: Option<f64>| ratio.is_some_and(|r| (r - stated).abs() < 1.0);
        if is_near(disk) {
            continue;
        }
        let text = match (is_near(fast), fast, disk) {
            (true, Some(fast), Some(disk)) => format!(
                "the stated {stated:.0} % are of the SSD alone ({fast:.1} %); of the disk alone it \
                 is {:.1} times",
                disk / 100.0
            ),
            (true, ..) => format!("the stated {stated:.0} % are of the SSD alone"),
            (_, Some(fast), _) => format!("stated {stated:.0} %, the figures give {fast:.1} %"),
            _ => continue,
        };
        findings.push(finding("stated_ratio", Severity::Warning, &[point], text));
    }
    findings
}

/// A rate that a maker claims, against the best that its own tests show.
pub(super) fn claim(context: &Context<'_>) -> Vec<Finding> {
    let targets = context.run.manifest.targets.iter();
    let unmet = targets.filter_map(|target| {
        let claimed = context.facts.number(&target.name, "claimed_bytes_per_second")?;
        let all = context.of_target(&target.name);
        let rates = all.filter_map(|point| Some((printed_bandwidth(context, point)?, point)));
        let (best, point) = rates.max_by(|one, other| one.0.total_cmp(&other.0))?;
        (claimed > 1.05 * best).then(|| {
            let (claimed, best) = (claimed / 1e9, best / 1e9);
            let text = format!("{claimed:.1} GB/s are claimed, the best measured is {best:.1}");
            finding("claim", Severity::Error, &[point], text)
        })
    });
    unmet.collect()
}

fn printed_bandwidth(context: &Context<'_>, point: &Point) -> Option<f64> {
    let only_bandwidth = point.iops().is_none() && point.flows().all(is_printed);
    if only_bandwidth { point.bytes_per_second() } else { context.bandwidth(point) }
}

/// Axes of a summary: what it is about, without the load.
pub(crate) fn summary_of(axes: &Axes) -> Axes {
    let phase = SUMMARY.to_owned();
    Axes { phase, depth: None, jobs: None, ..axes.clone() }
}
