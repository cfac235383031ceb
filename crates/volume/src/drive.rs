//! The closed set of drives that a volume may stand on. This match is their table of contents.

use std::path::PathBuf;

use voltier_block::{BlockDevice, Buf, Durability, IoResult, Lba, Limits, Payload, SectorRange};
use voltier_drive::filter::AlignDevice;
use voltier_drive::model::Profile;
use voltier_drive::{FileDevice, FileOptions, MemoryDevice, ModelDevice};
use voltier_ring::Handle;

/// What a drive is made of: the resolved form of a device name on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveSpec {
    /// A regular file or a raw block device.
    File {
        /// Its path.
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

/// A drive in use.
pub enum Drive {
    /// Memory.
    Memory(MemoryDevice),
    /// A file or device with 512-byte blocks.
    File(FileDevice),
    /// A file or device with larger blocks, made to serve 512-byte requests.
    AlignedFile(AlignDevice<FileDevice>),
    /// A modelled drive in memory.
    Model(Box<ModelDevice<MemoryDevice>>),
    /// A modelled drive over a file.
    ModelOverFile(Box<ModelDevice<FileDevice>>),
}

/// Who will use the drive: a cache deals with 4096-byte blocks itself, clients of an origin may
/// send any 512-byte request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Ssd,
    Origin,
}

impl Drive {
    /// Opens a drive that a volume's clients reach.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn open_origin(handle: &Handle, spec: &DriveSpec) -> Result<Self, DriveError> {
        Self::open(handle, spec, Role::Origin)
    }

    /// Opens a drive for a cache.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn open_ssd(handle: &Handle, spec: &DriveSpec) -> Result<Self, DriveError> {
        Self::open(handle, spec, Role::Ssd)
    }

    fn open(handle: &Handle, spec: &DriveSpec, role: Role) -> Result<Self, DriveError> {
        Ok(match spec {
            DriveSpec::Memory { bytes } => Drive::Memory(MemoryDevice::new(*bytes)),
            DriveSpec::File { path } => {
                let file = FileDevice::open(handle, path, &FileOptions::default())?;
                if role == Role::Origin && file.limits().block_bytes > 512 {
                    Drive::AlignedFile(AlignDevice::new(file))
                } else {
                    Drive::File(file)
                }
            }
            DriveSpec::Model { profile, bytes } => {
                let profile = Profile::find(profile)?;
                let store = MemoryDevice::new(bytes.unwrap_or(profile.bytes));
                Drive::Model(Box::new(ModelDevice::new(handle.clone(), profile, store)))
            }
            DriveSpec::ModelOverFile { profile, path } => {
                let profile = Profile::find(profile)?;
                let store = FileDevice::open(handle, path, &FileOptions::default())?;
                Drive::ModelOverFile(Box::new(ModelDevice::new(handle.clone(), profile, store)))
            }
        })
    }
}

/// Calls the same method of whichever drive it is.
macro_rules! each_drive {
    ($self:ident, $drive:ident => $call:expr) => {
        match $self {
            Drive::Memory($drive) => $call,
            Drive::File($drive) => $call,
            Drive::AlignedFile($drive) => $call,
            Drive::Model($drive) => $call,
            Drive::ModelOverFile($drive) => $call,
        }
    };
}

impl BlockDevice for Drive {
    fn limits(&self) -> &Limits {
        each_drive!(self, drive => drive.limits())
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        each_drive!(self, drive => drive.read(at, into).await)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        each_drive!(self, drive => drive.write(at, data, durability).await)
    }

    async fn flush(&self) -> IoResult<()> {
        each_drive!(self, drive => drive.flush().await)
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        each_drive!(self, drive => drive.discard(range).await)
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        each_drive!(self, drive => drive.write_zeroes(range, durability).await)
    }
}
