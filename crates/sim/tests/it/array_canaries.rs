//! Goal: the worlds of arrays find bugs of journal, superblocks, rebuild and scrub. Method: deliberate
//! ones (`voltier_array::canary`), one at a time. Each must be found within its budget of seeds, and the
//! same seeds without a bug find nothing.
//!
//! `make test` looks for some of them, `make canaries` for all, and prints the table.

use voltier_array::canary::{Canary, choose};
use voltier_sim::arrays;
use voltier_sim::budget;
use voltier_sim::scenario::Scenario;
use voltier_sim::swarm::{self, catch_panics};

use crate::canary_hunt as hunt;

/// Seeds in which each must be found.
const SEEDS: u64 = 1500;
/// Seeds in which nothing may be found without one.
const QUIET_SEEDS: u64 = 400;

const CANARIES: [Canary; 39] = [
    Canary::RecordNotDurable,
    Canary::CommitBeforeRecord,
    Canary::RoomReusedEarly,
    Canary::WatermarkBeforeFlush,
    Canary::LossNotRecorded,
    Canary::ReplayBeforeFlush,
    Canary::IncompleteRedone,
    Canary::LifeNotBegun,
    Canary::ClearsUnrecorded,
    Canary::BatchChecksumIgnored,
    Canary::EventNotRaised,
    Canary::AnswerBeforeRecord,
    Canary::StaleBelieved,
    Canary::PositionBeforeFlush,
    Canary::ServiceBeforeFlush,
    Canary::JoinBeforeMap,
    Canary::RingNotMade,
    Canary::CopyMissesWrites,
    Canary::DirtyForgotten,
    Canary::ScrubRewritesParity,
    Canary::MovedBeforeFlush,
    Canary::MovedWithoutBackup,
    Canary::BackupNotRestored,
    Canary::MoveUnfenced,
    Canary::MovedPartMissed,
    Canary::MovedRedone,
    Canary::HeldAcknowledged,
    Canary::UndrainedTakenBack,
    Canary::GapsBridged,
    Canary::HalfWrittenForgotten,
    Canary::ChecksumsNotFlushed,
    Canary::ModifyUnverified,
    Canary::VoidPagesForgotten,
    Canary::UnverifiedBelieved,
    Canary::RefusalNotAwaited,
    Canary::CommonRefusalIgnored,
    Canary::FailedFlushForgotten,
    Canary::CopyNotOutdated,
    Canary::OldLabelsKept,
];

/// Those that every run of the tests looks for: quick to find, and together of every oracle.
const SAMPLE: [&str; 11] = [
    "CommitBeforeRecord",
    "RecordNotDurable",
    "LifeNotBegun",
    "ClearsUnrecorded",
    "BatchChecksumIgnored",
    "EventNotRaised",
    "StaleBelieved",
    "JoinBeforeMap",
    "RingNotMade",
    "CopyMissesWrites",
    "AnswerBeforeRecord",
];

/// The oracle that said this.
fn oracle(said: &str) -> &'static str {
    let signs = [
        ("parity ", "parity"),
        ("are not what is read", "parity"),
        ("; allowed: ", "contents"),
        ("scrub", "scrub"),
        ("in service", "members"),
        ("does not come back", "recovery"),
        ("not at rest", "leaks"),
        ("stands still", "liveness"),
        (" fails: ", "errors"),
    ];
    signs.iter().find(|sign| said.contains(sign.0)).map_or("assertion", |sign| sign.1)
}

/// Whether a seed draws what a canary needs to be met at all: the others are not run.
fn is_met_in(canary: Canary, seed: u64) -> bool {
    match canary {
        Canary::RefusalNotAwaited | Canary::CommonRefusalIgnored | Canary::FailedFlushForgotten => {
            arrays::draws_outages(seed)
        }
        Canary::CopyNotOutdated => arrays::draws_copies(seed),
        _ => true,
    }
}

/// Looks for a canary: its row of the table, and whether it was found.
fn row_of(canary: Canary) -> (String, bool) {
    budget::take_worlds();
    choose(Some(canary));
    let found = (0..SEEDS).filter(|seed| is_met_in(canary, *seed)).find_map(|seed| {
        let failure = swarm::run(&Scenario::of_array_seed(seed), false).failure?;
        Some((seed + 1, failure.message))
    });
    choose(None);
    let worlds = budget::take_worlds();
    match found {
        Some((seeds, said)) => {
            let oracle = oracle(&said);
            (format!("| {canary:?} | {seeds} | {worlds} | {oracle} | {said} |"), true)
        }
        None => (format!("| {canary:?} | {SEEDS} | {worlds} | MISSED |"), false),
    }
}

#[test]
fn every_canary_of_arrays_is_found_within_its_budget() {
    catch_panics();
    println!("| canary | seeds | worlds | oracle | what it said |");
    println!("| --- | --- | --- | --- | --- |");
    let chosen = hunt::chosen(&CANARIES, |canary| format!("{canary:?}"), &SAMPLE);
    hunt::all_are_found(&chosen, row_of);
}

/// The names of all of them, for `VOLTIER_SIM_CANARY`.
pub(crate) fn names() -> Vec<String> {
    CANARIES.map(|canary| format!("{canary:?}")).into()
}

#[test]
fn nothing_is_found_without_a_canary_of_arrays() {
    catch_panics();
    for seed in 0..hunt::sampled(QUIET_SEEDS) {
        let outcome = swarm::run(&Scenario::of_array_seed(seed), false);
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
    }
}
