//! Goal: every management command is whole or not at all, whatever the moment of a crash.
//! Method: see `voltier_sim::manage`.
//!
//! By default some of the events are crash points. `VOLTIER_SIM_FULL=n` takes every event of every
//! command, by both cuts, for n seeds each (four have all pairs of block sizes);
//! `VOLTIER_SIM_COMMAND="detach wb"`, `VOLTIER_SIM_SEED` and `VOLTIER_SIM_EVENT` walk one command,
//! seed or event again.

use voltier_cache::Mode;
use voltier_sim::manage::{Command, Drives, Plan, Report, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The walk of one command. The seed chooses the block sizes, so that a failure is found again.
fn plan(command: Command, seed: u64) -> Plan {
    let block = |bit: u64| if seed & bit == 0 { 512 } else { 4096 };
    let drives = Drives::small(block(1), block(2));
    // Drives of one size in every third walk, so that one can be taken for the other.
    let drives = if seed % 3 == 2 { drives.alike() } else { drives };
    Plan { drives, ..Plan::exhaustive(command, seed) }
}

fn walk(commands: impl Fn(Command) -> bool) {
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
            let plan = Plan { only, ..plan(command, seed) };
            let sampled = Plan { stride: 11, second_stride: 10, second_one_in: 10, ..plan.clone() };
            let report = run(if full.is_some() || only.is_some() { &plan } else { &sampled });
            println!("{command}, seed {seed}: {report:?}");
            assert!(report.crash_points > 0, "{command}: {report:?}");
        }
    }
}

#[test]
fn create_and_delete_survive_crashes() {
    walk(|command| {
        use Command::{Create, CreatePlain, Delete, DeletePlain};
        matches!(command, Create(_) | CreatePlain | Delete(_) | DeletePlain)
    });
}

#[test]
fn attach_and_detach_under_load_survive_crashes() {
    walk(|command| {
        matches!(command, Command::Attach(_) | Command::Detach(_) | Command::DetachOrdered)
    });
}

#[test]
fn every_switch_of_modes_under_load_survives_crashes() {
    walk(|command| matches!(command, Command::SetMode(..)));
}

#[test]
fn changes_of_settings_and_flushes_under_load_survive_crashes() {
    walk(|command| {
        use Command::{Flush, SetOrdered, SetPolicy, SetRest, SetThenFlush};
        matches!(command, SetPolicy | SetOrdered | SetRest | Flush | SetThenFlush)
    });
}

#[test]
fn stops_and_starts_survive_crashes() {
    walk(|command| matches!(command, Command::Stop(_) | Command::Start(_)));
}

#[test]
fn recoveries_survive_crashes_of_themselves_two_deep() {
    walk(|command| matches!(command, Command::Recover(_)));
}

#[test]
fn the_same_walk_twice_is_the_same() {
    let plan = Plan { stride: 100, ..plan(Command::Attach(Mode::WriteBack), 5) };
    let first: Report = run(&plan);
    assert_eq!(first, run(&plan));
    assert_ne!(first.trace_hash, run(&Plan { seed: 6, ..plan }).trace_hash);
}
