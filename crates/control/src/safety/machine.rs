//! The tables of `/proc` and `/sys` that say what the kernel does with devices.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::looks::{Looks, STAT_MAX};

/// Where the kernel's tables are read: the real ones, or copies in tests. Clones know of the same devices
/// that do not answer.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) proc: PathBuf,
    pub(super) sys: PathBuf,
    pub(super) looks: Looks,
    /// Questions what a path is.
    pub(super) stats: Looks,
}

impl Default for Machine {
    fn default() -> Self {
        Self::real()
    }
}

impl Machine {
    /// The answer to a question about a path; `None` when its file system does not answer soon.
    pub fn ask<T: Send + 'static>(
        &self,
        path: &Path,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.stats.ask(path, STAT_MAX, question)
    }

    /// This machine.
    pub fn real() -> Self {
        Self::of_tables(PathBuf::from("/proc"), PathBuf::from("/sys"))
    }

    pub(super) fn of_tables(proc: PathBuf, sys: PathBuf) -> Self {
        Self { proc, sys, looks: Looks::default(), stats: Looks::default() }
    }

    /// Opens and reads devices, each on a thread of its own, and waits some seconds for their answers. A
    /// device that gives none is not opened again before it does: [`super::examine`] fails at once.
    pub(crate) fn knock(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.looks.knock(paths);
    }

    /// The disk a partition belongs to.
    pub(super) fn disk_of_partition(&self, major: u32, minor: u32) -> Option<(u32, u32)> {
        let dir = self.block_dir(major, minor).canonicalize().ok()?;
        dir.join("partition").exists().then_some(())?;
        parse_number(&fs::read_to_string(dir.parent()?.join("dev")).ok()?)
    }

    /// The file behind a loop device.
    pub(super) fn loop_backing(&self, major: u32, minor: u32) -> Option<PathBuf> {
        backing_file(&self.block_dir(major, minor))
    }

    /// Where in its file a loop device begins, in bytes.
    pub(super) fn loop_offset(&self, major: u32, minor: u32) -> u64 {
        self.number(major, minor, "loop/offset").unwrap_or(0)
    }

    /// Where on its disk a partition begins, in bytes.
    pub(super) fn partition_start(&self, major: u32, minor: u32) -> Option<u64> {
        self.number(major, minor, "start").map(in_bytes)
    }

    /// The size of a block device in bytes; 0 when it is not known.
    pub(super) fn device_bytes(&self, major: u32, minor: u32) -> u64 {
        self.number(major, minor, "size").map_or(0, in_bytes)
    }

    fn number(&self, major: u32, minor: u32, name: &str) -> Option<u64> {
        fs::read_to_string(self.block_dir(major, minor).join(name)).ok()?.trim().parse().ok()
    }

    pub(super) fn block_dir(&self, major: u32, minor: u32) -> PathBuf {
        self.sys.join(format!("dev/block/{major}:{minor}"))
    }

    /// Partitions of a disk: name and number.
    pub(super) fn partitions(&self, major: u32, minor: u32) -> Vec<(String, (u32, u32))> {
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
    pub(super) fn mount_point(&self, number: (u32, u32)) -> Option<PathBuf> {
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

    /// The block devices and files that the kernel swaps to.
    pub(super) fn swaps(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        let path = |line: &str| line.split_whitespace().next().map(unescape).unwrap_or_default();
        table.lines().skip(1).map(|line| PathBuf::from(path(line))).collect()
    }

    /// The loop device over a regular file.
    pub(super) fn loop_over(&self, device_inode: (u64, u64)) -> Option<String> {
        let mounts = self.fuse_mounts();
        let own = (rustix::fs::major(device_inode.0), rustix::fs::minor(device_inode.0));
        names(&self.sys.join("block")).into_iter().find(|name| {
            let backing = backing_file(&self.sys.join("block").join(name));
            // A server that hangs would be waited for, and the file may be on another file system.
            let is_elsewhere = |path: &PathBuf| {
                let mut over = mounts.iter().filter(|mount| path.starts_with(&mount.at)).peekable();
                over.peek().is_some() && over.all(|mount| mount.number != own)
            };
            let meta = backing.filter(|path| !is_elsewhere(path)).and_then(|it| it.metadata().ok());
            meta.is_some_and(|meta| (meta.dev(), meta.ino()) == device_inode)
        })
    }

    /// All FUSE mounts.
    fn fuse_mounts(&self) -> Vec<FuseMount> {
        let table = fs::read_to_string(self.proc.join("self/mountinfo")).unwrap_or_default();
        let mount = |line: &str| {
            let (place, kind) = line.split_once(" - ")?;
            let (place, mut kind) = (place.split(' ').collect::<Vec<_>>(), kind.split(' '));
            kind.next()?.starts_with("fuse").then_some(())?;
            let is_export = kind.next() == Some("voltier");
            let at = PathBuf::from(unescape(place.get(4)?));
            Some(FuseMount { at, number: parse_number(place.get(2)?)?, is_export })
        };
        table.lines().filter_map(mount).collect()
    }

    /// The files of volumes that a Voltier serves on this machine, now or until it died.
    pub(super) fn exported_files(&self) -> BTreeSet<PathBuf> {
        let exports = self.fuse_mounts().into_iter().filter(|mount| mount.is_export);
        exports.map(|mount| mount.at).collect()
    }
}

/// A mount of FUSE.
struct FuseMount {
    at: PathBuf,
    number: (u32, u32),
    /// Whether it is a file of a volume.
    is_export: bool,
}

/// The kernel counts in units of 512 bytes, whatever the blocks of a device.
fn in_bytes(sectors: u64) -> u64 {
    sectors.saturating_mul(512)
}

/// The file behind the loop device of this folder of sysfs.
pub(super) fn backing_file(dir: &Path) -> Option<PathBuf> {
    let path = fs::read_to_string(dir.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(path.trim_end_matches('\n')))
}

/// Entries of a folder, sorted; none when it is not there.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// `MAJOR:MINOR`.
pub(super) fn parse_number(text: &str) -> Option<(u32, u32)> {
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

    #[test]
    fn the_files_of_fuse_servers_are_not_asked_for_what_is_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::of_tables(dir.path().join("proc"), dir.path().join("sys"));
        let (plain, served) = (dir.path().join("plain"), dir.path().join("served"));
        for (name, file) in [("loop0", &served), ("loop1", &plain)] {
            fs::write(file, name).unwrap();
            let device = machine.sys.join("block").join(name).join("loop");
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("backing_file"), format!("{}\n", file.display())).unwrap();
        }
        fs::create_dir_all(machine.proc.join("self")).unwrap();
        let mount = format!("36 35 0:4242 / {} rw - fuse voltier rw\n", served.display());
        fs::write(machine.proc.join("self/mountinfo"), mount).unwrap();
        let over = |file: &PathBuf| {
            let meta = file.metadata().unwrap();
            machine.loop_over((meta.dev(), meta.ino()))
        };
        assert_eq!(over(&plain).as_deref(), Some("loop1"));
        assert_eq!(over(&served), None, "it was asked");
        assert_eq!(machine.exported_files(), BTreeSet::from([served]));
    }
}
