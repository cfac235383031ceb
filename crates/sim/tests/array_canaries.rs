//! Goal: the worlds of arrays find bugs of journal, superblocks, rebuild and scrub. Method: deliberate
//! ones (`voltier_array::canary`), one at a time. Each must be found within its budget of seeds, and the
//! same seeds without a bug find nothing.
//!
//! Run by `make canaries`, which builds the arrays with the feature `canaries` for this and nothing else.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use voltier_array::canary::{Canary, choose};
use voltier_sim::budget;
use voltier_sim::scenario::Scenario;
use voltier_sim::swarm::{self, catch_panics};

/// Seeds in which each must be found.
const SEEDS: u64 = 1500;
/// Seeds in which nothing may be found without one.
const QUIET_SEEDS: u64 = 400;

const CANARIES: [Canary; 33] = [
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

/// Looks for a canary: its row of the table, and whether it was found.
fn row_of(canary: Canary) -> (String, bool) {
    budget::take_worlds();
    choose(Some(canary));
    let found = (0..SEEDS).find_map(|seed| {
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
    let only = std::env::var("VOLTIER_SIM_CANARY").ok();
    let chosen = |canary: &Canary| only.as_ref().is_none_or(|only| format!("{canary:?}") == *only);
    let canaries: Vec<Canary> = CANARIES.into_iter().filter(chosen).collect();
    // A bug is chosen for a thread: each thread takes the next canary that nobody looks for yet.
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    println!("| canary | seeds | worlds | oracle | what it said |");
    println!("| --- | --- | --- | --- | --- |");
    let look = || {
        while let Some(canary) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (row, is_found) = row_of(*canary);
            println!("{row}");
            if !is_found {
                missed.lock().expect("no thread panics with it").push(*canary);
            }
        }
    };
    std::thread::scope(|threads| {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        (0..count).for_each(|_| drop(threads.spawn(look)));
    });
    let missed = missed.into_inner().expect("no thread panicked");
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn nothing_is_found_without_a_canary_of_arrays() {
    catch_panics();
    for seed in 0..QUIET_SEEDS {
        let outcome = swarm::run(&Scenario::of_array_seed(seed), false);
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
    }
}
