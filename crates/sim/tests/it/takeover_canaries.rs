//! Goal: takeovers find bugs. Method: as for caches (`canaries.rs`), with deliberate bugs of the volume, and of the
//! cluster that the simulator stands in for.

use voltier_sim::canary as cluster;
use voltier_sim::scenario::Scenario;
use voltier_sim::{budget, swarm};
use voltier_volume::canary as volume;

use crate::canary_hunt as hunt;

/// Seeds in which each must be found.
const SEEDS: u64 = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Canary {
    /// Writes of the old host reach the image after the lock was broken.
    LateWritesTaken,
    /// The old host serves although it knows that its lock is gone.
    TakenAwayServed,
}

const CANARIES: [Canary; 2] = [Canary::LateWritesTaken, Canary::TakenAwayServed];

const SAMPLE: [&str; 2] = ["LateWritesTaken", "TakenAwayServed"];

fn choose(canary: Option<Canary>) {
    let is = |it: Canary| canary == Some(it);
    cluster::choose(is(Canary::LateWritesTaken).then_some(cluster::Canary::LateWritesTaken));
    volume::choose(is(Canary::TakenAwayServed).then_some(volume::Canary::TakenAwayServed));
}

/// The broken promise, if a takeover finds the canary.
fn found(canary: Canary, seed: u64) -> Option<String> {
    choose(Some(canary));
    let outcome = swarm::run(&Scenario::of_takeover(seed), false);
    choose(None);
    outcome.failure.map(|failure| failure.message)
}

/// Looks for a canary: its row of the table, and whether it was found.
fn row_of(canary: Canary) -> (String, bool) {
    budget::take_worlds();
    let report = (0..SEEDS).find_map(|seed| found(canary, seed).map(|said| (seed + 1, said)));
    let worlds = budget::take_worlds();
    match report {
        Some((seeds, said)) => (format!("| {canary:?} | {seeds} | {worlds} | {said} |"), true),
        None => (format!("| {canary:?} | {SEEDS} | {worlds} | MISSED |"), false),
    }
}

#[test]
fn every_canary_of_takeovers_is_found_within_its_budget() {
    swarm::catch_panics();
    println!("| canary | seeds | worlds | what it said |");
    println!("| --- | --- | --- | --- |");
    let chosen = hunt::chosen(&CANARIES, |canary| format!("{canary:?}"), &SAMPLE);
    hunt::all_are_found(&chosen, row_of);
}

/// The names of all of them, for `VOLTIER_SIM_CANARY`.
pub(crate) fn names() -> Vec<String> {
    CANARIES.map(|canary| format!("{canary:?}")).into()
}
