//! What both lists of deliberate bugs share: which are looked for, and by how many threads.
//!
//! A run of the tests looks for a sample. `VOLTIER_TEST_LONG=1` has it look for all, and
//! `VOLTIER_SIM_CANARY=NAME` for one.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sampled::{self, is_long};
use crate::{array_canaries, canaries, takeover_canaries, volume_canaries};

/// Seeds that are tried for a sample: one in so many.
const SAMPLED: u64 = 20;

fn only() -> Option<String> {
    std::env::var("VOLTIER_SIM_CANARY").ok()
}

/// How many of `count` seeds are tried.
pub(crate) fn sampled(count: u64) -> u64 {
    if only().is_some() { count } else { sampled::sampled(count, SAMPLED) }
}

/// Those of `all` that are looked for.
pub(crate) fn chosen<C: Copy>(all: &[C], name: impl Fn(C) -> String, sample: &[&str]) -> Vec<C> {
    let is_chosen = |canary: &C| match only() {
        Some(only) => name(*canary) == only,
        None => is_long() || sample.contains(&name(*canary).as_str()),
    };
    all.iter().copied().filter(is_chosen).collect()
}

/// Looks for each on all processors, and prints its row. `row_of` says whether it was found. A bug is chosen
/// for a thread: each takes the next canary that nobody looks for yet.
pub(crate) fn all_are_found<C: Copy + Sync>(
    canaries: &[C],
    row_of: impl Fn(C) -> (String, bool) + Sync,
) {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let look = || {
        while let Some(canary) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (row, is_found) = row_of(*canary);
            println!("{row}");
            if !is_found {
                missed.lock().expect("no thread panics with it").push(row);
            }
        }
    };
    std::thread::scope(|threads| {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        (0..count).for_each(|_| drop(threads.spawn(look)));
    });
    let missed = missed.into_inner().expect("no thread panicked");
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

#[test]
fn the_canary_that_is_asked_for_exists() {
    let of_volumes = [volume_canaries::names(), takeover_canaries::names()].concat();
    let known = [canaries::names(), array_canaries::names(), of_volumes].concat();
    if let Some(only) = only() {
        assert!(known.contains(&only), "VOLTIER_SIM_CANARY={only} is none of {known:?}");
    }
}
