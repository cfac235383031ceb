//! A drive of NVMe that says how it does, and then that it fails.

use serde_json::{Value, json};
use xtask::Failure;

use super::checks::ensure;
use crate::world::World;

/// An instance of its own, which asks its drives every second.
const INSTANCE: &str = "--state /run/smart";
/// The bits of a drive that is unreliable, and of one that is too hot.
const UNRELIABLE: u8 = 1 << 2;
const HOT: u8 = 1 << 1;

/// What the drive says is in `show`, `health` and `events`, by the kernel's own interface: the guest has no smartctl.
pub(super) fn a_drive_says_that_it_fails(world: &mut World) -> Result<(), Failure> {
    world.plug_nvme("nvme")?;
    world.run(
        "for i in $(seq 200); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done; udevadm settle",
    )?;
    world.run(&format!(
        "VOLTIER_SMART=1s voltier {INSTANCE} create -p /dev/nvme0n1 --export none n"
    ))?;
    let shown = world.until_json("the drive is heard", &format!("{INSTANCE} show n"), |it| {
        it["hdd"]["smart"][0]["protocol"] == "nvme"
    })?;
    let said = &shown["hdd"]["smart"][0];
    let known =
        [&said["serial"], &said["model"], &said["passed"], &said["temperature_warning_celsius"]];
    ensure(json!(known) == json!(["nvme", "QEMU NVMe Ctrl", true, 70]), || said.to_string())?;
    let text = world.run(&format!("voltier {INSTANCE} show n"))?;
    ensure(text.contains("disk health  ok, 0 % used"), || text.clone())?;
    until_condition(world, "")?;
    for (bits, word) in [(UNRELIABLE, "smart_failed"), (HOT, "smart_hot")] {
        world.machine().warn("nvme", bits)?;
        until_condition(world, word)?;
        world.machine().warn("nvme", 0)?;
        until_condition(world, "")?;
    }
    let events = world.until_json("its end is an event", &format!("{INSTANCE} events"), |it| {
        changes(it, "smart_failed") == ["begins", "ends"]
    })?;
    ensure(events.to_string().contains("reliability degraded"), || events.to_string())?;
    world.run(&format!("voltier {INSTANCE} delete n && voltier {INSTANCE} stop"))?;
    world.unplug("nvme")
}

/// Waits until this is all that is wrong.
fn until_condition(world: &mut World, word: &str) -> Result<(), Failure> {
    let found = |health: &Value| {
        let checks = health["checks"].as_array().cloned().unwrap_or_default();
        let words = checks.iter().filter_map(|it| Some(it["condition"].as_str()?.to_owned()));
        words.collect::<Vec<_>>().join(" ")
    };
    let is_it = |health: &Value| health["checks"].is_array() && found(health) == word;
    let command = format!("{INSTANCE} health");
    world.until_json(&format!("health is: {word}"), &command, is_it).map(drop)
}

/// What became of a condition, by its events.
fn changes(events: &Value, kind: &str) -> Vec<String> {
    let of = events.as_array().into_iter().flatten().filter(|it| it["kind"] == kind);
    of.filter_map(|it| Some(it["change"].as_str()?.to_owned())).collect()
}
