//! The product on a fresh Debian, by the guide. There are a cached volume, one on a RAID 6 array, and one on
//! a disk that LVM knows. Two of them have file systems.

use xtask::Failure;

use super::checks::{self, FIRST_ORDER, ensure};
use crate::guide;
use crate::world::World;

/// Volumes before the unit, as in the guide: commands start a daemon of their own.
const VOLUMES: &str = "
mkdir -p /mnt/share
mount -o ro LABEL=share /mnt/share
install /mnt/share/target/release/voltier /usr/local/bin/
pvcreate -q $(dev lvm)
vgcreate -q inside $(dev lvm)
lvcreate -q -y -n kept -L 16M inside
vgchange -q -an inside
voltier create -s $(dev ssd) -p $(dev hdd) -t wb data
voltier array create safe --level 6 $(for i in 1 2 3 4 5 6; do dev m$i; done)
voltier create -p $(dev lvm) old
";

/// The files that the hook adds to the initial RAM disk. `update-initramfs` itself takes minutes in an
/// emulated guest.
const RAM_DISK: &str = "
mkdir /run/ram-disk
cd /run/ram-disk
mkdir -p usr/bin usr/sbin usr/lib usr/lib64
ln -s usr/bin usr/sbin usr/lib usr/lib64 .
DESTDIR=/run/ram-disk verbose=n /mnt/share/packaging/initramfs-tools/voltier
find . | cpio --quiet -o -H newc
";

const FILE_SYSTEMS: &str = "
for name in data safe; do
  mkdir -p /srv/$name
  voltier mount $name /srv/$name --mkfs ext4
  umount /srv/$name
done
systemctl daemon-reload
mount /srv/data
mount /srv/safe
umount /mnt/share
";

/// Installs it all and has it served.
pub(super) fn install(world: &mut World) -> Result<(), Failure> {
    world.boot(&FIRST_ORDER)?;
    world.boot_ends_as("running")?;
    world.run(VOLUMES)?;
    let commands = guide::block_with("install.md", "packaging/systemd/voltier.service")?;
    world.run(&format!("cd /mnt/share\n{commands}"))?;
    let added = world.attempt(RAM_DISK)?;
    ensure(added.code == 0 && added.output.starts_with(b"0707"), || added.text())?;
    world.add_to_initrd(&added.output)?;
    world.run("udevadm trigger --settle")?;
    let line = guide::block_with("install.md", "x-systemd.requires=voltier.service")?;
    let lines = [line.clone(), line.replace("data", "safe")].concat();
    world.run(&format!("cat >>/etc/fstab <<'END'\n{lines}END\n{FILE_SYSTEMS}"))?;
    checks::everything_serves(world)?;
    world.run("systemctl is-active voltier")?;
    Ok(())
}
