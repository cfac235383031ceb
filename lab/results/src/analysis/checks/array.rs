//! Several devices against one, sequential against random, small against large.

use super::context::Context;
use crate::analysis::finding::{Finding, Severity, finding};
use crate::analysis::series;
use crate::result::{Access, Axes, Point};

pub(super) fn additivity(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for point in context.points() {
        let target = &point.axes.target;
        let of = context.facts.text(target, "device").zip(context.facts.number(target, "devices"));
        let Some((device, n)) = of else { continue };
        let single = context.best_like(device, &point.axes);
        let Some((x, (one, single))) = context.iops(point).zip(single) else { continue };
        let share = x / (n * one);
        if share > 1.05 {
            let text = format!(
                "{n:.0} devices give {:.0} % of {n:.0} times one: no steady state, or the single \
                 device was held back",
                100.0 * share
            );
            findings.push(finding("additivity", Severity::Error, &[point, single], text));
        }
    }
    findings
}

pub(super) fn sequential(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is = |access| move |point: &&Point| point.axes.access == Some(access);
    let is_measured = |point: &&Point| point.axes.phase != super::stated::SUMMARY;
    for point in context.points().filter(is(Access::Sequential)).filter(is_measured) {
        let random = Axes { access: Some(Access::Random), ..point.axes.clone() };
        let best = context.best_like(&point.axes.target, &random);
        let Some((x, (random, other))) = context.iops(point).zip(best) else { continue };
        let load = |point: &Point| series::outstanding(&point.axes);
        let same_load = load(point).zip(load(other)).map(|(one, two)| one >= two);
        // More in flight at random may well be faster; a wide gap is still worth a word.
        if x >= 0.95 * random || (same_load.is_none() && x >= 0.75 * random) {
            continue;
        }
        let mut text = format!("sequential is {:.2} of random at the same size", x / random);
        let severity = if same_load == Some(false) {
            text += ": it had fewer requests in flight, so the depth was measured";
            Severity::Warning
        } else {
            text += " and load: depth, striping or read-ahead is at fault";
            Severity::Warning
        };
        findings.push(finding("sequential", severity, &[point, other], text));
    }
    findings
}

/// A write that takes a quarter longer than one twice its size or more: read, modify, write.
const SLOWER: f64 = 1.25;

pub(super) fn small_requests(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let groups = series::group(context.run, |axes| {
        (axes.block_bytes, axes.round, axes.pass) = (None, None, None);
    });
    for group in groups.iter().filter(|group| group.axes.read_percent == Some(0)) {
        let found = group
            .points
            .iter()
            .filter_map(|point| Some((point.axes.block_bytes?, point.latency_mean_ns()?, *point)));
        let mut sizes: Vec<(u64, f64, &Point)> = found.collect();
        sizes.sort_by_key(|(size, ..)| *size);
        for (index, &(size, latency, point)) in sizes.iter().enumerate() {
            let quicker = sizes[index + 1..]
                .iter()
                .find(|(larger, other, _)| *larger >= 2 * size && latency > SLOWER * other);
            if let Some((larger, _, other)) = quicker {
                let text = format!(
                    "writes of {size} bytes take longer than writes of {larger}: read, modify, \
                     write below the volume's block"
                );
                findings.push(finding("small_requests", Severity::Warning, &[point, other], text));
                break;
            }
        }
    }
    findings
}
