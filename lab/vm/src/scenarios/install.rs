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
voltier create -p $(dev lvm) --export none old
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

/// A disk that has data already, as a host has it before there is a cache.
const DISK_WITH_DATA: &str = "
mkdir -p /srv/data /srv/safe
mkfs.ext4 -q $(dev hdd)
echo UUID=$(blkid -s UUID -o value $(dev hdd)) /srv/data ext4 defaults 0 2 >>/etc/fstab
systemctl daemon-reload
mount /srv/data
echo here before >/srv/data/old
";

/// The unit and the rules once more, by `voltier setup`, which has the disk's file system mounted as a volume.
const SETUP: &str = "
systemctl disable --now voltier
rm /etc/systemd/system/voltier.service /etc/udev/rules.d/61-voltier.rules
voltier setup --dry-run -t wb $(dev ssd) $(dev hdd)
voltier setup -t wb $(dev ssd) $(dev hdd)
grep -q 'here before' /srv/data/old
systemctl is-active voltier
systemctl is-enabled voltier
";

/// An array in two commands.
const ARRAY: &str = "
voltier array create safe --level 6 $(for i in 1 2 3 4 5 6; do dev m$i; done)
voltier mount safe /srv/safe --mkfs ext4
umount /srv/safe
udevadm settle
systemctl daemon-reload
mount /srv/safe
umount /mnt/share
";

/// The program replaced by the one that is installed, under file systems that are mounted.
const UPGRADE: &str = "
pid=$(systemctl show -p MainPID --value voltier)
systemctl reload voltier
[ $pid = $(systemctl show -p MainPID --value voltier) ]
for volume in data safe; do
  dd if=/dev/urandom of=/srv/$volume/upgraded bs=1M count=8 status=none conv=fsync
  sum=$(sha256sum </srv/$volume/upgraded)
  echo 3 >/proc/sys/vm/drop_caches
  systemctl reload voltier
  [ \"$sum\" = \"$(sha256sum </srv/$volume/upgraded)\" ]
  rm /srv/$volume/upgraded
done
journalctl -q -u voltier --no-pager -o cat | grep -c 'is served on'
";

/// Installs it all and has it served.
pub(super) fn install(world: &mut World) -> Result<(), Failure> {
    world.boot(&FIRST_ORDER)?;
    world.boot_ends_as("running")?;
    world.run(VOLUMES)?;
    let commands = guide::block_with("install.md", "packaging/systemd/voltier.service")?;
    world.run(&format!("cd /mnt/share\n{commands}"))?;
    world.run(DISK_WITH_DATA)?;
    println!("{}", world.run(SETUP)?);
    let added = world.attempt(RAM_DISK)?;
    ensure(added.code == 0 && added.output.starts_with(b"0707"), || added.text())?;
    world.add_to_initrd(&added.output)?;
    let line = guide::block_with("install.md", "x-systemd.requires=voltier.service")?;
    let line = line.replace("data", "safe");
    world.run(&format!("cat >>/etc/fstab <<'END'\n{line}END\n{ARRAY}"))?;
    world.run("udevadm trigger --settle")?;
    checks::everything_serves(world)?;
    world.run("systemctl is-active voltier")?;
    world.run(UPGRADE)?;
    checks::everything_serves(world)?;
    Ok(())
}
