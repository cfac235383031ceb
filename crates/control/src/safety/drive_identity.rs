//! The mark that a drive is known by, whatever its path is called this time.
//!
//! Names such as `/dev/sdb` are given in the order in which the kernel finds drives: after a reboot another
//! drive may have the name. So the registry keeps a mark that stays with the drive, and the path is a hint.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use super::identity::Node;
use super::machine::{Machine, backing_file, names};
use crate::records::Identity;

/// A mark that stays with a drive: `KIND:VALUE`, with `;start=SECTOR` for a partition of it.
///
/// | kind | value | of |
/// | --- | --- | --- |
/// | `wwid` | the world-wide name in sysfs (SCSI page 0x83, NVMe namespace ids) | disks |
/// | `serial` | the serial number | virtio disks, SD cards |
/// | `dm` | the uuid of the mapping | LVM, dm-crypt, multipath |
/// | `md` | the uuid of the array | Linux md |
/// | `partuuid` | the partition's own uuid | partitions of disks without a mark |
/// | `file` | inode and time of birth | regular files |
/// | `loop` | the same of the file behind it | loop devices |
/// | `array` | the uuid of the array | Voltier's own arrays |
/// | `nbd` | size in bytes and name of the export | exports of NBD servers |
/// | `rbd` | size in bytes, id, behind a `+` who else used it, pool, namespace and name | Ceph RBD images |
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DriveIdentity(String);

const ARRAY_KIND: &str = "array:";
const EXPORT_KIND: &str = "nbd:";
const IMAGE_KIND: &str = "rbd:";

impl DriveIdentity {
    /// The identity of what a path leads to now; `None` when nothing is there, and when it has no mark that
    /// stays.
    pub fn of_path(machine: &Machine, path: &Path) -> Option<Self> {
        let meta = path.metadata().ok()?;
        match Node::of(&meta) {
            Node::File(..) => file_mark(path).map(|mark| Self(format!("file:{mark}"))),
            Node::Block(major, minor) => block_mark(&machine.block_dir(major, minor)).map(Self),
            Node::Remote(_) => None,
        }
    }

    /// The drive of this identity, wherever it is now; `hint` is where it was: renamed files are looked for
    /// beside it. `None` when it is not here, and when several drives have the mark: cheap bridges share
    /// their serial numbers.
    pub fn find(&self, machine: &Machine, hint: &Path) -> Option<PathBuf> {
        let is_it = |path: &PathBuf| Self::of_path(machine, path).as_ref() == Some(self);
        let Some(mark) = self.0.strip_prefix("file:") else {
            let [found] = block_devices(machine, &self.0).try_into().ok()?;
            // In a container the node of this name may be another drive.
            return Some(found).filter(is_it);
        };
        if is_it(&hint.to_owned()) {
            return Some(hint.to_owned());
        }
        let beside = fs::read_dir(hint.parent()?).ok()?.flatten().map(|entry| entry.path());
        let exported = machine.exported_files();
        let is_file = |path: &PathBuf| {
            !exported.contains(path) && path.symlink_metadata().is_ok_and(|meta| meta.is_file())
        };
        beside.filter(is_file).find(|path| file_mark(path).as_deref() == Some(mark))
    }

    /// All drives of this identity: several, if drives share it.
    pub fn find_all(&self, machine: &Machine, hint: &Path) -> Vec<PathBuf> {
        match block_devices(machine, &self.0) {
            shared if shared.len() > 1 => shared,
            _ => self.find(machine, hint).into_iter().collect(),
        }
    }

    /// The identity of an array of Voltier's.
    pub fn of_array(uuid: &Identity) -> Self {
        Self(format!("{ARRAY_KIND}{uuid}"))
    }

    /// The array of this identity, if it is one of an array.
    pub fn array(&self) -> Option<Identity> {
        self.0.strip_prefix(ARRAY_KIND)?.parse().ok()
    }

    /// The identity of an export of an NBD server. It says whether the server still serves the same, and finds
    /// no drive: any server may have an export of this name and size.
    pub fn of_export(name: &str, bytes: u64) -> Self {
        Self(format!("{EXPORT_KIND}{bytes}:{name}"))
    }

    /// The identity of a Ceph RBD image: one that was deleted and made again has another id, and one that another host
    /// used last has the mark of that use. It finds no drive.
    pub fn of_image(place: &str, (id, used_by): (&str, Option<&str>), bytes: u64) -> Self {
        let used_by = used_by.map(|mark| format!("+{mark}")).unwrap_or_default();
        Self(format!("{IMAGE_KIND}{bytes}:{id}{used_by}:{place}"))
    }

    /// The size in bytes in an identity of a drive beyond this machine.
    pub fn remote_bytes(&self) -> Option<u64> {
        let rest = self.0.strip_prefix(EXPORT_KIND).or_else(|| self.0.strip_prefix(IMAGE_KIND))?;
        rest.split(':').next()?.parse().ok()
    }

    /// The id in an identity of a Ceph RBD image.
    pub fn image_id(&self) -> Option<&str> {
        self.image_id_and_use()?.split('+').next()
    }

    /// The mark in an identity of a Ceph RBD image that another host used last.
    pub fn image_used_by(&self) -> Option<&str> {
        self.image_id_and_use()?.split_once('+').map(|(_, mark)| mark)
    }

    fn image_id_and_use(&self) -> Option<&str> {
        self.0.strip_prefix(IMAGE_KIND)?.split(':').nth(1)
    }

    /// The identity that a superblock has as its text; `None` when none is recorded.
    pub fn recorded(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The identity of a drive that has no mark, or shares it: the path alone says which drive is meant.
    pub fn none() -> Self {
        Self("none".to_owned())
    }

    /// Whether there is a mark to know the drive by.
    pub fn is_known(&self) -> bool {
        let is_remote = self.0.starts_with(EXPORT_KIND) || self.0.starts_with(IMAGE_KIND);
        self.0 != "none" && !is_remote
    }

    /// Whether this is the mark of the other drive, or of a partition of it.
    pub(crate) fn is_on(&self, other: &Self) -> bool {
        let rest = self.0.strip_prefix(&other.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(";start="))
    }

    /// An identity of a drive that this machine does not know: a simulated one's number.
    pub fn simulated(number: u64) -> Self {
        Self(format!("simulated:{number}"))
    }
}

impl fmt::Display for DriveIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// File systems whose inodes and times of birth stay over a remount: ext2 to ext4, XFS, btrfs, F2FS, tmpfs,
/// ZFS, bcachefs, overlays of them. Others (exFAT, FAT) number files anew.
const LASTING_FILE_SYSTEMS: [u64; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x0102_1994,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x794c_7630,
];

/// Inode and time of birth; none on file systems that do not keep them.
fn file_mark(path: &Path) -> Option<String> {
    let kind = rustix::fs::statfs(path).ok()?.f_type as u64;
    if !LASTING_FILE_SYSTEMS.contains(&kind) {
        return None;
    }
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(CWD, path, AtFlags::empty(), wanted).ok()?;
    let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let born = &found.stx_btime;
    has_birth.then(|| format!("{}@{}.{:09}", found.stx_ino, born.tv_sec, born.tv_nsec))
}

/// The mark of the block device of a folder of sysfs.
fn block_mark(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    if dir.join("partition").exists() {
        let start = line(&dir.join("start"))?;
        return match disk_mark(dir.parent()?) {
            Some(disk) => Some(format!("{disk};start={start}")),
            None => Some(format!("partuuid:{}", uevent(&dir, "PARTUUID")?)),
        };
    }
    disk_mark(&dir)
}

fn disk_mark(dir: &Path) -> Option<String> {
    if let Some(backing) = backing_file(dir) {
        let mark = file_mark(&backing)?;
        let offset = line(&dir.join("loop/offset")).filter(|offset| offset != "0");
        return Some(match offset {
            Some(offset) => format!("loop:{mark}+{offset}"),
            None => format!("loop:{mark}"),
        });
    }
    let known = [
        ("dm", "dm/uuid"),
        ("md", "md/uuid"),
        ("wwid", "wwid"),
        ("wwid", "device/wwid"),
        ("serial", "serial"),
        ("serial", "device/cid"),
    ];
    // The first one counts: a drive whose world-wide name is its slot has nothing better.
    let (kind, mark) =
        known.iter().find_map(|(kind, file)| Some((kind, line(&dir.join(file))?)))?;
    let is_place = PLACES.iter().any(|place| mark.contains(place));
    (!is_place).then(|| format!("{kind}:{mark}"))
}

/// Marks that are no mark of the drive: the slot of an emulated one, the name of a mapping.
const PLACES: [&str; 3] = ["QEMU", "QM000", "CRYPT-PLAIN-"];

/// All block devices with a mark, by their paths.
fn block_devices(machine: &Machine, mark: &str) -> Vec<PathBuf> {
    let marked = folders(machine).filter(|dir| block_mark(dir).as_deref() == Some(mark));
    marked.filter_map(|dir| node_of(&dir)).collect()
}

/// The paths of all block devices.
pub(super) fn all_block_devices(machine: &Machine) -> Vec<PathBuf> {
    folders(machine).filter_map(|dir| node_of(&dir)).collect()
}

/// The paths of all block devices. Each has a number that another device under this path does not have: the
/// kernel's count of media, which newer kernels keep for disks.
pub(super) fn block_nodes(machine: &Machine) -> Vec<(PathBuf, u64)> {
    let count_of = |dir: &Path| line(&dir.join("diskseq")).and_then(|count| count.parse().ok());
    let nodes =
        folders(machine).filter_map(|dir| Some((node_of(&dir)?, count_of(&dir).unwrap_or(0))));
    nodes.collect()
}

/// The folders of all block devices in sysfs, but for those of volumes: a daemon that reads through itself could not
/// be killed meanwhile, and no drive comes back as one.
fn folders(machine: &Machine) -> impl Iterator<Item = PathBuf> {
    let class = machine.sys.join("class/block");
    let exported = machine.exported_files();
    let is_export = move |dir: &PathBuf| {
        // A partition has no file of its own: its disk, one folder up, has.
        let file = backing_file(dir).or_else(|| backing_file(&dir.join("..")));
        file.is_some_and(|file| exported.contains(&file))
    };
    names(&class).into_iter().map(move |name| class.join(name)).filter(move |dir| !is_export(dir))
}

pub(super) fn node_of(dir: &Path) -> Option<PathBuf> {
    Some(Path::new("/dev").join(uevent(dir, "DEVNAME")?))
}

/// The first line of a file of sysfs, its blanks made single; none if it says nothing.
fn line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let words: Vec<&str> = text.lines().next()?.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn uevent(dir: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(dir.join("uevent")).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// A machine whose drives are files in a folder like sysfs.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn machine(&self) -> Machine {
            Machine::of_tables(self.0.path().join("proc"), self.0.path().to_owned())
        }

        /// A block device of this name with these files.
        fn device(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
            let dir = self.0.path().join("devices").join(name);
            fs::create_dir_all(&dir).unwrap();
            let short = name.rsplit('/').next().unwrap();
            for (file, text) in files.iter().chain(&[("uevent", &*format!("DEVNAME={short}\n"))]) {
                fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
                fs::write(dir.join(file), format!("{text}\n")).unwrap();
            }
            let class = self.0.path().join("class/block");
            fs::create_dir_all(&class).unwrap();
            std::os::unix::fs::symlink(&dir, class.join(short)).unwrap();
            dir
        }
    }

    #[test]
    fn a_disk_is_known_by_its_world_wide_name_under_any_path() {
        let sys = Sys::new();
        let disk = sys.device("sda", &[("device/wwid", "t10.ATA     Disk   1")]);
        let mark = block_mark(&disk).unwrap();
        assert_eq!(mark, "wwid:t10.ATA Disk 1");
        sys.device("sdb", &[("device/wwid", "naa.2")]);
        assert_eq!(block_devices(&sys.machine(), &mark), [Path::new("/dev/sda")]);
    }

    #[test]
    fn a_partition_is_its_disk_from_a_sector_on_or_its_own_uuid() {
        let sys = Sys::new();
        sys.device("sda", &[("device/wwid", "naa.1")]);
        let first = sys.device("sda/sda1", &[("partition", "1"), ("start", "2048")]);
        assert_eq!(block_mark(&first).as_deref(), Some("wwid:naa.1;start=2048"));
        sys.device("vda", &[]);
        let bare = sys.device("vda/vda1", &[("partition", "1"), ("start", "2048")]);
        assert_eq!(block_mark(&bare), None);
        fs::write(bare.join("uevent"), "DEVNAME=vda1\nPARTUUID=ab-1\n").unwrap();
        assert_eq!(block_mark(&bare).as_deref(), Some("partuuid:ab-1"));
    }

    #[test]
    fn a_mark_that_two_drives_share_names_neither() {
        let sys = Sys::new();
        for name in ["sda", "sdb"] {
            sys.device(name, &[("device/wwid", "usb.bridge")]);
        }
        let shared = DriveIdentity("wwid:usb.bridge".to_owned());
        assert_eq!(shared.find(&sys.machine(), Path::new("/dev/sda")), None);
        let both = ["/dev/sda", "/dev/sdb"].map(PathBuf::from);
        assert_eq!(shared.find_all(&sys.machine(), Path::new("/dev/sda")), both);
    }

    #[test]
    fn all_block_devices_are_listed_with_a_mark_or_without() {
        let sys = Sys::new();
        sys.device("sdb", &[("device/wwid", "naa.5")]);
        sys.device("sda", &[]);
        let expected = ["/dev/sda", "/dev/sdb"].map(PathBuf::from);
        assert_eq!(all_block_devices(&sys.machine()), expected);
    }

    #[test]
    fn an_array_is_known_by_its_uuid_and_nothing_else_is_taken_for_one() {
        let uuid = Identity([0xa5; 16]);
        let mark = DriveIdentity::of_array(&uuid);
        assert_eq!(DriveIdentity::recorded(&mark.to_string()), Some(mark.clone()));
        assert_eq!((mark.array(), DriveIdentity::recorded("")), (Some(uuid), None));
        for other in ["wwid:naa.5", "array:", "array:xyz"] {
            assert_eq!(DriveIdentity(other.to_owned()).array(), None, "{other}");
        }
    }

    #[test]
    fn a_drive_without_a_mark_has_no_identity() {
        let sys = Sys::new();
        let disk = sys.device("vda", &[("serial", ""), ("dm/uuid", " ")]);
        assert_eq!(block_mark(&disk), None);
        let slot = "t10.QEMU    QEMU HARDDISK   drive-scsi1";
        assert_eq!(block_mark(&sys.device("sda", &[("device/wwid", slot)])), None);
    }

    #[test]
    fn a_loop_device_is_the_file_behind_it_whatever_blanks_the_path_has() {
        let sys = Sys::new();
        let file = sys.0.path().join("two  blanks ");
        File::create(&file).unwrap();
        let Some(mark) = file_mark(&file) else {
            eprintln!("left out: this file system keeps no time of birth");
            return;
        };
        let path = file.display().to_string();
        let files = [("loop/backing_file", &*path), ("loop/offset", "512")];
        let device = sys.device("loop0", &files);
        assert_eq!(block_mark(&device), Some(format!("loop:{mark}+512")));
    }

    #[test]
    fn a_file_keeps_its_identity_when_it_is_renamed_and_a_copy_has_another() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        File::create(&a).unwrap();
        let machine = Machine::real();
        let Some(identity) = DriveIdentity::of_path(&machine, &a) else {
            eprintln!("left out: this file system keeps no time of birth");
            return;
        };
        fs::rename(&a, &b).unwrap();
        fs::copy(&b, &a).unwrap();
        assert_ne!(DriveIdentity::of_path(&machine, &a).as_ref(), Some(&identity));
        assert_eq!(identity.find(&machine, &a), Some(b.clone()));
        fs::remove_file(&b).unwrap();
        assert_eq!(identity.find(&machine, &a), None);
    }
}
