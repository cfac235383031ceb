//! The storage behind a path, whatever the path is called.

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::machine::Machine;
use crate::remote::Remote;

/// Identity of a piece of storage, with what it lies on as far as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceId {
    own: Node,
    /// The parts of other storage that it is: of the disk a partition belongs to, of the file behind a loop
    /// device.
    beneath: Vec<Part>,
}

/// A part of a piece of storage.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    of: Node,
    /// Nothing when it is not known: then it is taken to be apart from all others.
    bytes: Range<u64>,
}

impl Part {
    fn overlaps(&self, other: &Self) -> bool {
        let (first, end) =
            (self.bytes.start.max(other.bytes.start), self.bytes.end.min(other.bytes.end));
        self.of == other.of && first < end
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A regular file: device and inode.
    File(u64, u64),
    /// A block device: its number.
    Block(u32, u32),
    /// A drive beyond this machine, as it is named.
    Remote(Remote),
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

    /// The identity of a drive beyond this machine: two names of one are not seen to be one.
    pub fn remote(remote: &Remote) -> Self {
        Self { own: Node::Remote(remote.clone()), beneath: Vec::new() }
    }

    /// The identity of what `meta` was read from (symbolic links followed).
    pub(super) fn of(machine: &Machine, meta: &Metadata) -> Self {
        let own = Node::of(meta);
        let mut beneath = Vec::new();
        let Node::Block(major, minor) = own else { return Self { own, beneath } };
        // What it is of its disk: all of it, if it is no partition.
        let (mut disk, mut bytes) = ((major, minor), 0..machine.device_bytes(major, minor));
        if let Some(whole) = machine.disk_of_partition(major, minor) {
            let start = machine.partition_start(major, minor);
            bytes = start.map_or(0..0, |start| start..start.saturating_add(bytes.end));
            beneath.push(Part { of: Node::Block(whole.0, whole.1), bytes: bytes.clone() });
            disk = whole;
        }
        if let Some(file) = machine.loop_backing(disk.0, disk.1)
            && let Ok(meta) = Path::new(&file).metadata()
        {
            let offset = machine.loop_offset(disk.0, disk.1);
            let [start, end] = [bytes.start, bytes.end].map(|at| at.saturating_add(offset));
            beneath.push(Part { of: Node::of(&meta), bytes: start..end });
        }
        Self { own, beneath }
    }

    /// Whether writing to one may change the other: the same storage, one lies on the other, or both on the
    /// same part of a third. Two partitions of one disk do not overlap.
    pub fn overlaps(&self, other: &DeviceId) -> bool {
        let is_shared = |part: &Part| other.beneath.iter().any(|it| it.overlaps(part));
        self.lies_on(other) || other.lies_on(self) || self.beneath.iter().any(is_shared)
    }

    /// Whether both are parts of one disk or one file, which fail together.
    pub fn shares_a_drive_with(&self, other: &DeviceId) -> bool {
        let is_shared = |part: &Part| other.beneath.iter().any(|it| it.of == part.of);
        self.beneath.iter().any(is_shared)
    }

    /// Whether this storage is the other one, or a part of it.
    pub(crate) fn lies_on(&self, other: &DeviceId) -> bool {
        self.own == other.own || self.beneath.iter().any(|part| part.of == other.own)
    }

    /// The number of the block device, if it is one.
    pub(super) fn block_number(&self) -> Option<(u32, u32)> {
        match self.own {
            Node::Block(major, minor) => Some((major, minor)),
            Node::File(..) | Node::Remote(_) => None,
        }
    }

    /// Device and inode of the regular file, if it is one.
    pub(super) fn file_number(&self) -> Option<(u64, u64)> {
        match self.own {
            Node::File(device, inode) => Some((device, inode)),
            Node::Block(..) | Node::Remote(_) => None,
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
        let part = |minor: u32| {
            let bytes = u64::from(minor) * 100..u64::from(minor) * 100 + 100;
            let beneath = vec![Part { of: Node::Block(8, 0), bytes }];
            DeviceId { own: Node::Block(8, minor), beneath }
        };
        assert!(disk.overlaps(&part(1)) && part(1).overlaps(&disk));
        assert!(part(1).overlaps(&part(1)) && !part(1).overlaps(&part(2)));
        assert!(part(1).shares_a_drive_with(&part(2)), "they fail together");
        assert!(!part(1).shares_a_drive_with(&disk));
    }

    #[test]
    fn a_loop_device_overlaps_the_file_behind_it() {
        let of = Node::File(1, 2);
        let looped = |minor, bytes| DeviceId {
            own: Node::Block(7, minor),
            beneath: vec![Part { of: of.clone(), bytes }],
        };
        let file = DeviceId { own: of.clone(), beneath: vec![] };
        assert!(looped(0, 0..9).overlaps(&file) && file.overlaps(&looped(0, 0..9)));
        assert!(looped(0, 0..9).overlaps(&looped(1, 8..9)), "two devices over one part");
        assert!(!looped(0, 0..8).overlaps(&looped(1, 8..9)));
        // What is not known of a device is no reason to refuse another one.
        assert!(!looped(0, 0..0).overlaps(&looped(1, 0..9)));
    }
}
