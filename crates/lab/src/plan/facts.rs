//! The facts of a plan in the report of its run, and the heads that the SNIA standard wants of its tests.

use voltier_results::report::{PlanFacts, PtsTest};
use voltier_results::result::Run;
use voltier_results::size::format_bytes;

use super::{Extent, Method, Pts, parse};

/// The plan of a run of ours, for the report; `None` when the run has none that can be read.
pub fn facts(run: &Run) -> Option<PlanFacts> {
    let plan = parse(&run.manifest.plan_text).ok()?;
    let pts_tests = match &plan.method {
        Method::Pts(pts) => Some(pts.tests.iter().map(|test| test_facts(pts, test)).collect()),
        _ => None,
    };
    Some(PlanFacts { title: plan.title(), is_quick: plan.is_quick, pts_tests })
}

fn test_facts(pts: &Pts, test: &str) -> PtsTest {
    PtsTest {
        name: test.to_owned(),
        active_range: active_range(pts),
        preconditioning: [first_preconditioning(pts, test), second_preconditioning(pts, test)],
        stimulus: stimulus(pts, test),
    }
}

fn active_range(pts: &Pts) -> String {
    match pts.size {
        Extent::Whole => "0:100".to_owned(),
        Extent::Bytes(bytes) => format!("the first {} of the target", format_bytes(bytes)),
    }
}

fn first_preconditioning(pts: &Pts, test: &str) -> String {
    match test {
        "wsat" | "hir" | "xsr" | "ecw" | "dirth" => "none".to_owned(),
        _ => format!("{} times the range, 128 KiB, sequential", pts.wipc_passes),
    }
}

fn second_preconditioning(pts: &Pts, test: &str) -> String {
    let Pts { threads, depth, rounds_max, samples, .. } = pts;
    match test {
        "iops" => format!("the test itself, TC {threads}, QD {depth}, {rounds_max} rounds at most"),
        "tp" => format!("the test itself, TC 1, QD {depth}, {rounds_max} rounds at most"),
        "lat" => format!("the test itself, TC 1, QD 1, {rounds_max} rounds at most"),
        "hir" | "ecw" | "dirth" => format!("random writes, rounds of {samples} samples"),
        _ => "none".to_owned(),
    }
}

fn stimulus(pts: &Pts, test: &str) -> String {
    let Pts { threads, depth, seconds, .. } = pts;
    match test {
        "iops" => format!("random, TC {threads}, QD {depth}, {seconds} s a point"),
        "tp" => format!("sequential, TC 1, QD {depth} [unchecked], {seconds} s a point"),
        "lat" => format!("random, TC 1, QD 1, {seconds} s a point"),
        "wsat" => format!("random 4 KiB writes, TC {threads}, QD {depth}, {seconds} s a sample"),
        "hir" => format!(
            "random 4 KiB writes, TC {threads}, QD {depth}, {} bursts of {} s at each wait state",
            pts.hir_bursts, pts.hir_burst_seconds
        ),
        "xsr" => "sequential 1 MiB, random 8 KiB, sequential 1 MiB writes, TC 1, QD 32".to_owned(),
        "ecw" => format!(
            "JESD219: 512 bytes to 64 KiB (what is below a block of the target as 4 KiB), 40 % reads, half \
             of the requests to 5 % of the range [unchecked], TC and QD of {:?}, {seconds} s a point",
            pts.dirth_loads
        ),
        "dirth" => format!(
            "random {}, {} % reads, TC and QD of {:?}, {seconds} s a point",
            format_bytes(pts.dirth_block.0),
            pts.dirth_read,
            pts.dirth_loads
        ),
        _ => String::new(),
    }
}
