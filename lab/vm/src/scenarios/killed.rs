//! The daemon is killed while file systems are mounted over its files, and while a stop finds them mounted.

use xtask::Failure;

use super::checks::{self, MOUNTS, ensure};
use crate::patience;
use crate::world::World;

/// Synced files outlive a SIGKILL. Systemd starts the daemon again, and mounts anew what needs it.
pub(super) fn is_started_again_with_what_was_synced(world: &mut World) -> Result<(), Failure> {
    a_stop_refuses_while_file_systems_are_mounted(world)?;
    let sums = checks::make_files(world, "killed")?;
    world.run("sync")?;
    let before = world.run("systemctl show -P MainPID voltier")?;
    world.run("systemctl kill -s KILL voltier")?;
    patience::until("the daemon is started again", || {
        let now =
            world.run("systemctl is-active voltier || true; systemctl show -P MainPID voltier")?;
        Ok((now.starts_with("active") && !now.ends_with(&before)).then_some(()))
    })?;
    let mounts = MOUNTS.map(|mount| format!("findmnt -n {mount} || echo {mount} is not mounted"));
    println!("after the kill:\n{}", world.run(&mounts.join("\n"))?);
    // The guide's commands: they do nothing where systemd has done it.
    world.run("umount /srv/data /srv/safe || true; mount /srv/data; mount /srv/safe")?;
    checks::everything_serves(world)?;
    checks::files_are(world, "killed", &sums)
}

fn a_stop_refuses_while_file_systems_are_mounted(world: &mut World) -> Result<(), Failure> {
    let refused = world.attempt("voltier stop")?;
    let names = |mount: &str| refused.text().contains(&format!("mounted on {mount}"));
    ensure(refused.code == 1 && MOUNTS.into_iter().all(names), || refused.text())?;
    checks::everything_serves(world)
}
