//! An orderly restart of the machine, and what udev says of the drives afterwards.

use xtask::Failure;

use super::checks::{self, ensure};
use crate::world::World;

/// Lines of a journal that must stand in this order: the file systems go before the daemon.
const ORDER_OF_STOP: [&str; 4] = [
    "Unmounted srv-data.mount",
    "Stopping voltier.service",
    "voltier.service: Deactivated successfully",
    "Stopped voltier.service",
];

/// Files that were never synced are there after a restart, the cache is warm, and the host keeps off the
/// drives.
pub(super) fn comes_back_with_everything(world: &mut World) -> Result<(), Failure> {
    let sums = checks::make_files(world, "reboot")?;
    let used = world.json("show data")?["lines"]["used"].clone();
    world.reboot()?;
    world.boot_ends_as("running")?;
    checks::everything_serves(world)?;
    checks::files_are(world, "reboot", &sums)?;
    let shown = world.json("show data")?;
    ensure(shown["lines"]["used"].as_u64() >= used.as_u64(), || {
        format!("the cache had {used} lines and came back with {}", shown["lines"])
    })?;
    stopped_in_order(world)?;
    for boot in ["-1", "0"] {
        checks::kernel_saw_no_errors(world, boot)?;
    }
    the_host_keeps_off(world)
}

fn stopped_in_order(world: &mut World) -> Result<(), Failure> {
    let journal = world.run("journalctl -q -b -1 --no-pager -o cat")?;
    let mut rest = journal.as_str();
    for words in ORDER_OF_STOP {
        let found = rest.split_once(words);
        let missing =
            || format!("the journal of the stop has no `{words}` in its place:\n{journal}");
        rest = found.ok_or_else(missing)?.1;
    }
    let warnings =
        world.run("journalctl -q -b -1 -u voltier -p warning --no-pager -o cat || true")?;
    ensure(warnings.is_empty(), || format!("the daemon warned:\n{warnings}"))?;
    let recovered =
        world.run("journalctl -q -k -b 0 --no-pager -o cat | grep 'loop.*recover' || true")?;
    ensure(recovered.is_empty(), || format!("a file system was not unmounted: {recovered}"))
}

/// Udev knows the drives since a cold boot: nobody takes a drive of ours for a disk of the host's.
fn the_host_keeps_off(world: &mut World) -> Result<(), Failure> {
    for serial in ["hdd", "ssd", "m1", "m2", "m3", "m4", "m5", "m6", "lvm"] {
        let known = world.run(&format!("udev_of {serial}"))?;
        for line in ["ID_FS_TYPE=voltier_member", "UDISKS_IGNORE=1", "SYSTEMD_READY=0"] {
            ensure(known.lines().any(|it| it == line), || {
                format!("udev does not say {line} of {serial}:\n{known}")
            })?;
        }
        let names = known.lines().filter(|it| it.starts_with("DEVLINKS=")).collect::<String>();
        ensure(names.contains("/by-id/") && !names.contains("/by-uuid/"), || names.clone())?;
    }
    let unused = world.run("udev_of state")?;
    ensure(!unused.contains("voltier_member"), || format!("a drive of nobody's: {unused}"))?;
    // LVM has not taken the disk below a volume, although its label is there.
    let mapped = world.run("dmsetup ls; ls /dev/inside 2>/dev/null || true")?;
    ensure(!mapped.contains("kept"), || format!("LVM is on the disk of a volume: {mapped}"))?;
    let links =
        world.run("find /dev/disk/by-uuid /dev/disk/by-label -type l -exec readlink -f {} +")?;
    let drives = world.run("dev hdd; dev lvm")?;
    let bare = drives.lines().find(|drive| links.lines().any(|link| link == *drive));
    ensure(bare.is_none(), || format!("{bare:?} has a name of its file system: {links}"))
}
