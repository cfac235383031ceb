//! The state folder on a file system of its own, which fills up.

use serde_json::Value;
use xtask::Failure;

use super::checks::{self, ensure};
use crate::world::World;

const TROUBLE: &str = "the state folder cannot be written";

/// Moves the state folder to a small drive.
const MOVE: &str = "
systemctl stop voltier
mkfs.ext4 -q -m 0 $(dev state)
mount $(dev state) /mnt
cp -a /var/lib/voltier/. /mnt/
rmdir /mnt/lost+found
umount /mnt
echo UUID=$(blkid -s UUID -o value $(dev state)) /var/lib/voltier ext4 defaults 0 2 >>/etc/fstab
systemctl daemon-reload
mount /var/lib/voltier
chmod 700 /var/lib/voltier
systemctl start voltier
systemctl start srv-data.mount srv-safe.mount
";

const FILL: &str = "filler=/var/lib/voltier/filler
  dd if=/dev/zero of=$filler bs=4k status=none 2>/dev/null || true
  dd if=/dev/zero of=$filler bs=1 count=4096 oflag=append conv=notrunc status=none 2>/dev/null || true
  sync
  ! (echo more >/var/lib/voltier/more) 2>/dev/null
  rm -f /var/lib/voltier/more";

/// A full state folder stops no client, a machine boots with it, and what could not be recorded is
/// recorded when there is room.
pub(super) fn serves_on_and_recovers(world: &mut World) -> Result<(), Failure> {
    world.run(MOVE)?;
    checks::everything_serves(world)?;
    world.run(FILL)?;
    let sums = checks::make_files(world, "full")?;
    world.unplug("m4")?;
    let refused = world.attempt("voltier set data dirty_low=1 dirty_high=2")?;
    ensure(refused.code == 1 && refused.text().contains("no space left"), || refused.text())?;
    world.run("sync; echo 3 >/proc/sys/vm/drop_caches")?;
    checks::files_are(world, "full", &sums)?;
    let is_degraded = |shown: &Value| shown["state"] == "degraded";
    let array = world.until_json("the loss is known", "array show safe", is_degraded)?;
    let members = array["members"].as_array().ok_or("no members")?;
    let lost = members.iter().find(|it| it["state"] != "online").ok_or("no member is lost")?;
    world.reboot()?;
    world.boot_ends_as("degraded")?;
    let shown = world.json("show data")?;
    let says = |shown: &Value| shown["error"].as_str().is_some_and(|it| it.contains(TROUBLE));
    ensure(shown["state"] == "failed" && says(&shown), || format!("volume data: {shown}"))?;
    let safe = world.json("show safe")?;
    ensure(safe["state"] == "running", || format!("volume safe has nothing to record: {safe}"))?;
    world.run("rm /var/lib/voltier/filler")?;
    let is_well = |shown: &Value| shown["state"] == "running" && shown["error"] == "";
    world.until_json("the volume comes up", "show data", is_well)?;
    world.run("systemctl start srv-data.mount && systemctl is-active srv-data.mount")?;
    world.plug("m4")?;
    let place = &lost["index"];
    world.run(&format!("udevadm settle && voltier array replace -f safe {place} $(dev m4)"))?;
    let is_whole = |shown: &Value| checks::array_is_whole(shown).is_ok();
    world.until_json("the member is filled", "array show safe", is_whole)?;
    checks::everything_serves(world)?;
    checks::files_are(world, "full", &sums)?;
    world.reboot()?;
    world.boot_ends_as("running")?;
    checks::everything_serves(world)
}
