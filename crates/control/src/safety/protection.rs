//! Write protection of drives. A block device that is write-protected can often be opened for writing all the
//! same: its writes fail later, when somebody counts on them.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{IFlags, StatVfsMountFlags, fstatvfs, ioctl_getflags, major, minor};

use super::machine::Machine;

/// Why a device takes no writes, from whomever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProtection {
    /// The block device is read-only.
    Device,
    /// The file has an attribute that forbids changes.
    Attribute,
    /// The file system of the file is mounted read-only.
    FileSystem,
    /// The server serves the export read-only.
    Server,
}

impl WriteProtection {
    /// The protection of what a path leads to, if it has one.
    pub fn of(machine: &Machine, path: &Path) -> Option<Self> {
        if path.starts_with("/dev") {
            return Self::of_block_device(machine, path);
        }
        let (own, at) = (machine.clone(), path.to_owned());
        let found = move || Self::of_block_device(&own, &at).or_else(|| Self::of_file(&at));
        machine.ask(path, found).flatten()
    }

    /// The same of a block device alone: the kernel knows that by itself, whatever the drive does.
    pub fn of_block_device(machine: &Machine, path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let meta = path.metadata().ok().filter(|meta| meta.file_type().is_block_device())?;
        let folder = machine.block_dir(major(meta.rdev()), minor(meta.rdev()));
        let is_read_only = fs::read_to_string(folder.join("ro")).is_ok_and(|it| it.trim() == "1");
        is_read_only.then_some(Self::Device)
    }

    fn of_file(path: &Path) -> Option<Self> {
        // A pipe would be waited for.
        path.metadata().ok().filter(|meta| meta.is_file())?;
        let file = File::open(path).ok()?;
        let fixed = IFlags::IMMUTABLE | IFlags::APPEND;
        // Not every file system has attributes.
        if ioctl_getflags(&file).is_ok_and(|flags| flags.intersects(fixed)) {
            return Some(Self::Attribute);
        }
        let is_read_only = |it: rustix::fs::StatVfs| it.f_flag.contains(StatVfsMountFlags::RDONLY);
        fstatvfs(&file).is_ok_and(is_read_only).then_some(Self::FileSystem)
    }
}

impl fmt::Display for WriteProtection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Device => {
                "is write-protected (its block device is read-only); make it writable: its switch, \
                 `blockdev --setrw`, or `losetup` without -r"
            }
            Self::Attribute => {
                "is write-protected (an attribute forbids changes); take it away with `chattr -i -a`"
            }
            Self::FileSystem => {
                "is write-protected (its file system is mounted read-only); mount it writable"
            }
            Self::Server => {
                "is read-only (its server serves it so, or to several clients); have the server take writes"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_can_be_written_has_no_protection() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "x").unwrap();
        let machine = Machine::real();
        assert_eq!(WriteProtection::of(&machine, &path), None);
        assert_eq!(WriteProtection::of(&machine, &dir.path().join("gone")), None);
    }
}
