//! Goal: guarantees 1 to 3. In every mode, at every moment of a power cut or kill, every sector holds
//! what it may hold, keeps it, and reaches the origin. Method: recorded workloads. At their events,
//! copies of the drives as the crash would leave them are recovered, read, used, crashed again, drained
//! and taken apart (see `voltier_sim::crash`).
//!
//! `VOLTIER_SIM_SEEDS=n` runs n more seeds of every scenario with a crash at every event.
//! `VOLTIER_SIM_SEED` and `VOLTIER_SIM_EVENT` run one seed, and one event, of it again.

use voltier_block::{KIB, MIB};
use voltier_cache::Mode;
use voltier_cache::policy::PolicyKind;
use voltier_sim::crash::{Plan, run};
use voltier_sim::workload::{MODES, Profile};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn crash(profile: &Profile, seed: u64) {
    let plan = Plan { profile: profile.clone(), seed, one_in: 12, warm_up_steps: 60, only: None };
    let mut points = 0;
    if let Some(seed) = number("VOLTIER_SIM_SEED") {
        let only = number("VOLTIER_SIM_EVENT");
        points += run(&Plan { seed, one_in: 1, only, ..plan }).crash_points;
    } else {
        points += run(&plan).crash_points;
        for more in 0..number("VOLTIER_SIM_SEEDS").unwrap_or(0) {
            let seed = seed * 1_000_000 + more;
            points += run(&Plan { seed, one_in: 1, ..plan.clone() }).crash_points;
        }
    }
    println!("{points} crash points");
}

#[test]
fn write_back_survives_crashes() {
    crash(&Profile::small(&[Mode::WriteBack]), 1);
}

#[test]
fn write_through_survives_crashes() {
    crash(&Profile::small(&[Mode::WriteThrough]), 2);
}

#[test]
fn read_only_survives_crashes() {
    crash(&Profile::small(&[Mode::ReadOnly]), 3);
}

#[test]
fn modes_switched_under_load_survive_crashes() {
    crash(&Profile::small(&MODES), 4);
}

#[test]
fn lines_of_two_kib_and_eviction_by_chance_survive_crashes() {
    let profile = Profile { line_bytes: 2048, policy: PolicyKind::Rand, ..Profile::small(&MODES) };
    crash(&profile, 5);
}

#[test]
fn lines_larger_than_a_unit_survive_crashes() {
    let profile =
        Profile { line_bytes: 16384, policy: PolicyKind::S3Fifo, ..Profile::small(&MODES) };
    crash(&profile, 6);
}

#[test]
fn lines_of_64_kib_survive_crashes() {
    // Long enough for the log to go around the smallest SSD that such lines fit on.
    let modes = [Mode::WriteBack, Mode::WriteThrough];
    let mut profile = Profile { line_bytes: 65536, steps: 120, ..Profile::small(&modes) };
    profile.ssd.bytes = MIB + 4 * 256 * KIB + 20 * MIB;
    profile.sectors_max = 256;
    crash(&profile, 12);
}

#[test]
fn an_ssd_with_blocks_of_4096_bytes_survives_crashes() {
    let mut profile = Profile::small(&[Mode::WriteBack, Mode::WriteThrough]);
    profile.ssd.block_bytes = 4096;
    crash(&profile, 7);
}

#[test]
fn a_fast_origin_before_a_slow_ssd_survives_crashes() {
    let mut profile = Profile::small(&[Mode::WriteThrough, Mode::WriteBack, Mode::ReadOnly]);
    profile.ssd.latency_ns = 500_000;
    profile.origin.latency_ns = 20_000;
    crash(&profile, 8);
}

#[test]
fn ordered_destaging_survives_crashes() {
    crash(&Profile { ordered: true, ..Profile::small(&MODES) }, 9);
}

#[test]
#[should_panic(expected = "the cache does not come back")]
fn an_ssd_that_lies_about_flushes_is_found_out() {
    let mut profile = Profile::small(&[Mode::WriteBack]);
    profile.ssd.lies = true;
    crash(&profile, 10);
}

#[test]
#[should_panic(expected = "; allowed: ")]
fn an_origin_that_lies_about_flushes_is_found_out() {
    let mut profile = Profile::small(&[Mode::WriteThrough]);
    profile.origin.lies = true;
    crash(&profile, 11);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let profile = Profile::small(&MODES);
    let plan = Plan { profile, seed: 99, one_in: 100, warm_up_steps: 5, only: None };
    assert_eq!(run(&plan), run(&plan));
    let other = run(&Plan { seed: 98, ..plan.clone() });
    assert_ne!(run(&plan).trace_hash, other.trace_hash);
}
