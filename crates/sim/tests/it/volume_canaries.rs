//! Goal: the worlds of plain volumes find bugs. Method: as for caches (`canaries.rs`), with the deliberate bugs
//! of `voltier_volume::canary`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use voltier_sim::{budget, late_changes};
use voltier_volume::canary::{Canary, choose};

use crate::canary_hunt as hunt;

/// Seeds in which each must be found, and in which nothing is found without one.
const SEEDS: u64 = 20;

const CANARIES: [Canary; 1] = [Canary::ChangesUnordered];

const SAMPLE: [&str; 1] = ["ChangesUnordered"];

/// The broken promise, if a world finds the canary.
fn found(canary: Canary, seed: u64) -> Option<String> {
    choose(Some(canary));
    let caught = catch_unwind(AssertUnwindSafe(|| late_changes(seed)));
    choose(None);
    let payload = caught.err()?;
    let text = payload.downcast_ref::<String>().cloned();
    Some(text.or(payload.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default())
}

/// Looks for a canary: its row of the table, and whether it was found.
fn row_of(canary: Canary) -> (String, bool) {
    budget::take_worlds();
    let report = (0..SEEDS).find_map(|seed| found(canary, seed).map(|said| (seed + 1, said)));
    let worlds = budget::take_worlds();
    match report {
        Some((seeds, said)) => {
            (format!("| {canary:?} | {seeds} | {worlds} | contents | {said} |"), true)
        }
        None => (format!("| {canary:?} | {SEEDS} | {worlds} | MISSED |"), false),
    }
}

#[test]
fn every_canary_of_volumes_is_found_within_its_budget() {
    println!("| canary | seeds | worlds | oracle | what it said |");
    println!("| --- | --- | --- | --- | --- |");
    let chosen = hunt::chosen(&CANARIES, |canary| format!("{canary:?}"), &SAMPLE);
    hunt::all_are_found(&chosen, row_of);
}

/// The names of all of them, for `VOLTIER_SIM_CANARY`.
pub(crate) fn names() -> Vec<String> {
    CANARIES.map(|canary| format!("{canary:?}")).into()
}
