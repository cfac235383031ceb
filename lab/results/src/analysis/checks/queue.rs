//! Little's law, links, networks, clients.

use super::context::{Context, is_printed};
use crate::analysis::finding::{Finding, Severity, finding};
use crate::analysis::limits::{self, Limit};
use crate::analysis::{scaling as clients, series};
use crate::result::Point;

/// Below this mean latency the load generator's own time between two requests matters.
const GENERATOR_NS: f64 = 20_000.0;

/// N = X R: more in flight than the plan allows is impossible; less means idle places.
pub(super) fn little(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for point in context.points() {
        // A replay that keeps its times is an open loop, and says how late it was.
        let open_loop = point.command.iter().any(|word| word.starts_with("--rate"))
            || point.scheduled.is_some();
        let known = series::outstanding(&point.axes).filter(|n| *n >= 1.0);
        let Some((n, (x, r))) = known.zip(point.iops().zip(point.latency_mean_ns())) else {
            continue;
        };
        let in_flight = x * r / 1e9;
        let ratio = in_flight / n;
        let text = format!("throughput x latency is {in_flight:.1} requests, the plan has {n:.0}");
        if ratio > 1.02 {
            let text = format!("{text}: rate or latency is too high");
            findings.push(finding("little", Severity::Error, &[point], text));
        } else if ratio < 0.95 && r >= GENERATOR_NS && !open_loop {
            let printed = point.flows().all(is_printed);
            let severity = if printed { Severity::Warning } else { Severity::Note };
            let text = format!("{text}: the queue was not kept full, or a figure is too low");
            findings.push(finding("little", severity, &[point], text));
        }
    }
    findings
}

/// Payload of SATA at 1.5, 3 and 6 Gb/s.
const SATA: [(f64, &str); 3] = [(150e6, "1.5"), (300e6, "3"), (600e6, "6")];

pub(super) fn link(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for point in context.points() {
        let rate = context.facts.link_rate(&point.axes.target);
        let Some((bytes, link)) = context.bandwidth(point).zip(rate) else { continue };
        let (share, mb, of) = (bytes / link, bytes / 1e6, link / 1e6);
        if share > 1.0 {
            let text = format!("{mb:.0} MB/s are more than the {of:.0} MB/s of the link");
            findings.push(finding("link", Severity::Error, &[point], text));
        } else if share > 0.97 {
            let text = format!("{mb:.0} MB/s are the {of:.0} MB/s of the link, not the device");
            findings.push(finding("link", Severity::Warning, &[point], text));
        }
    }
    findings.extend(context.run.manifest.targets.iter().filter_map(|t| guess(context, &t.name)));
    findings
}

/// A SATA device of unknown link speed whose best figure lies just below one.
fn guess(context: &Context<'_>, target: &str) -> Option<Finding> {
    let is_sata = context.facts.text(target, "interface").is_some_and(|i| i.contains("SATA"));
    if !is_sata || context.facts.link_rate(target).is_some() {
        return None;
    }
    let rates = context.of_target(target).filter_map(|p| Some((context.bandwidth(p)?, p)));
    let (best, point) = rates.max_by(|one, other| one.0.total_cmp(&other.0))?;
    let (link, speed) = SATA.into_iter().find(|(link, _)| best <= *link && best >= 0.9 * link)?;
    let text = format!(
        "at most {:.0} MB/s looks like SATA at {speed} Gb/s ({:.0} MB/s), not like the device: \
         the link speed belongs in the environment",
        best / 1e6,
        link / 1e6
    );
    Some(finding("link", Severity::Note, &[point], text))
}

pub(super) fn network(context: &Context<'_>) -> Vec<Finding> {
    let near = limits::of_run(context.run).into_iter();
    let of_network =
        near.filter(|l| matches!(l.limit, Limit::ClientNetwork | Limit::StorageNetwork));
    let found = of_network.map(|limit| {
        let impossible = limit.share > 1.0;
        let severity = if impossible { Severity::Error } else { Severity::Note };
        let text = if impossible {
            format!("{}: more than it carries", limit.text)
        } else {
            format!("{}: the network was measured, not the storage", limit.text)
        };
        let check = "network".to_owned();
        Finding { check, severity, points: vec![limit.point], text }
    });
    found.collect()
}

pub(super) fn scaling(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for verdict in clients::of_run(context.run) {
        let top = verdict.points.iter().map(|point| point.rate).fold(f64::MIN, f64::max);
        for point in verdict.points.iter().filter(|point| point.rate < 0.5 * top) {
            let fewer = verdict
                .points
                .iter()
                .any(|other| other.clients < point.clients && other.rate > 2.0 * point.rate);
            if fewer {
                let text = format!(
                    "{}: {} clients have {:.0}/s together, fewer had {top:.0}/s: a cache of the \
                     clients was measured, or a figure is wrong",
                    verdict.label, point.clients, point.rate
                );
                findings.push(Finding {
                    check: "scaling".to_owned(),
                    severity: Severity::Warning,
                    points: vec![point.point.clone()],
                    text,
                });
            }
        }
        let above = verdict.points.iter().filter(|point| point.efficiency > 1.05);
        let points: Vec<String> = above.map(|point| point.point.clone()).collect();
        if !points.is_empty() {
            let check = "scaling".to_owned();
            let text = format!("{}: {}", verdict.label, verdict.text);
            findings.push(Finding { check, severity: Severity::Note, points, text });
        }
    }
    findings
}

pub(super) fn common_interval(context: &Context<'_>) -> Vec<Finding> {
    let apart = |point: &Point| {
        let common = clients::sharing(&point.clients)?.common_interval?;
        (common < 0.9).then(|| {
            let percent = 100.0 * common;
            let text = format!("the clients were active together for {percent:.0} % of the time");
            finding("common_interval", Severity::Warning, &[point], text)
        })
    };
    context.points().filter_map(apart).collect()
}
