//! Goal: the guarantees under every kind of fault, alone and with crashes.
//! Method: scenarios of the swarm (see `voltier_sim::swarm`): the kept regressions, and a few seeds;
//! `cargo xtask sim` runs as many as there is time for.

use voltier_sim::report;
use voltier_sim::scenario::Scenario;
use voltier_sim::swarm::{self, regressions};
use voltier_sim::{Counts, FaultKind};

/// Seeds that `make test` runs here, beside those of `cargo xtask sim`.
const SEEDS: u64 = 40;

fn run(scenario: &Scenario) -> Counts {
    let outcome = swarm::run(scenario, true);
    assert!(outcome.failure.is_none(), "{}", report::failure(scenario, &outcome));
    outcome.counts
}

#[test]
fn what_once_broke_a_promise_breaks_none_any_more() {
    for kept in regressions().expect("the list can be read") {
        run(&kept.scenario);
    }
}

#[test]
fn a_few_seeds_keep_every_promise_and_meet_most_faults() {
    let mut sum = Counts::default();
    for seed in 1_000_000..1_000_000 + SEEDS {
        sum.add(&run(&Scenario::of_seed(seed)));
    }
    let met = sum.faults.iter().filter(|count| **count > 0).count();
    assert!(met * 3 > FaultKind::ALL.len() * 2, "only {met} kinds: {:?}", sum.faults);
}

#[test]
fn a_seed_does_the_same_twice_and_another_one_does_not() {
    for seed in [3, 5, 8, 13, 21] {
        let (first, second) = (
            swarm::run(&Scenario::of_seed(seed), false),
            swarm::run(&Scenario::of_seed(seed), true),
        );
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert_eq!(first.counts, second.counts, "seed {seed}");
        assert_ne!(first.trace_hash, swarm::run(&Scenario::of_seed(seed + 1), false).trace_hash);
    }
}
