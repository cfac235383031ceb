//! Drives that come after the daemon: while it waits for them, and when it has given up waiting.

use serde_json::Value;
use xtask::Failure;

use super::checks::{self, FIRST_ORDER, ensure};
use crate::world::World;

fn is_running(shown: &Value) -> bool {
    shown["state"] == "running"
}

/// A machine that is switched off and on without these drives.
fn restart_without(world: &mut World, missing: &[&str]) -> Result<(), Failure> {
    world.power_off()?;
    let there: Vec<&str> = FIRST_ORDER.into_iter().filter(|it| !missing.contains(it)).collect();
    world.boot(&there)
}

/// The SSD and both members that a RAID 6 can lose come while the daemon waits for them. The boot goes on
/// when they are there; nothing is recorded as lost.
pub(super) fn waits_for_drives_and_loses_nothing(world: &mut World) -> Result<(), Failure> {
    let sums = checks::make_files(world, "late")?;
    let late = ["ssd", "m2", "m5"];
    restart_without(world, &late)?;
    world.until_json("the volume waits", "show data", |it| it["state"] == "waiting")?;
    let array = world.json("array show safe")?;
    ensure(array["state"] == "waiting", || format!("array safe: {array}"))?;
    let state =
        world.attempt("systemctl is-system-running || true; systemctl is-active voltier")?.text();
    ensure(state == "starting\nactivating\n", || format!("while drives are awaited: {state}"))?;
    for serial in late {
        world.plug(serial)?;
    }
    world.boot_ends_as("running")?;
    checks::everything_serves(world)?;
    checks::files_are(world, "late", &sums)?;
    let lost = world
        .run("journalctl -q -b 0 -u voltier --no-pager -o cat | grep -E 'is lost|is back|given up' || true")?;
    ensure(lost.is_empty(), || format!("the daemon recorded a loss: {lost}"))
}

/// The SSD with dirty lines stays away for longer than the hold-off. The machine boots all the same, with
/// the other file system. The volume comes up by itself with the SSD, and its mount by the guide's command.
pub(super) fn boots_without_a_drive_that_comes_too_late(world: &mut World) -> Result<(), Failure> {
    let sums = checks::make_files(world, "missing")?;
    world.run("sync")?;
    let dirty = world.json("show data")?["lines"]["dirty"].as_u64();
    ensure(dirty > Some(0), || "no line is dirty: the scenario proves nothing".to_owned())?;
    restart_without(world, &["ssd", "m3"])?;
    // systemd gives the mount up with its device, which is no failure of a unit.
    world.boot_ends_as("running")?;
    let mount = world.attempt("systemctl is-active srv-data.mount || true")?.text();
    ensure(mount == "inactive\n", || format!("the mount without its SSD: {mount}"))?;
    world.run("systemctl is-active voltier multi-user.target srv-safe.mount")?;
    let shown = world.json("show data")?;
    ensure(shown["state"] == "failed", || format!("volume data without its SSD: {shown}"))?;
    let array = world.json("array show safe")?;
    ensure(array["state"] == "degraded", || format!("array safe without a member: {array}"))?;
    world.plug("ssd")?;
    world.plug("m3")?;
    world.until_json("the volume comes up", "show data", is_running)?;
    let is_whole = |shown: &Value| checks::array_is_whole(shown).is_ok();
    world.until_json("the member returns", "array show safe", is_whole)?;
    world.run("systemctl start srv-data.mount && systemctl is-active srv-data.mount")?;
    checks::everything_serves(world)?;
    checks::files_are(world, "missing", &sums)
}
