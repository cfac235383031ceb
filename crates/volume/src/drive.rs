//! The closed set of drives that a volume may stand on. These matches are their table of contents.

use std::cell::Cell;
use std::rc::Rc;

use voltier_array::Array;
use voltier_block::{
    Asked, BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Limits, Meter, MeterCounts,
    Nanos, Payload, SECTOR_BYTES, SectorRange, UnderWay,
};
use voltier_drive::{
    AlignDevice, FileDevice, MemoryDevice, ModelDevice, NbdDevice, OverlayDevice, RbdDevice,
};
use voltier_ring::Handle;

/// A leaf in use: what the members of arrays are, and most drives. Its requests are counted.
pub struct Leaf {
    kind: LeafKind,
    meter: Rc<Meter>,
}

/// The kinds of leaves.
#[expect(clippy::large_enum_variant, reason = "the usual kind is reached without an indirection")]
pub enum LeafKind {
    /// Memory.
    Memory(MemoryDevice),
    /// A file or device.
    File(FileDevice),
    /// A modelled drive in memory.
    Model(Box<ModelDevice<MemoryDevice>>),
    /// A modelled drive over a file.
    ModelOverFile(Box<ModelDevice<FileDevice>>),
    /// A file or device of larger blocks, made to serve sectors.
    AlignedFile(Box<AlignDevice<FileDevice>>),
    /// A modelled drive over one of larger blocks, made to serve sectors.
    AlignedModel(Box<AlignDevice<ModelDevice<FileDevice>>>),
    /// An export of a server.
    Nbd(Box<NbdDevice>),
    /// One of larger blocks, made to serve sectors.
    AlignedNbd(Box<AlignDevice<NbdDevice>>),
    /// A Ceph RBD image.
    Rbd(Box<RbdDevice>),
    /// A file or device that is only read, with what was written to it in memory.
    Overlay(Box<OverlayDevice<FileDevice>>),
}

/// A drive in use. A cache deals with 4096-byte blocks itself; clients of an origin may send any
/// 512-byte request.
#[expect(clippy::large_enum_variant, reason = "the usual kind is reached without an indirection")]
pub enum Drive {
    /// A leaf with its own blocks.
    Leaf(Leaf),
    /// A leaf of larger blocks, made to serve sectors.
    AlignedLeaf(Box<AlignDevice<Leaf>>),
    /// An array, which others on this core may hold as well.
    Array(Array<Leaf>),
    /// An array of leaves with larger blocks, made to serve sectors.
    AlignedArray(Box<AlignDevice<Array<Leaf>>>),
}

impl Leaf {
    /// A leaf that was asked for nothing yet.
    pub fn new(handle: &Handle, kind: LeafKind) -> Self {
        Self { kind, meter: Rc::new(Meter::new(handle.clock())) }
    }

    /// Its requests, with the time they take. Whoever holds this sees those that come.
    pub fn meter(&self) -> Rc<Meter> {
        self.meter.clone()
    }

    /// The leaf for a user who may send blocks of so many bytes. One with larger blocks is made to serve
    /// sectors: it reads what a request leaves of a block before it writes the block.
    #[must_use]
    pub fn for_blocks_of(self, block_bytes: u32) -> Self {
        if self.limits().block_bytes <= block_bytes {
            return self;
        }
        let kind = match self.kind {
            LeafKind::File(file) => LeafKind::AlignedFile(Box::new(AlignDevice::new(file))),
            LeafKind::ModelOverFile(model) => {
                LeafKind::AlignedModel(Box::new(AlignDevice::new(*model)))
            }
            LeafKind::Nbd(export) => LeafKind::AlignedNbd(Box::new(AlignDevice::new(*export))),
            kind => kind,
        };
        Self { kind, ..self }
    }

    /// The leaf for a user who writes, and changes nothing of a file or device: it is only read, and what is
    /// written stays in memory.
    #[must_use]
    pub fn with_writes_in_memory(self) -> Self {
        let kind = match self.kind {
            LeafKind::File(file) => LeafKind::Overlay(Box::new(OverlayDevice::new(file))),
            kind => kind,
        };
        Self { kind, ..self }
    }

    /// Bytes at the end of a file that are not used, because they do not fill a block.
    fn unused_tail_bytes(&self) -> u64 {
        let file = match &self.kind {
            LeafKind::File(file) => Some(file),
            LeafKind::ModelOverFile(model) => Some(model.store()),
            LeafKind::AlignedFile(aligned) => Some(aligned.below()),
            LeafKind::AlignedModel(aligned) => Some(aligned.below().store()),
            LeafKind::Overlay(overlay) => Some(overlay.below()),
            LeafKind::Nbd(export) => return export.unused_tail_bytes(),
            LeafKind::AlignedNbd(aligned) => return aligned.below().unused_tail_bytes(),
            LeafKind::Rbd(image) => return image.unused_tail_bytes(),
            LeafKind::Memory(_) | LeafKind::Model(_) => None,
        };
        file.and_then(FileDevice::facts).map_or(0, |facts| facts.unused_tail_bytes)
    }
}

impl Drive {
    /// Bytes at the end of a file that are not used, because they do not fill a block.
    pub fn unused_tail_bytes(&self) -> u64 {
        match self {
            Drive::Leaf(leaf) => leaf.unused_tail_bytes(),
            Drive::AlignedLeaf(aligned) => aligned.below().unused_tail_bytes(),
            Drive::Array(_) | Drive::AlignedArray(_) => 0,
        }
    }

    /// How a drive that others can take away was lost, in words, if it is.
    pub fn loss(&self) -> Option<String> {
        self.image().and_then(RbdDevice::loss)
    }

    /// What becomes true when another host takes the drive away, if one can.
    pub fn is_taken_away(&self) -> Option<Rc<Cell<bool>>> {
        self.image().map(RbdDevice::lock_is_lost)
    }

    /// An array loses a member that is an image, and lives on.
    fn image(&self) -> Option<&RbdDevice> {
        match self {
            Drive::Leaf(Leaf { kind: LeafKind::Rbd(image), .. }) => Some(image),
            _ => None,
        }
    }

    /// Its requests so far, with the time they took.
    pub fn meter(&self) -> MeterCounts {
        match self {
            Drive::Leaf(leaf) => leaf.meter.counts(),
            Drive::AlignedLeaf(aligned) => aligned.below().meter.counts(),
            Drive::Array(array) => array.meter(),
            Drive::AlignedArray(aligned) => aligned.below().meter(),
        }
    }

    /// Bytes of a block of the drive itself, whatever smaller ones are served over it.
    pub fn own_block_bytes(&self) -> u32 {
        match self {
            Drive::AlignedLeaf(aligned) => aligned.below().limits().block_bytes,
            Drive::AlignedArray(aligned) => aligned.below().limits().block_bytes,
            Drive::Leaf(_) | Drive::Array(_) => self.limits().block_bytes,
        }
    }

    /// A leaf that a volume's clients reach.
    pub fn origin(leaf: Leaf) -> Self {
        if serves_sectors(&leaf) {
            Drive::Leaf(leaf)
        } else {
            Drive::AlignedLeaf(Box::new(AlignDevice::new(leaf)))
        }
    }

    /// A leaf for a cache.
    pub fn ssd(leaf: Leaf) -> Self {
        Drive::Leaf(leaf)
    }

    /// An array that a volume's clients reach.
    pub fn origin_array(array: Array<Leaf>) -> Self {
        if serves_sectors(&array) {
            Drive::Array(array)
        } else {
            Drive::AlignedArray(Box::new(AlignDevice::new(array)))
        }
    }

    /// An array for a cache.
    pub fn ssd_array(array: Array<Leaf>) -> Self {
        Drive::Array(array)
    }
}

/// Whether a device takes any request of whole sectors.
fn serves_sectors(device: &impl BlockDevice) -> bool {
    u64::from(device.limits().block_bytes) <= SECTOR_BYTES
}

/// Implements [`BlockDevice`] and [`DriveControl`] by calling the same method of whichever variant it is.
macro_rules! delegate {
    ($kind:ident: $($variant:ident),+) => {
        impl BlockDevice for $kind {
            fn limits(&self) -> &Limits {
                match self {
                    $($kind::$variant(drive) => drive.limits(),)+
                }
            }

            async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
                match self {
                    $($kind::$variant(drive) => drive.read(at, into).await,)+
                }
            }

            async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
                match self {
                    $($kind::$variant(drive) => drive.read_vectored(at, into).await,)+
                }
            }

            async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
                match self {
                    $($kind::$variant(drive) => drive.write(at, data, durability).await,)+
                }
            }

            async fn flush(&self) -> IoResult<()> {
                match self {
                    $($kind::$variant(drive) => drive.flush().await,)+
                }
            }

            async fn discard(&self, range: SectorRange) -> IoResult<()> {
                match self {
                    $($kind::$variant(drive) => drive.discard(range).await,)+
                }
            }

            async fn write_zeroes(
                &self,
                range: SectorRange,
                durability: Durability,
            ) -> IoResult<()> {
                match self {
                    $($kind::$variant(drive) => drive.write_zeroes(range, durability).await,)+
                }
            }

            async fn zero_in_place(
                &self,
                range: SectorRange,
                durability: Durability,
            ) -> IoResult<()> {
                match self {
                    $($kind::$variant(drive) => drive.zero_in_place(range, durability).await,)+
                }
            }
        }

        impl DriveControl for $kind {
            fn under_way(&self) -> UnderWay {
                match self {
                    $($kind::$variant(drive) => drive.under_way(),)+
                }
            }

            fn abandon(&self) {
                match self {
                    $($kind::$variant(drive) => drive.abandon(),)+
                }
            }

            fn forget_failed_flush(&self) {
                match self {
                    $($kind::$variant(drive) => drive.forget_failed_flush(),)+
                }
            }

            fn patience_ns(&self) -> Nanos {
                match self {
                    $($kind::$variant(drive) => drive.patience_ns(),)+
                }
            }
        }
    };
}

delegate!(LeafKind: Memory, File, Model, ModelOverFile, AlignedFile, AlignedModel, Nbd, AlignedNbd, Rbd, Overlay);
delegate!(Drive: Leaf, AlignedLeaf, Array, AlignedArray);

impl BlockDevice for Leaf {
    fn limits(&self) -> &Limits {
        self.kind.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let begun = self.meter.begin(Asked::Read, into.len() as u64);
        let done = self.kind.read(at, into).await;
        begun.note(&done);
        done
    }

    async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        let begun = self.meter.begin(Asked::Read, into.iter().map(|part| part.len() as u64).sum());
        let done = self.kind.read_vectored(at, into).await;
        begun.note(&done);
        done
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let begun = self.meter.begin(Asked::Write, data.len() as u64);
        let done = self.kind.write(at, data, durability).await;
        begun.note(&done);
        done
    }

    async fn flush(&self) -> IoResult<()> {
        let begun = self.meter.begin(Asked::Flush, 0);
        let done = self.kind.flush().await;
        begun.note(&done);
        done
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let begun = self.meter.begin(Asked::Discard, range.bytes());
        let done = self.kind.discard(range).await;
        begun.note(&done);
        done
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let begun = self.meter.begin(Asked::Discard, range.bytes());
        let done = self.kind.write_zeroes(range, durability).await;
        begun.note(&done);
        done
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let begun = self.meter.begin(Asked::Discard, range.bytes());
        let done = self.kind.zero_in_place(range, durability).await;
        begun.note(&done);
        done
    }
}

impl DriveControl for Leaf {
    fn under_way(&self) -> UnderWay {
        self.kind.under_way()
    }

    fn abandon(&self) {
        self.kind.abandon();
    }

    fn forget_failed_flush(&self) {
        self.kind.forget_failed_flush();
    }

    fn patience_ns(&self) -> Nanos {
        self.kind.patience_ns()
    }
}
