//! The scenarios: things that happen to the machine, and checks of what must be so afterwards. Each scenario
//! finds the machine on with everything served, and leaves it so: any of them can be chosen.

mod checks;
mod full_state;
mod install;
mod killed;
mod late;
mod power_cut;
mod reboot;
mod renamed;
mod smart;

use std::time::{Duration, Instant};

use xtask::Failure;

use crate::world::World;

/// The scenarios that can be chosen; what installs the product comes before them.
pub(crate) const NAMES: [&str; 8] =
    ["reboot", "power-cut", "renamed", "late", "missing", "killed", "full-state", "smart"];

/// The drives by serial number, and their MiB.
const DRIVES: [(&str, u64); 11] = [
    ("hdd", 192),
    ("ssd", 96),
    ("m1", 64),
    ("m2", 64),
    ("m3", 64),
    ("m4", 64),
    ("m5", 64),
    ("m6", 64),
    ("lvm", 64),
    ("state", 16),
    ("nvme", 64),
];

/// Runs the chosen scenarios, or all, and prints what each took.
///
/// # Errors
/// When a scenario fails: the ones behind it are left out.
pub(crate) fn run(chosen: &[String]) -> Result<(), Failure> {
    let start = now();
    let mut world = World::new(&DRIVES)?;
    println!("image and program: {} s", seconds(start));
    run_one(&mut world, "install", install::install)?;
    let mut passed = 1;
    for name in NAMES {
        if chosen.is_empty() || chosen.iter().any(|it| it == name) {
            run_one(&mut world, name, scenario(name))?;
            passed += 1;
        }
    }
    world.power_off()?;
    println!("{passed} passed, 0 failed in {} s", seconds(start));
    Ok(())
}

type Scenario = fn(&mut World) -> Result<(), Failure>;

fn scenario(name: &str) -> Scenario {
    match name {
        "reboot" => reboot::comes_back_with_everything,
        "power-cut" => power_cut::keeps_what_was_synced,
        "renamed" => renamed::finds_its_drives_under_other_names,
        "late" => late::waits_for_drives_and_loses_nothing,
        "missing" => late::boots_without_a_drive_that_comes_too_late,
        "killed" => killed::is_started_again_with_what_was_synced,
        "full-state" => full_state::serves_on_and_recovers,
        "smart" => smart::a_drive_says_that_it_fails,
        _ => unreachable!("main knows the names"),
    }
}

fn run_one(world: &mut World, name: &str, scenario: Scenario) -> Result<(), Failure> {
    let start = now();
    let outcome = scenario(world);
    match &outcome {
        Ok(()) => println!("scenario {name}: {} s", seconds(start)),
        Err(_) => {
            println!("scenario {name}: FAILED after {} s", seconds(start));
            println!("the console: {}", world.console().display());
            if let Ok(log) = checks::log(world) {
                println!("{log}");
            }
        }
    }
    outcome
}

#[expect(clippy::disallowed_methods, reason = "a person is told how long a scenario took")]
fn now() -> Instant {
    Instant::now()
}

fn seconds(since: Instant) -> u64 {
    Duration::as_secs(&now().duration_since(since))
}
