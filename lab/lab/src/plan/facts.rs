//! The facts of a plan in the report of its run, and the heads that the SNIA standard wants of its tests.

use voltier_results::report::{PlanFacts, PtsTest};
use voltier_results::result::{Run, Test};
use voltier_results::size::format_bytes;

use super::{Extent, Method, Pts, parse};

/// The plan of a run of ours, for the report; `None` when the run has none that can be read.
pub fn of(run: &Run) -> Option<PlanFacts> {
    let plan = parse(&run.manifest.plan_text).ok()?;
    let pts_tests = match &plan.method {
        Method::Pts(pts) => Some(pts.tests().map(|test| test_facts(pts, test)).collect()),
        _ => None,
    };
    let deviations = match &plan.method {
        Method::Pts(pts) => super::deviations::of(pts, run),
        _ => Vec::new(),
    };
    // The quick form says in its title that it is no result of PTS.
    let title = match deviations.is_empty() || plan.is_quick {
        true => plan.title(),
        false => format!("{} (PTS-like: see what differs from the standard)", plan.title()),
    };
    Some(PlanFacts { title, is_quick: plan.is_quick, pts_tests, deviations })
}

fn test_facts(pts: &Pts, test: Test) -> PtsTest {
    PtsTest {
        test,
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

fn first_preconditioning(pts: &Pts, test: Test) -> String {
    match test {
        Test::Wsat | Test::Hir | Test::Xsr | Test::Ecw | Test::Dirth => "none".to_owned(),
        Test::Iops | Test::Tp | Test::Lat | Test::Wipc => {
            format!("{} times the range, 128 KiB, sequential", pts.wipc_passes)
        }
    }
}

fn second_preconditioning(pts: &Pts, test: Test) -> String {
    let Pts { threads, depth, rounds_max, samples, .. } = pts;
    match test {
        Test::Iops => {
            format!("the test itself, TC {threads}, QD {depth}, {rounds_max} rounds at most")
        }
        Test::Tp => format!("the test itself, TC 1, QD {depth}, {rounds_max} rounds at most"),
        Test::Lat => format!("the test itself, TC 1, QD 1, {rounds_max} rounds at most"),
        Test::Hir => {
            format!("random writes, TC {threads}, QD {depth}, rounds of {samples} samples")
        }
        Test::Ecw | Test::Dirth => {
            let most = pts.dirth_loads.iter().max().copied().unwrap_or_default();
            format!("random writes, TC {most}, QD {most}, rounds of {samples} samples")
        }
        Test::Wsat | Test::Xsr | Test::Wipc => "none".to_owned(),
    }
}

fn stimulus(pts: &Pts, test: Test) -> String {
    let Pts { threads, depth, seconds, .. } = pts;
    match test {
        Test::Iops => format!("random, TC {threads}, QD {depth}, {seconds} s a point"),
        Test::Tp => format!("sequential, TC 1, QD {depth} [unchecked], {seconds} s a point"),
        Test::Lat => format!("random, TC 1, QD 1, {seconds} s a point"),
        Test::Wsat => {
            format!("random 4 KiB writes, TC {threads}, QD {depth}, {seconds} s a sample")
        }
        Test::Hir => format!(
            "random 4 KiB writes, TC {threads}, QD {depth}, {} bursts of {} s at each wait state",
            pts.hir_bursts, pts.hir_burst_seconds
        ),
        Test::Xsr => {
            "sequential 1 MiB, random 8 KiB, sequential 1 MiB writes, TC 1, QD 32".to_owned()
        }
        Test::Ecw => format!(
            "JESD219: 512 bytes to 64 KiB (what is below a block of the target as 4 KiB), 40 % reads, half \
             of the requests to 5 % of the range [unchecked], TC and QD of {:?}, {seconds} s a point",
            pts.dirth_loads
        ),
        Test::Dirth => format!(
            "random {}, {} % reads, TC and QD of {:?}, {seconds} s a point",
            format_bytes(pts.dirth_block.0),
            pts.dirth_read,
            pts.dirth_loads
        ),
        Test::Wipc => String::new(),
    }
}
