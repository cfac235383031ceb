//! Goal: every management command of arrays is whole or not at all, whatever the moment of a crash.
//! Method: see `voltier_sim::array_walk`; some of the events are crash points here, and all of them with
//! `cargo xtask sim --manage 1`.

use voltier_sim::array_walk::ArrayCommand;
use voltier_sim::report;
use voltier_sim::swarm::{Story, catch_panics};

/// One event in so many is a crash point.
const STRIDE: u64 = 67;

#[test]
fn every_command_of_arrays_survives_crashes() {
    catch_panics();
    for (seed, command) in (0..).zip(ArrayCommand::ALL) {
        let story = Story { stride: Some(STRIDE), ..Story::of_array_command(command, seed) };
        let outcome = story.run(true);
        assert!(outcome.failure.is_none(), "{}", report::failure(&story, &outcome));
        assert!(outcome.counts.crash_points > 0, "{command}: {:?}", outcome.counts);
    }
}
