//! Goal: what an array acknowledged is there after a cut at any event, whichever members are lost with
//! it, and parity fits the data. Method: seeds of `voltier_sim::arrays`; `cargo xtask sim --arrays` runs
//! as many as there is time for.

use voltier_sim::scenario::Scenario;
use voltier_sim::{Counts, report, swarm};

use crate::sampled::sampled;

/// Seeds that are tried; a run of the tests tries one in [`SAMPLED`].
const SEEDS: u64 = 60;
/// Seeds of arrays that get a member for capacity.
const ROOM_SEEDS: u64 = 16;
const SAMPLED: u64 = 5;

#[test]
fn arrays_of_all_levels_survive_cuts_and_every_choice_of_lost_members() {
    let mut sum = Counts::default();
    let seeds = sampled(SEEDS, SAMPLED);
    for seed in 2_000_000..2_000_000 + seeds {
        let scenario = Scenario::of_array_seed(seed);
        let outcome = swarm::run(&scenario, true);
        assert!(outcome.failure.is_none(), "{}", report::failure(&scenario, &outcome));
        sum.add(&outcome.counts);
    }
    assert_eq!(sum.array_seeds, seeds);
    assert!(sum.array_points > 10 * seeds, "{} crash points", sum.array_points);
}

#[test]
fn arrays_that_move_to_wider_stripes_survive_cuts_and_every_choice_of_lost_members() {
    let scenarios = (3_000_000..).map(Scenario::of_array_seed).filter(|scenario| {
        let is_plain = scenario.draw_stack().is_none() && scenario.draw_array_command().is_none();
        is_plain && scenario.draw_arrays().expansions > 0
    });
    let mut sum = Counts::default();
    for scenario in scenarios.take(sampled(ROOM_SEEDS, SAMPLED) as usize) {
        let outcome = swarm::run(&scenario, true);
        assert!(outcome.failure.is_none(), "{}", report::failure(&scenario, &outcome));
        sum.add(&outcome.counts);
    }
    assert!(sum.reshape_points > 10, "{} crashes in a move", sum.reshape_points);
}

#[test]
fn a_seed_of_arrays_does_the_same_twice() {
    for seed in [3, 5, 8, 13] {
        let scenario = Scenario::of_array_seed(seed);
        let (first, second) = (swarm::run(&scenario, false), swarm::run(&scenario, true));
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert_eq!(first.counts, second.counts, "seed {seed}");
    }
}
