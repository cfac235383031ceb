//! Checks of several scenarios, and the order of the drives.

use serde_json::Value;
use xtask::Failure;

use crate::world::World;

/// The order in which the drives were plugged in when the product was installed.
pub(super) const FIRST_ORDER: [&str; 10] =
    ["hdd", "ssd", "m1", "m2", "m3", "m4", "m5", "m6", "lvm", "state"];

/// The folders where the file systems of the two volumes are mounted.
pub(super) const MOUNTS: [&str; 2] = ["/srv/data", "/srv/safe"];

/// An error with these words unless it is so.
pub(super) fn ensure(is_so: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if is_so { Ok(()) } else { Err(what().into()) }
}

/// New files in both file systems, not synced: names and checksums.
pub(super) fn make_files(world: &mut World, name: &str) -> Result<String, Failure> {
    let scripts = MOUNTS.map(|mount| format!("make_files {mount}/{name} 12"));
    world.run(&scripts.join("\n"))
}

/// Checks the files of [`make_files`].
pub(super) fn files_are(world: &mut World, name: &str, sums: &str) -> Result<(), Failure> {
    let scripts = MOUNTS.map(|mount| format!("sums {mount}/{name}"));
    let found = world.run(&scripts.join("\n"))?;
    ensure(found == sums, || format!("files {name} are\n{found}and should be\n{sums}"))
}

/// All that is served, after a boot or a repair: the volumes, the array with all members, both file systems.
pub(super) fn everything_serves(world: &mut World) -> Result<(), Failure> {
    for name in ["data", "safe", "old"] {
        let shown = world.json(&format!("show {name}"))?;
        ensure(shown["state"] == "running", || format!("volume {name}: {shown}"))?;
    }
    array_is_whole(&world.json("array show safe")?)?;
    for mount in MOUNTS {
        world.run(&format!("mountpoint {mount} && touch {mount}/touched && rm {mount}/touched"))?;
    }
    Ok(())
}

/// No member is lost or being filled.
pub(super) fn array_is_whole(shown: &Value) -> Result<(), Failure> {
    let members = shown["members"].as_array().ok_or("no members")?;
    let are_online = members.len() == 6 && members.iter().all(|it| it["state"] == "online");
    let is_whole =
        shown["state"] == "running" && are_online && shown["rebuild"]["running"] == false;
    ensure(is_whole, || format!("array safe: {shown}"))
}

/// No file system of this boot found anything wrong.
pub(super) fn kernel_saw_no_errors(world: &mut World, boot: &str) -> Result<(), Failure> {
    let script = format!(
        "journalctl -q -k -b {boot} --no-pager -o cat | \
         grep -E 'I/O error|EXT4-fs error|Aborting|aborted' || true"
    );
    let found = world.run(&script)?;
    ensure(found.is_empty(), || format!("the kernel's log of boot {boot} has errors:\n{found}"))
}

/// The words that the unit and the daemon said in the last two boots.
pub(super) fn log(world: &mut World) -> Result<String, Failure> {
    if !world.is_on() {
        return Ok(String::new());
    }
    let script = "voltier show; voltier array show; \
      for boot in -1 0; do \
        journalctl -q -b $boot -u voltier --no-pager -o short-monotonic | tail -n 40; \
      done; \
      systemctl --failed --no-legend";
    Ok(world.attempt(&format!("( {script} ) 2>&1 || true"))?.text())
}
