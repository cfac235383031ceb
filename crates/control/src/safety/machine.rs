//! The tables of `/proc` and `/sys` that say what the kernel does with devices.

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
        names(&self.sys.join("block")).into_iter().find(|name| {
            let meta = backing_file(&self.sys.join("block").join(name))
                .and_then(|backing| backing.metadata().ok());
            meta.is_some_and(|meta| (meta.dev(), meta.ino()) == device_inode)
        })
    }
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
