//! Goal: a host that takes an image over finds what the promises allow, and nobody writes to it but that host.
//! Method: seeds of takeovers (see `voltier_sim::Takeover`); `cargo xtask sim --takeovers` runs more.

use voltier_sim::scenario::Scenario;
use voltier_sim::{Counts, FaultKind, report, swarm};

/// Takeovers that `make test` runs, beside those of the swarm.
const SEEDS: u64 = 120;

#[test]
fn a_takeover_finds_what_was_told_and_the_old_host_changes_nothing_any_more() {
    let mut sum = Counts::default();
    for seed in 0..SEEDS {
        let scenario = Scenario::of_takeover(seed);
        let outcome = swarm::run(&scenario, true);
        assert!(outcome.failure.is_none(), "{}", report::failure(&scenario, &outcome));
        sum.add(&outcome.counts);
    }
    let count = |kind: FaultKind| sum.faults[kind as usize];
    assert_eq!(count(FaultKind::Takeover), SEEDS);
    assert!(count(FaultKind::CutOff) > 0 && count(FaultKind::HungDrive) > 0);
}

#[test]
fn the_swarm_draws_takeovers_and_can_leave_them_out() {
    let drawn = (0..400).map(Scenario::of_seed).filter(|it| it.draw().takeover.is_some());
    let drawn: Vec<Scenario> = drawn.collect();
    assert!(drawn.len() > 4, "{} of 400", drawn.len());
    let without = Scenario { without: vec![FaultKind::Takeover], ..drawn[0].clone() };
    assert!(without.draw().takeover.is_none());
}

#[test]
fn kept_scenarios_of_lives_draw_no_takeover() {
    let kept = swarm::regressions().expect("the list can be read").into_iter();
    for scenario in kept.map(|kept| kept.scenario).filter(|scenario| !scenario.arrays) {
        let drawn = scenario.draw();
        assert_eq!(drawn.takeover.is_some(), scenario.takeover, "{}", scenario.seed);
    }
}
