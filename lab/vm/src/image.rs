//! The guest's root file system, kernel and initial RAM disk: Debian's packages, put together once and kept
//! under `target/vm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::{Failure, workspace};

/// Packages that the guest has beside the smallest Debian.
const PACKAGES: &str =
    "systemd-sysv,udev,linux-image-cloud-amd64,initramfs-tools,kmod,e2fsprogs,fuse3,lvm2";

/// Only drives and file systems of these machines: a small RAM disk is unpacked fast.
const INITRAMFS: &str = r#"tools=$1/etc/initramfs-tools shared=$1/usr/share/initramfs-tools
mkdir -p "$tools/conf.d" "$shared/modules.d"
printf 'MODULES=list\nRESUME=none\n' >"$tools/conf.d/vm"
printf '%s\n' virtio_pci virtio_blk virtio_scsi sd_mod crc32c_generic ext4 \
  >"$shared/modules.d/vm""#;

/// From the archive of packages to a file system of ext4, with the agent in it.
const ROOT: &str = r#"set -eu
mkdir root
tar --extract --file root.tar --directory root
cp --no-preserve=ownership -r overlay/. root/
chmod 755 root/usr/local/sbin/vm-agent
wants=root/etc/systemd/system/multi-user.target.wants
mkdir -p "$wants" root/var/log/journal
ln -s ../vm-agent.service "$wants/"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
  e2scrub_reap.service fstrim.timer getty.target systemd-timesyncd.service serial-getty@ttyS0.service; do
  ln -sf /dev/null "root/etc/systemd/system/$unit"
done
echo '/dev/vda / ext4 defaults 0 1' >root/etc/fstab
mv root/boot/vmlinuz-* kernel
cp root/boot/initrd.img-* initrd
chmod 644 kernel initrd
rm -rf root/usr/share/locale root/usr/share/doc root/usr/share/man
truncate -s 700M root.img
mke2fs -q -t ext4 -d root root.img
rm -rf root root.tar"#;

/// Files that `ROOT` copies into the guest.
const OVERLAY: [(&str, &str); 3] = [
    ("usr/local/sbin/vm-agent", include_str!("../guest/agent.sh")),
    ("usr/local/lib/vm-words.sh", include_str!("../guest/words.sh")),
    ("etc/systemd/system/vm-agent.service", include_str!("../guest/agent.service")),
];

/// A Debian to boot.
pub(crate) struct Image {
    /// The root file system, of which each world has a copy.
    pub(crate) root: PathBuf,
    /// The kernel.
    pub(crate) kernel: PathBuf,
    /// The initial RAM disk.
    pub(crate) initrd: PathBuf,
}

impl Image {
    /// The image, made unless there is one of the same recipe.
    pub(crate) fn obtain(cache: &Path) -> Result<Self, Failure> {
        let suite = suite();
        let folder = cache.join(&suite);
        let image = Self {
            root: folder.join("root.img"),
            kernel: folder.join("kernel"),
            initrd: folder.join("initrd"),
        };
        let (recipe, stamp) = (recipe(&suite), folder.join("recipe"));
        if fs::read_to_string(&stamp).is_ok_and(|kept| kept == recipe) {
            return Ok(image);
        }
        println!("making an image of Debian {suite} (once; kept in {})", folder.display());
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir_all(&folder)?,
        }
        for (path, text) in OVERLAY {
            let path = folder.join("overlay").join(path);
            fs::create_dir_all(path.parent().expect("a file of the overlay is in a folder"))?;
            fs::write(path, text)?;
        }
        let mut packages = Command::new("mmdebstrap");
        packages.args(["--quiet", "--variant=minbase", "--include", PACKAGES]);
        packages.args(["--essential-hook", INITRAMFS, &suite, "root.tar"]);
        workspace::succeeded("mmdebstrap", packages.current_dir(&folder).status()?)?;
        let mut root = Command::new("fakeroot");
        root.args(["sh", "-c", ROOT]).env("PATH", path_of_root()).current_dir(&folder);
        workspace::succeeded("making the root file system", root.status()?)?;
        fs::write(stamp, recipe)?;
        Ok(image)
    }
}

/// mke2fs lives where only root's PATH looks.
pub(crate) fn path_of_root() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// The Debian in the guest: `VM_SUITE`, else that of this machine, else one that is newer than most. The
/// program needs a C library as new as this machine's.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let mut lines =
            release.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.next().map(|value| value.trim_matches('"').to_owned())
    };
    let of_host = || value("VERSION_CODENAME").filter(|_| value("ID").as_deref() == Some("debian"));
    std::env::var("VM_SUITE").ok().or_else(of_host).unwrap_or_else(|| "trixie".to_owned())
}

fn recipe(suite: &str) -> String {
    let overlay: String = OVERLAY.iter().map(|(path, text)| format!("{path}\n{text}\n")).collect();
    [suite, PACKAGES, INITRAMFS, ROOT, &overlay].join("\n")
}
