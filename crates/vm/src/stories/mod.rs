//! The stories: things that happen to the machine, and checks of what must be so afterwards. Each story finds
//! the machine on with everything served, and leaves it so: any of them can be chosen.

mod checks;
mod full_state;
mod install;
mod killed;
mod late;
mod power_cut;
mod reboot;
mod renamed;

use std::time::{Duration, Instant};

use xtask::Failure;

use crate::world::World;

/// The stories that can be chosen; what installs the product comes before them.
pub(crate) const NAMES: [&str; 7] =
    ["reboot", "power-cut", "renamed", "late", "missing", "killed", "full-state"];

/// The drives by serial number, and their MiB.
const DRIVES: [(&str, u64); 10] = [
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
];

/// Runs the chosen stories, or all, and prints what each took.
///
/// # Errors
/// When a story fails: the ones behind it are left out.
pub(crate) fn run(chosen: &[String]) -> Result<(), Failure> {
    let start = now();
    let mut world = World::new(&DRIVES)?;
    println!("image and program: {} s", seconds(start));
    tell(&mut world, "install", install::install)?;
    let mut passed = 1;
    for name in NAMES {
        if chosen.is_empty() || chosen.iter().any(|it| it == name) {
            tell(&mut world, name, story(name))?;
            passed += 1;
        }
    }
    world.power_off()?;
    println!("{passed} passed, 0 failed in {} s", seconds(start));
    Ok(())
}

type Story = fn(&mut World) -> Result<(), Failure>;

fn story(name: &str) -> Story {
    match name {
        "reboot" => reboot::comes_back_with_everything,
        "power-cut" => power_cut::keeps_what_was_synced,
        "renamed" => renamed::finds_its_drives_under_other_names,
        "late" => late::waits_for_drives_and_loses_nothing,
        "missing" => late::boots_without_a_drive_that_comes_too_late,
        "killed" => killed::is_started_again_with_what_was_synced,
        "full-state" => full_state::serves_on_and_recovers,
        _ => unreachable!("main knows the names"),
    }
}

fn tell(world: &mut World, name: &str, story: Story) -> Result<(), Failure> {
    let start = now();
    let told = story(world);
    match &told {
        Ok(()) => println!("story {name}: {} s", seconds(start)),
        Err(_) => {
            println!("story {name}: FAILED after {} s", seconds(start));
            println!("the console: {}", world.console().display());
            if let Ok(log) = checks::log(world) {
                println!("{log}");
            }
        }
    }
    told
}

#[expect(clippy::disallowed_methods, reason = "a person is told how long a story took")]
fn now() -> Instant {
    Instant::now()
}

fn seconds(since: Instant) -> u64 {
    Duration::as_secs(&now().duration_since(since))
}
