//! Physical consistency: what figures cannot be, whoever measured them.
//!
//! Each check has a name and a rule, and gives [`Finding`]s with the points concerned. A check says
//! nothing where the figures it needs are missing. The checks are applied to our own and to imported
//! runs, and to the published tables, whose errors the checks must find.

mod array;
mod cache;
mod context;
mod method;
mod queue;
mod stated;
mod units;

pub(crate) use stated::summary_of;

use serde::Serialize;

use super::facts::Facts;
use super::finding::Finding;
use crate::result::Run;
use context::Context;

/// A check by name.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Check {
    /// As in [`Finding::check`].
    pub name: &'static str,
    /// The rule in one line.
    pub rule: &'static str,
    #[serde(skip)]
    run: fn(&Context<'_>) -> Vec<Finding>,
}

/// All checks.
pub const CHECKS: &[Check] = &[
    Check {
        name: "units",
        rule: "IOPS x request size is 0.995 to 1.005 of the bandwidth, in MB or in MiB",
        run: units::check,
    },
    Check {
        name: "little",
        rule: "throughput x latency is 0.95 to 1.02 of the requests in flight",
        run: queue::little,
    },
    Check {
        name: "miss_bound",
        rule: "misses/s are at most 1.1 times what the disk alone delivers",
        run: cache::miss_bound,
    },
    Check {
        name: "fill_bound",
        rule: "a cache holds no more than its disk can have given it in the time",
        run: cache::fill_bound,
    },
    Check {
        name: "cache_ceiling",
        rule: "a cached volume is not faster than SSD and disk together",
        run: cache::ceiling,
    },
    Check {
        name: "hit_rate",
        rule: "the hit rate implied by the speed is within 5 points of the counted one",
        run: cache::hit_rate,
    },
    Check {
        name: "working_set",
        rule: "a cache is judged with a working set that it cannot hold, too",
        run: cache::working_set,
    },
    Check {
        name: "additivity",
        rule: "n devices give at most 1.05 times n of one device",
        run: array::additivity,
    },
    Check {
        name: "sequential",
        rule: "sequential is at least 0.95 of random at the same size",
        run: array::sequential,
    },
    Check {
        name: "small_requests",
        rule: "a smaller request is not slower than a larger one",
        run: array::small_requests,
    },
    Check {
        name: "link",
        rule: "bandwidth is at most 0.97 of what the link carries",
        run: queue::link,
    },
    Check {
        name: "network",
        rule: "bandwidth is below 0.9 of the network, else the network was measured",
        run: queue::network,
    },
    Check {
        name: "scaling",
        rule: "more clients do not lose more than half of the throughput",
        run: queue::scaling,
    },
    Check {
        name: "common_interval",
        rule: "clients are active together for at least 0.9 of the time",
        run: queue::common_interval,
    },
    Check { name: "repeat", rule: "repeats vary by at most 5 %", run: method::repeat },
    Check {
        name: "streams",
        rule: "sequential jobs on one device start at different places",
        run: method::streams,
    },
    Check {
        name: "restated",
        rule: "a summary says what the measurement says",
        run: stated::restated,
    },
    Check {
        name: "stated_ratio",
        rule: "a stated ratio is that of the figures beside it",
        run: stated::ratio,
    },
    Check { name: "claim", rule: "a claimed rate was measured", run: stated::claim },
];

/// Every finding of a run, worst first.
pub fn of_run(run: &Run) -> Vec<Finding> {
    let context = Context { run, facts: Facts::new(run), is_mib: units::is_mib(run) };
    let mut findings: Vec<Finding> =
        CHECKS.iter().flat_map(|check| (check.run)(&context)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;
    use crate::result::{Point, Status};

    #[test]
    fn checks_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = CHECKS.iter().map(|check| check.name).collect();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn a_clean_run_has_no_findings() {
        let mut run = sample::run();
        for (target, iops) in [("hdd", 200.0), ("ssd", 40_000.0), ("accelerated", 39_000.0)] {
            let mut point = sample::point(target, iops, 8.0 / iops * 1e9, 8);
            point.axes.target = target.to_owned();
            run.points.push(point);
        }
        assert_eq!(of_run(&run), []);
    }

    #[test]
    fn streams_of_several_requests_do_not_contradict_littles_law() {
        // Four streams of four requests each: sixteen are in flight.
        let mut point = sample::point("a", 1000.0, 16.0e6, 1);
        point.axes.depth = None;
        (point.axes.small, point.axes.large) = (Some(0), Some(4));
        point.axes.stream_depth = Some(4);
        let run = Run { points: vec![point], ..sample::run() };
        assert_eq!(of_run(&run), []);
    }

    #[test]
    fn a_figure_that_cannot_be_is_found_by_name() {
        let found = |point: Point| -> Vec<String> {
            let run = Run { points: vec![point], ..sample::run() };
            of_run(&run).into_iter().map(|finding| finding.check).collect()
        };
        assert_eq!(found(sample::point("a", 1000.0, 8.3e6, 8)), ["little"]);
        let mut point = sample::point("a", 1000.0, 8.0e6, 8);
        point.read.as_mut().unwrap().bytes_per_second *= 1.02;
        assert_eq!(found(point.clone()), ["units"]);
        point.status = Status::Invalid("interrupted".to_owned());
        assert!(found(point).is_empty());
    }
}
