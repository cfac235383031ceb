//! The closed set of drives that a volume may stand on. These matches are their table of contents.

use std::path::PathBuf;

use voltier_array::Array;
use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Limits, Nanos, Payload,
    SECTOR_BYTES, SectorRange, UnderWay,
};
use voltier_drive::model::Profile;
use voltier_drive::{
    AlignDevice, FileDevice, FileOptions, MemoryDevice, ModelDevice, OpenFile, OverlayDevice,
};
use voltier_ring::Handle;

/// The make of a leaf: the resolved form of a device name on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveSpec {
    /// A regular file or a raw block device.
    File {
        /// Path of the file.
        path: PathBuf,
    },
    /// The same, only to be read.
    ReadOnlyFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// Memory of this process; gone when it ends.
    Memory {
        /// Size, in bytes.
        bytes: u64,
    },
    /// A modelled drive whose data is in memory.
    Model {
        /// Name of the profile.
        profile: String,
        /// Size, in bytes; the profile's own by default.
        bytes: Option<u64>,
    },
    /// The timing of a modelled drive over a file.
    ModelOverFile {
        /// Name of the profile.
        profile: String,
        /// Path of the file with the data.
        path: PathBuf,
    },
}

/// Why a drive cannot be opened: one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The file or device does not open.
    #[error(transparent)]
    Open(#[from] voltier_drive::OpenError),
    /// No such modelled drive.
    #[error(transparent)]
    Profile(#[from] voltier_drive::model::UnknownProfile),
}

/// A leaf in use: what the members of arrays are, and most drives.
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
    /// A file or device that is only read, with what was written to it in memory.
    Overlay(Box<OverlayDevice<FileDevice>>),
}

/// A drive in use. A cache deals with 4096-byte blocks itself; clients of an origin may send any
/// 512-byte request.
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

/// A leaf that is open, and of no core yet: a thread apart may have opened it.
pub enum OpenLeaf {
    /// Memory, of as many bytes.
    Memory(u64),
    /// A file or device.
    File(OpenFile),
    /// A modelled drive in memory of as many bytes.
    Model(&'static Profile, u64),
    /// A modelled drive over a file.
    ModelOverFile(&'static Profile, OpenFile),
}

impl OpenLeaf {
    /// Opens a leaf. Opening a broken drive may take for ever.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn open(spec: &DriveSpec) -> Result<Self, DriveError> {
        let open = |path| OpenFile::open(path, &FileOptions::default());
        let read_only = FileOptions { read_only: true, ..FileOptions::default() };
        Ok(match spec {
            DriveSpec::Memory { bytes } => Self::Memory(*bytes),
            DriveSpec::File { path } => Self::File(open(path)?),
            DriveSpec::ReadOnlyFile { path } => Self::File(OpenFile::open(path, &read_only)?),
            DriveSpec::Model { profile, bytes } => {
                let profile = Profile::find(profile)?;
                Self::Model(profile, bytes.unwrap_or(profile.bytes))
            }
            DriveSpec::ModelOverFile { profile, path } => {
                Self::ModelOverFile(Profile::find(profile)?, open(path)?)
            }
        })
    }
}

impl Leaf {
    /// Opens a leaf with its own blocks.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn open(handle: &Handle, spec: &DriveSpec) -> Result<Self, DriveError> {
        Ok(Self::of(handle, OpenLeaf::open(spec)?))
    }

    /// The leaf of a core, of what is open.
    pub fn of(handle: &Handle, open: OpenLeaf) -> Self {
        match open {
            OpenLeaf::Memory(bytes) => Leaf::Memory(MemoryDevice::new(bytes)),
            OpenLeaf::File(file) => Leaf::File(FileDevice::of(handle, file)),
            OpenLeaf::Model(profile, bytes) => {
                let store = MemoryDevice::new(bytes);
                Leaf::Model(Box::new(ModelDevice::new(handle.clone(), profile, store)))
            }
            OpenLeaf::ModelOverFile(profile, file) => {
                let store = FileDevice::of(handle, file);
                Leaf::ModelOverFile(Box::new(ModelDevice::new(handle.clone(), profile, store)))
            }
        }
    }
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

delegate!(Leaf: Memory, File, Model, ModelOverFile, AlignedFile, AlignedModel, Overlay);
delegate!(Drive: Leaf, AlignedLeaf, Array, AlignedArray);
