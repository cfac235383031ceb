//! The storage behind a path, whatever the path is called.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::machine::Machine;

/// Identity of a piece of storage, with what it lies on as far as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceId {
    own: Node,
    /// The disk a partition belongs to, or the file behind a loop device.
    beneath: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A regular file: device and inode.
    File(u64, u64),
    /// A block device: its number.
    Block(u32, u32),
}

impl DeviceId {
    /// The identity of what a path leads to now. `None` when nothing is there, and when the file system of
    /// a file does not answer soon.
    pub fn of_path(machine: &Machine, path: &Path) -> Option<Self> {
        let found =
            |machine: &Machine, path: &Path| Some(Self::of(machine, &path.metadata().ok()?));
        if path.starts_with("/dev") {
            // The kernel knows these by itself, whatever a drive does.
            return found(machine, path);
        }
        let (own, at) = (machine.clone(), path.to_owned());
        machine.ask(path, move || found(&own, &at)).flatten()
    }

    /// The identity of a storage that this machine does not know: a simulated drive's number.
    pub fn simulated(number: u64) -> Self {
        Self { own: Node::File(u64::MAX, number), beneath: Vec::new() }
    }

    /// The identity of what `meta` was read from (symbolic links followed).
    pub(super) fn of(machine: &Machine, meta: &Metadata) -> Self {
        let own = Node::of(meta);
        let mut beneath = Vec::new();
        let Node::Block(major, minor) = own else { return Self { own, beneath } };
        if let Some(disk) = machine.disk_of_partition(major, minor) {
            beneath.push(Node::Block(disk.0, disk.1));
        }
        for (major, minor) in
            std::iter::once((major, minor)).chain(beneath.first().map(Node::number))
        {
            if let Some(file) = machine.loop_backing(major, minor)
                && let Ok(meta) = Path::new(&file).metadata()
            {
                beneath.push(Node::of(&meta));
            }
        }
        Self { own, beneath }
    }

    /// Whether writing to one may change the other: the same storage, or one lies on the other.
    /// Two partitions of one disk do not overlap.
    pub fn overlaps(&self, other: &DeviceId) -> bool {
        self.own == other.own
            || self.beneath.contains(&other.own)
            || other.beneath.contains(&self.own)
    }

    /// Whether this storage is the other one, or a part of it.
    pub(crate) fn lies_on(&self, other: &DeviceId) -> bool {
        self.own == other.own || self.beneath.contains(&other.own)
    }

    /// The number of the block device, if it is one.
    pub(super) fn block_number(&self) -> Option<(u32, u32)> {
        match self.own {
            Node::Block(major, minor) => Some((major, minor)),
            Node::File(..) => None,
        }
    }

    /// Device and inode of the regular file, if it is one.
    pub(super) fn file_number(&self) -> Option<(u64, u64)> {
        match self.own {
            Node::File(device, inode) => Some((device, inode)),
            Node::Block(..) => None,
        }
    }
}

impl Node {
    pub(super) fn of(meta: &Metadata) -> Self {
        if meta.file_type().is_block_device() {
            let number = meta.rdev();
            Node::Block(rustix::fs::major(number), rustix::fs::minor(number))
        } else {
            Node::File(meta.dev(), meta.ino())
        }
    }

    fn number(&self) -> (u32, u32) {
        match self {
            Node::Block(major, minor) => (*major, *minor),
            Node::File(..) => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn id(path: &Path) -> DeviceId {
        DeviceId::of(&Machine::real(), &path.metadata().unwrap())
    }

    #[test]
    fn the_same_file_is_recognised_through_links_of_both_kinds() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "x").unwrap();
        fs::write(&b, "x").unwrap();
        std::os::unix::fs::symlink(&a, dir.path().join("soft")).unwrap();
        fs::hard_link(&a, dir.path().join("hard")).unwrap();
        assert!(id(&a).overlaps(&id(&dir.path().join("soft"))));
        assert!(id(&a).overlaps(&id(&dir.path().join("hard"))));
        assert!(!id(&a).overlaps(&id(&b)));
    }

    #[test]
    fn a_partition_overlaps_its_disk_and_not_its_sibling() {
        let disk = DeviceId { own: Node::Block(8, 0), beneath: vec![] };
        let part =
            |minor| DeviceId { own: Node::Block(8, minor), beneath: vec![Node::Block(8, 0)] };
        assert!(disk.overlaps(&part(1)) && part(1).overlaps(&disk));
        assert!(part(1).overlaps(&part(1)) && !part(1).overlaps(&part(2)));
    }

    #[test]
    fn a_loop_device_overlaps_the_file_behind_it() {
        let looped = DeviceId { own: Node::Block(7, 0), beneath: vec![Node::File(1, 2)] };
        let file = DeviceId { own: Node::File(1, 2), beneath: vec![] };
        assert!(looped.overlaps(&file) && file.overlaps(&looped));
    }
}
