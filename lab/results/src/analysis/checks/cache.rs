//! A cache between an SSD and a disk: what misses, filling and speed allow.

use super::context::Context;
use crate::analysis::finding::{Finding, Severity, finding};
use crate::analysis::warm_up;
use crate::result::{Access, Axes, Point};

/// Disks differ from run to run.
const MISS_SLACK: f64 = 1.1;

/// Half a percent: what a printed percentage may have been rounded by.
const ROUNDING: f64 = 0.005;

/// Share of reads that hit: counted, or printed in percent. The flag says whether it was printed.
fn read_hits(point: &Point) -> Option<(f64, bool)> {
    let counted = point.cache.and_then(|cache| {
        let asked = cache.read_requests;
        (asked > 0).then(|| (cache.read_hits as f64 / asked as f64, false))
    });
    let printed = || Some((point.metrics.get("read_hit_percent")? / 100.0, true));
    counted.or_else(printed).filter(|(hits, _)| (0.0..=1.0).contains(hits))
}

/// Reads per second of a point.
fn read_rate(context: &Context<'_>, point: &Point) -> Option<f64> {
    let share = f64::from(point.axes.read_percent?) / 100.0;
    let all = context.iops(point)?;
    let counted = point.read.as_ref().filter(|flow| flow.iops > 0.0 && flow.requests > 0);
    Some(counted.map_or(all * share, |flow| flow.iops))
}

pub(super) fn miss_bound(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for point in context.points().filter(|point| point.axes.access == Some(Access::Random)) {
        let Some(disk) = context.facts.backing(&point.axes.target) else { continue };
        let like = Axes { read_percent: Some(100), ..point.axes.clone() };
        let alone = context.best_like(disk, &like);
        let needed = read_rate(context, point).zip(read_hits(point)).zip(alone);
        let Some(((reads, (hits, printed)), (alone, of))) = needed else { continue };
        let best = if printed { (hits + ROUNDING).min(1.0) } else { hits };
        let (misses, least) = ((1.0 - best) * reads, 1.0 - alone / reads);
        if misses > MISS_SLACK * alone {
            let text = format!(
                "{:.1} % hits leave {:.0} misses/s, the disk alone delivers {alone:.0}/s: at this \
                 speed at least {:.2} % were hits in the window",
                100.0 * hits,
                (1.0 - hits) * reads,
                100.0 * least
            );
            findings.push(finding("miss_bound", Severity::Error, &[point, of], text));
        }
    }
    findings
}

pub(super) fn fill_bound(context: &Context<'_>) -> Vec<Finding> {
    context
        .points()
        .filter_map(|point| from_empty(context, point).or(read_too_much(context, point)))
        .collect()
}

/// Random reads over a set, from an empty cache. The share that hits is at most the share that the disk
/// can have brought in by the end.
fn from_empty(context: &Context<'_>, point: &Point) -> Option<Finding> {
    let axes = &point.axes;
    let target = context.facts.target(&axes.target)?;
    let is_empty = context.facts.text(&axes.target, "cache_at_start") == Some("empty");
    let pure = axes.access == Some(Access::Random) && axes.read_percent == Some(100);
    if !is_empty || !pure || target.size_bytes == 0 {
        return None;
    }
    let (alone, of) = context.best_like(context.facts.backing(&axes.target)?, axes)?;
    let seconds = seconds(point)?;
    let (hits, _) = read_hits(point)?;
    let filled = alone * seconds * axes.block_bytes? as f64;
    let share = (filled / target.size_bytes as f64).min(1.0);
    (hits > MISS_SLACK * share + ROUNDING).then(|| {
        let text = format!(
            "{:.0} % hits from an empty cache: in {seconds:.0} s the disk can have filled {:.2} GB \
             of {:.0} GB; the cache was warm before",
            100.0 * hits,
            filled / 1e9,
            target.size_bytes as f64 / 1e9
        );
        finding("fill_bound", Severity::Error, &[point, of], text)
    })
}

/// Counted reads of the disk against the best that was ever measured of it.
fn read_too_much(context: &Context<'_>, point: &Point) -> Option<Finding> {
    let read = point.cache?.origin_bytes_read as f64;
    let disk = context.facts.backing(&point.axes.target)?;
    let rates = context.of_target(disk).filter_map(|p| Some((context.bandwidth(p)?, p)));
    let (best, of) = rates.max_by(|one, other| one.0.total_cmp(&other.0))?;
    let possible = best * seconds(point)?;
    (read > MISS_SLACK * possible).then(|| {
        let (read, possible) = (read / 1e6, possible / 1e6);
        let text = format!("{read:.0} MB read from a disk that delivers {possible:.0} MB at best");
        finding("fill_bound", Severity::Error, &[point, of], text)
    })
}

fn seconds(point: &Point) -> Option<f64> {
    let longest = point.flows().map(|flow| flow.runtime_ns).max()?;
    (longest > 0).then_some(longest as f64 / 1e9)
}

pub(super) fn ceiling(context: &Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for point in context.points() {
        let target = &point.axes.target;
        let tiers = context.facts.fast_tier(target).zip(context.facts.backing(target));
        let Some((fast, disk)) = tiers else { continue };
        let like = |name| context.best_like(name, &point.axes);
        let Some((x, (fast, of))) = context.iops(point).zip(like(fast)) else { continue };
        let both = fast + like(disk).map_or(0.0, |(disk, _)| disk);
        if x > 1.05 * both {
            let text = format!("{x:.0}/s, SSD and disk together {both:.0}/s");
            findings.push(finding("cache_ceiling", Severity::Error, &[point, of], text));
        } else if x > 1.03 * fast {
            let text = format!(
                "{:.1} % faster than the SSD alone: the disk served a part, or the spread of \
                 single runs is shown",
                100.0 * (x / fast - 1.0)
            );
            findings.push(finding("cache_ceiling", Severity::Note, &[point, of], text));
        }
    }
    findings
}

pub(super) fn hit_rate(context: &Context<'_>) -> Vec<Finding> {
    let verdicts = warm_up::of_run(context.run).into_iter();
    let differ = verdicts.filter_map(|verdict| {
        let (implied, counted) = (verdict.implied_hit_rate?, verdict.counted_hit_rate?);
        ((implied - counted).abs() > 0.05).then(|| Finding {
            check: "hit_rate".to_owned(),
            severity: Severity::Warning,
            points: Vec::new(),
            text: format!(
                "{}: {:.0} % hits counted, the speed implies {:.0} %: something else limits",
                verdict.label,
                100.0 * counted,
                100.0 * implied
            ),
        })
    });
    differ.collect()
}

/// Targets whose working set fits the cache: replacement was never exercised.
pub(super) fn working_set(context: &Context<'_>) -> Vec<Finding> {
    let targets = context.run.manifest.targets.iter();
    let fits = targets.filter_map(|target| {
        let cache = ["cache_bytes", "ssd_bytes"]
            .iter()
            .find_map(|fact| context.facts.number(&target.name, fact))?;
        let points: Vec<&Point> = context.of_target(&target.name).collect();
        let (set, cache) = (target.size_bytes as f64 / 1e9, cache / 1e9);
        (set > 0.0 && set < cache && !points.is_empty()).then(|| {
            let text = format!(
                "{}: a set of {set:.0} GB in a cache of {cache:.0} GB: replacement is never \
                 exercised",
                target.name
            );
            finding("working_set", Severity::Note, &points, text)
        })
    });
    fits.collect()
}
