//! Goal: every management command of arrays is whole or not at all, whatever the moment of a crash.
//! Method: see `voltier_sim::sweep::arrays`; some of the events are crash points here, and all of them with
//! `cargo xtask sim --manage 1`.

use voltier_sim::report;
use voltier_sim::scenario::Scenario;
use voltier_sim::swarm::{self, catch_panics};
use voltier_sim::sweep::arrays::ArrayCommand;

/// One event in so many is a crash point.
const STRIDE: u64 = 67;

#[test]
fn every_command_of_arrays_survives_crashes() {
    catch_panics();
    for (seed, command) in (0..).zip(ArrayCommand::ALL) {
        let scenario =
            Scenario { stride: Some(STRIDE), ..Scenario::of_array_command(command, seed) };
        let outcome = swarm::run(&scenario, true);
        assert!(outcome.failure.is_none(), "{}", report::failure(&scenario, &outcome));
        assert!(outcome.counts.crash_points > 0, "{command}: {:?}", outcome.counts);
    }
}
