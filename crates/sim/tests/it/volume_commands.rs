//! Goal: every management command is whole or not at all, whatever the moment of a crash.
//! Method: see `voltier_sim::sweep::volumes`.
//!
//! By default some of the events are crash points. `VOLTIER_SIM_FULL=n` takes every event of every
//! command, by both cuts, for n seeds each (four have all pairs of block sizes).
//! `VOLTIER_SIM_COMMAND="detach wb"`, `VOLTIER_SIM_SEED` and `VOLTIER_SIM_EVENT` sweep one command,
//! seed or event again.

use voltier_cache::Mode;
use voltier_sim::sweep::Report;
use voltier_sim::sweep::volumes::{Command, Plan, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// One event in so many is a crash point by default.
const STRIDE: u64 = 11;

fn sweep(commands: impl Fn(Command) -> bool) {
    let word = std::env::var("VOLTIER_SIM_COMMAND").ok();
    let (seed, only) = (number("VOLTIER_SIM_SEED"), number("VOLTIER_SIM_EVENT"));
    let full = number("VOLTIER_SIM_FULL");
    for (at, command) in Command::all().into_iter().enumerate() {
        let is_asked = word.as_ref().is_none_or(|word| command.to_string() == *word);
        if !is_asked || !commands(command) {
            continue;
        }
        let first = seed.unwrap_or(at as u64);
        let seeds = first..first + if seed.is_some() { 1 } else { full.unwrap_or(1) };
        for seed in seeds {
            let report = run(&if full.is_some() || only.is_some() {
                Plan { only, ..Plan::exhaustive(command, seed) }
            } else {
                Plan::sampled(command, seed, STRIDE)
            });
            println!("{command}, seed {seed}: {report:?}");
            assert!(report.crash_points > 0, "{command}: {report:?}");
        }
    }
}

#[test]
fn create_and_delete_survive_crashes() {
    sweep(|command| {
        use Command::{Create, CreatePlain, Delete, DeletePlain};
        matches!(command, Create(_) | CreatePlain | Delete(_) | DeletePlain)
    });
}

#[test]
fn attach_and_detach_under_load_survive_crashes() {
    sweep(|command| {
        matches!(command, Command::Attach(_) | Command::Detach(_) | Command::DetachOrdered)
    });
}

#[test]
fn every_switch_of_modes_under_load_survives_crashes() {
    sweep(|command| matches!(command, Command::SetMode(..)));
}

#[test]
fn changes_of_settings_and_flushes_under_load_survive_crashes() {
    sweep(|command| {
        use Command::{Flush, SetOrdered, SetPolicy, SetRest, SetThenFlush};
        matches!(command, SetPolicy | SetOrdered | SetRest | Flush | SetThenFlush)
    });
}

#[test]
fn stops_and_starts_survive_crashes() {
    sweep(|command| {
        matches!(command, Command::Stop(_) | Command::Start(_) | Command::StopAndStart)
    });
}

#[test]
fn recoveries_survive_crashes_of_themselves_two_deep() {
    sweep(|command| matches!(command, Command::Recover(_)));
}

#[test]
fn the_same_sweep_twice_is_the_same() {
    let plan = Plan { stride: 100, ..Plan::exhaustive(Command::Attach(Mode::WriteBack), 5) };
    let first: Report = run(&plan);
    assert_eq!(first, run(&plan));
    assert_ne!(first.trace_hash, run(&Plan { seed: 6, ..plan }).trace_hash);
}
