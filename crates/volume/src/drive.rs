//! The closed set of drives that a volume may stand on. These matches are their table of contents.

use std::cell::Cell;
use std::rc::Rc;

use voltier_array::Array;
use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Limits, Nanos, Payload,
    SECTOR_BYTES, SectorRange, UnderWay,
};
use voltier_drive::{
    AlignDevice, FileDevice, MemoryDevice, ModelDevice, NbdDevice, OverlayDevice, RbdDevice,
};

/// A leaf in use: what the members of arrays are, and most drives.
#[expect(clippy::large_enum_variant, reason = "the usual kind is reached without an indirection")]
pub enum Leaf {
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
    /// The leaf for a user who may send blocks of so many bytes. One with larger blocks is made to serve
    /// sectors: it reads what a request leaves of a block before it writes the block.
    #[must_use]
    pub fn for_blocks_of(self, block_bytes: u32) -> Self {
        if self.limits().block_bytes <= block_bytes {
            return self;
        }
        match self {
            Leaf::File(file) => Leaf::AlignedFile(Box::new(AlignDevice::new(file))),
            Leaf::ModelOverFile(model) => Leaf::AlignedModel(Box::new(AlignDevice::new(*model))),
            Leaf::Nbd(export) => Leaf::AlignedNbd(Box::new(AlignDevice::new(*export))),
            leaf => leaf,
        }
    }

    /// The leaf for a user who writes, and changes nothing of a file or device: it is only read, and what is
    /// written stays in memory.
    #[must_use]
    pub fn with_writes_in_memory(self) -> Self {
        match self {
            Leaf::File(file) => Leaf::Overlay(Box::new(OverlayDevice::new(file))),
            leaf => leaf,
        }
    }

    /// Bytes at the end of a file that are not used, because they do not fill a block.
    fn unused_tail_bytes(&self) -> u64 {
        let file = match self {
            Leaf::File(file) => Some(file),
            Leaf::ModelOverFile(model) => Some(model.store()),
            Leaf::AlignedFile(aligned) => Some(aligned.below()),
            Leaf::AlignedModel(aligned) => Some(aligned.below().store()),
            Leaf::Overlay(overlay) => Some(overlay.below()),
            Leaf::Nbd(export) => return export.unused_tail_bytes(),
            Leaf::AlignedNbd(aligned) => return aligned.below().unused_tail_bytes(),
            Leaf::Rbd(image) => return image.unused_tail_bytes(),
            Leaf::Memory(_) | Leaf::Model(_) => None,
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
            Drive::Leaf(Leaf::Rbd(image)) => Some(image),
            _ => None,
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

delegate!(Leaf: Memory, File, Model, ModelOverFile, AlignedFile, AlignedModel, Nbd, AlignedNbd, Rbd, Overlay);
delegate!(Drive: Leaf, AlignedLeaf, Array, AlignedArray);
