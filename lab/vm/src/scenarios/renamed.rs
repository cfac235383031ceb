//! Drives that have other names after a restart.

use xtask::Failure;

use super::checks::{self, FIRST_ORDER, ensure};
use crate::world::World;

/// The origin is where the SSD was, members are where others were: each is found by its mark.
pub(super) fn finds_its_drives_under_other_names(world: &mut World) -> Result<(), Failure> {
    let names =
        |world: &mut World| world.run("for i in hdd ssd m1 m2 m3 m4 m5 m6 lvm; do dev $i; done");
    let sums = checks::make_files(world, "renamed")?;
    let before = names(world)?;
    let mut order = FIRST_ORDER;
    order.reverse();
    restart(world, &order)?;
    let after = names(world)?;
    ensure(before != after, || format!("every drive kept its name: {after}"))?;
    checks::everything_serves(world)?;
    checks::files_are(world, "renamed", &sums)?;
    checks::kernel_saw_no_errors(world, "0")?;
    restart(world, &FIRST_ORDER)?;
    checks::everything_serves(world)?;
    checks::files_are(world, "renamed", &sums)
}

fn restart(world: &mut World, order: &[&str]) -> Result<(), Failure> {
    world.power_off()?;
    world.boot(order)?;
    world.boot_ends_as("running")
}
