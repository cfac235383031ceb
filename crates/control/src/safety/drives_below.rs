//! The drives that a device lies on, as far as the kernel shows them.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::drive_identity::node_of;
use super::machine::{Machine, backing_file, names};

/// Devices upon devices that are followed: more than anybody has, and fewer than a circle.
const DEPTH_MAX: u32 = 16;

/// A drive that is no part of another one, and lies on none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PhysicalDrive {
    /// The folder of its hardware in sysfs: namespaces of one NVMe drive share it.
    pub(crate) place: PathBuf,
    /// Its node.
    pub(crate) node: PathBuf,
}

/// The drives below what a path leads to: of a partition its disk, of LVM, dm-crypt and md those that they were made
/// of, of a loop device or a file those of its file system. None where there is no hardware to be seen, and `None`
/// when the path leads nowhere, or its file system does not answer.
pub(crate) fn drives_below(machine: &Machine, path: &Path) -> Option<Vec<PhysicalDrive>> {
    let mut found = Vec::new();
    let number = number_of(machine, path)?;
    collect(machine, &machine.block_dir(number.0, number.1), DEPTH_MAX, &mut found);
    found.sort();
    found.dedup_by(|one, other| one.place == other.place);
    Some(found)
}

/// The number of a block device, or of the one that a file lies on. Files of volumes lie on no drive: the daemon
/// would wait for itself.
fn number_of(machine: &Machine, path: &Path) -> Option<(u32, u32)> {
    let of = |meta: Metadata| {
        let is_device = meta.file_type().is_block_device();
        let number = if is_device { meta.rdev() } else { meta.dev() };
        (rustix::fs::major(number), rustix::fs::minor(number))
    };
    if path.starts_with("/dev") {
        // The kernel knows these by itself, whatever a drive does.
        return Some(of(path.metadata().ok()?));
    }
    if machine.exported_files().contains(path) {
        return Some((0, 0));
    }
    let own = path.to_owned();
    machine.ask(path, move || own.metadata().ok().map(of)).flatten()
}

fn collect(machine: &Machine, dir: &Path, depth: u32, found: &mut Vec<PhysicalDrive>) {
    let Ok(mut dir) = dir.canonicalize() else { return };
    if depth == 0 {
        return;
    }
    if dir.join("partition").exists() && !dir.pop() {
        return;
    }
    if let Some(file) = backing_file(&dir) {
        if let Some((major, minor)) = number_of(machine, &file) {
            collect(machine, &machine.block_dir(major, minor), depth - 1, found);
        }
        return;
    }
    let mut below = names(&dir.join("slaves"));
    let uuid = fs::read_to_string(dir.join("dm/uuid")).unwrap_or_default();
    if uuid.starts_with("mpath-") {
        // Several ways to one drive: the first that works.
        let state = |name: &String| dir.join("slaves").join(name).join("device/state");
        let works =
            |name: &String| fs::read_to_string(state(name)).is_ok_and(|it| it.trim() == "running");
        let first = below.iter().position(works).unwrap_or(0);
        below = below.into_iter().skip(first).take(1).collect();
    }
    for name in &below {
        collect(machine, &dir.join("slaves").join(name), depth - 1, found);
    }
    if below.is_empty()
        && let Ok(place) = dir.join("device").canonicalize()
        && let Some(node) = node_of(&dir)
    {
        found.push(PhysicalDrive { place, node });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine like one with two disks, an NVMe drive of two namespaces, LVM over a partition, and a loop device.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn device(&self, name: &str, number: &str, hardware: &str) -> PathBuf {
            let dir = self.0.path().join("devices").join(name);
            fs::create_dir_all(&dir).unwrap();
            let short = name.rsplit('/').next().unwrap();
            fs::write(dir.join("uevent"), format!("DEVNAME={short}\n")).unwrap();
            let table = self.0.path().join("dev/block");
            fs::create_dir_all(&table).unwrap();
            symlink(&dir, table.join(number)).unwrap();
            if !hardware.is_empty() {
                let place = self.0.path().join("hardware").join(hardware);
                fs::create_dir_all(&place).unwrap();
                symlink(&place, dir.join("device")).unwrap();
            }
            dir
        }

        fn lies_on(&self, dir: &Path, below: &[&Path]) {
            fs::create_dir_all(dir.join("slaves")).unwrap();
            for it in below {
                symlink(it, dir.join("slaves").join(it.file_name().unwrap())).unwrap();
            }
        }

        fn below(&self, dir: &Path) -> Vec<String> {
            let machine = Machine::of_tables(self.0.path().join("proc"), self.0.path().to_owned());
            let mut found = Vec::new();
            collect(&machine, dir, DEPTH_MAX, &mut found);
            found.into_iter().map(|it| it.node.display().to_string()).collect()
        }
    }

    #[test]
    fn partitions_mappings_and_loops_lead_to_their_drives() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let sda = sys.device("sda", "8:0", "0:0:0:0");
        let sdb = sys.device("sdb", "8:16", "1:0:0:0");
        let part = sys.device("sda/sda1", "8:1", "");
        fs::write(part.join("partition"), "1\n").unwrap();
        assert_eq!(sys.below(&part), ["/dev/sda"]);
        let lvm = sys.device("dm-0", "253:0", "");
        sys.lies_on(&lvm, &[&part, &sdb]);
        let crypt = sys.device("dm-1", "253:1", "");
        sys.lies_on(&crypt, &[&lvm]);
        assert_eq!(sys.below(&crypt), ["/dev/sda", "/dev/sdb"]);
        let ways = sys.device("dm-2", "253:2", "");
        sys.lies_on(&ways, &[&sda, &sdb]);
        fs::create_dir_all(ways.join("dm")).unwrap();
        fs::write(ways.join("dm/uuid"), "mpath-3600\n").unwrap();
        assert_eq!(sys.below(&ways), ["/dev/sda"]);
        let second = sys.0.path().join("hardware/1:0:0:0/state");
        fs::write(second, "running\n").unwrap();
        assert_eq!(sys.below(&ways), ["/dev/sdb"], "the first way does not work");
        let bare = sys.device("zram0", "252:0", "");
        assert!(sys.below(&bare).is_empty());
    }

    #[test]
    fn a_circle_ends_and_what_is_not_there_is_nothing() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let (one, other) = (sys.device("dm-0", "253:0", ""), sys.device("dm-1", "253:1", ""));
        sys.lies_on(&one, &[&other]);
        sys.lies_on(&other, &[&one]);
        assert!(sys.below(&one).is_empty());
        assert!(sys.below(Path::new("/nowhere")).is_empty());
        assert_eq!(drives_below(&Machine::real(), Path::new("/dev/nowhere")), None);
    }

    #[test]
    fn namespaces_of_one_drive_are_one_drive_and_a_loop_is_that_of_its_file() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let one = sys.device("nvme0n1", "259:0", "nvme0");
        let other = sys.device("nvme0n2", "259:1", "nvme0");
        let file = sys.0.path().join("file");
        fs::write(&file, "x").unwrap();
        let number = file.metadata().unwrap().dev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let stripe = sys.device("md0", &number, "");
        sys.lies_on(&stripe, &[&one, &other]);
        let loops = sys.device("loop0", "7:0", "");
        fs::create_dir_all(loops.join("loop")).unwrap();
        fs::write(loops.join("loop/backing_file"), format!("{}\n", file.display())).unwrap();
        assert_eq!(sys.below(&loops).len(), 2);
        let machine = Machine::of_tables(sys.0.path().join("proc"), sys.0.path().to_owned());
        let found = drives_below(&machine, &file).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].node, Path::new("/dev/nvme0n1"));
    }
}
