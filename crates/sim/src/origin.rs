//! A drive as the product opens it: what clients reach takes 512-byte requests, whatever the blocks.

use voltier_block::{BlockDevice, Buf, Durability, IoResult, Lba, Limits, Payload, SectorRange};
use voltier_drive::filter::AlignDevice;

use crate::disk::SimDisk;

/// A simulated drive, with what aligns requests in front of it where it needs that.
pub enum SimDrive {
    /// As it is.
    Plain(SimDisk),
    /// With larger blocks than 512 bytes.
    Aligned(AlignDevice<SimDisk>),
}

impl SimDrive {
    /// As the product opens an origin.
    pub fn origin(disk: SimDisk) -> Self {
        if disk.limits().block_bytes > 512 {
            Self::Aligned(AlignDevice::new(disk))
        } else {
            Self::Plain(disk)
        }
    }
}

/// Calls the same method of whichever drive it is.
macro_rules! each_drive {
    ($self:ident, $drive:ident => $call:expr) => {
        match $self {
            SimDrive::Plain($drive) => $call,
            SimDrive::Aligned($drive) => $call,
        }
    };
}

impl BlockDevice for SimDrive {
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
