//! Who uses a device now, as `/proc` and `/sys` tell.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Finding;
use super::identity::DeviceId;

/// Where the kernel's tables are read: the real ones, or copies in tests.
#[derive(Clone, Debug)]
pub struct Machine {
    proc: PathBuf,
    sys: PathBuf,
}

impl Machine {
    /// This machine.
    pub fn real() -> Self {
        Self { proc: PathBuf::from("/proc"), sys: PathBuf::from("/sys") }
    }

    /// The disk a partition belongs to.
    pub(super) fn disk_of_partition(&self, major: u32, minor: u32) -> Option<(u32, u32)> {
        let dir = self.block_dir(major, minor).canonicalize().ok()?;
        dir.join("partition").exists().then_some(())?;
        parse_number(&fs::read_to_string(dir.parent()?.join("dev")).ok()?)
    }

    /// The file behind a loop device.
    pub(super) fn loop_backing(&self, major: u32, minor: u32) -> Option<PathBuf> {
        let file = self.block_dir(major, minor).join("loop/backing_file");
        Some(PathBuf::from(fs::read_to_string(file).ok()?.trim_end_matches('\n')))
    }

    fn block_dir(&self, major: u32, minor: u32) -> PathBuf {
        self.sys.join(format!("dev/block/{major}:{minor}"))
    }

    /// Partitions of a disk: name and number.
    fn partitions(&self, major: u32, minor: u32) -> Vec<(String, (u32, u32))> {
        names(&self.block_dir(major, minor))
            .into_iter()
            .filter_map(|name| {
                let dir = self.block_dir(major, minor).join(&name);
                dir.join("partition").exists().then_some(())?;
                let number = parse_number(&fs::read_to_string(dir.join("dev")).ok()?)?;
                Some((name, number))
            })
            .collect()
    }

    /// Mount points of a block device.
    fn mount_point(&self, number: (u32, u32)) -> Option<PathBuf> {
        let table = fs::read_to_string(self.proc.join("self/mountinfo")).ok()?;
        table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let source = fields.iter().position(|field| *field == "-").map(|at| at + 2);
            let by_source = || {
                // btrfs shows a number of its own: the source path tells.
                let source = PathBuf::from(unescape(fields.get(source?)?));
                let meta = source.metadata().ok().filter(|m| m.file_type().is_block_device())?;
                Some((rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())))
            };
            let is_it = parse_number(fields.get(2)?) == Some(number) || by_source() == Some(number);
            is_it.then(|| PathBuf::from(unescape(fields.get(4).unwrap_or(&""))))
        })
    }

    /// Whether the kernel swaps to a block device or a file.
    fn is_swap(&self, id: &DeviceId) -> bool {
        let table = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let path = unescape(line.split_whitespace().next().unwrap_or_default());
            Path::new(&path).metadata().is_ok_and(|meta| DeviceId::of(self, &meta).overlaps(id))
        })
    }

    /// The loop device over a regular file.
    fn loop_over(&self, device_inode: (u64, u64)) -> Option<String> {
        names(&self.sys.join("block")).into_iter().find(|name| {
            let file = self.sys.join("block").join(name).join("loop/backing_file");
            let Ok(backing) = fs::read_to_string(file) else { return false };
            Path::new(backing.trim_end_matches('\n'))
                .metadata()
                .is_ok_and(|meta| (meta.dev(), meta.ino()) == device_inode)
        })
    }
}

/// Everything that uses the device now.
pub(super) fn findings(machine: &Machine, id: &DeviceId) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(number) = id.block_number() {
        found.extend(of_block(machine, number));
        for (name, number) in machine.partitions(number.0, number.1) {
            let inner = of_block(machine, number);
            found.extend(inner.first().map(|f| Finding::PartitionInUse(format!("{name} {f}"))));
        }
    }
    if let Some(number) = id.file_number()
        && let Some(name) = machine.loop_over(number)
    {
        found.push(Finding::Held(format!("/dev/{name}")));
    }
    if machine.is_swap(id) {
        found.push(Finding::Swap);
    }
    found
}

fn of_block(machine: &Machine, number: (u32, u32)) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        machine.mount_point(number).map(Finding::Mounted).into_iter().collect();
    let holders = names(&machine.block_dir(number.0, number.1).join("holders"));
    found.extend(holders.first().map(|name| Finding::Held(format!("/dev/{name}"))));
    found
}

/// Entries of a folder, sorted; none when it is not there.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// `MAJOR:MINOR`.
fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Undoes the octal escapes of the kernel's tables (`\040` is a blank).
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let octal = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with sda (partition sda1 mounted), sdb held by dm-0, sdc idle.
    fn machine(dir: &Path) -> Machine {
        let machine = Machine { proc: dir.join("proc"), sys: dir.join("sys") };
        let block = dir.join("sys/dev/block");
        let disk = dir.join("sys/devices/sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::write(disk.join("dev"), "8:0\n").unwrap();
        fs::write(disk.join("sda1/dev"), "8:1\n").unwrap();
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        fs::create_dir_all(dir.join("sys/devices/sdb/holders/dm-0")).unwrap();
        fs::create_dir_all(dir.join("sys/devices/sdc/holders")).unwrap();
        fs::create_dir_all(&block).unwrap();
        for (number, path) in
            [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:16", "sdb"), ("8:32", "sdc")]
        {
            let target = dir.join("sys/devices").join(path);
            std::os::unix::fs::symlink(target, block.join(number)).unwrap();
        }
        fs::create_dir_all(dir.join("proc/self")).unwrap();
        let mounts = "36 35 8:1 / /mnt/my\\040data rw - ext4 /dev/sda1 rw\n";
        fs::write(dir.join("proc/self/mountinfo"), mounts).unwrap();
        machine
    }

    #[test]
    fn mounts_holders_and_partitions_in_use_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let mounted = Finding::Mounted(PathBuf::from("/mnt/my data"));
        assert_eq!(of_block(&machine, (8, 1)), [mounted]);
        assert_eq!(of_block(&machine, (8, 16)), [Finding::Held("/dev/dm-0".into())]);
        assert_eq!(of_block(&machine, (8, 32)), []);
        assert_eq!(machine.partitions(8, 0), [("sda1".to_owned(), (8, 1))]);
        assert_eq!(machine.disk_of_partition(8, 1), Some((8, 0)));
        assert_eq!(machine.disk_of_partition(8, 0), None);
    }

    #[test]
    fn a_swap_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        let file = dir.path().join("swap file");
        fs::write(&file, "x").unwrap();
        let shown = file.display().to_string().replace(' ', "\\040");
        let table = format!("Filename Type Size Used Priority\n{shown} file 1 0 -2\n");
        fs::write(dir.path().join("proc/swaps"), table).unwrap();
        let id = DeviceId::of(&machine, &file.metadata().unwrap());
        assert_eq!(findings(&machine, &id), [Finding::Swap]);
    }
}
