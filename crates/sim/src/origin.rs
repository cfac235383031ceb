//! A drive as the product opens it: what clients reach takes 512-byte requests, whatever the blocks.

use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Limits, Nanos, Payload, SectorRange,
    UnderWay,
};
use voltier_drive::{AlignDevice, NbdDevice};

use crate::disk::SimDisk;
use crate::remote::Network;
use crate::world::World;

/// A simulated drive, with what aligns requests in front of it where it needs that.
pub type SimDrive = FittedDevice<SimDisk>;

/// A device as it is, or made to serve 512-byte blocks: which of them is known when it is opened.
pub enum FittedDevice<D> {
    /// The device with its own blocks.
    Plain(D),
    /// With 512-byte blocks over its larger ones.
    Aligned(Box<AlignDevice<D>>),
    /// The drive of the product, over a server before the device.
    Remote(Box<NbdDevice>),
    /// The same with 512-byte blocks over its larger ones.
    AlignedRemote(Box<AlignDevice<NbdDevice>>),
}

impl SimDrive {
    /// Serves any 512-byte request: behind the network, in a world that has one.
    pub(crate) fn in_world(world: &World, disk: SimDisk) -> Self {
        // An SSD in the place of the origin is no export.
        let network = Network::of(world).filter(|_| !disk.is_ssd());
        let Some(network) = network else { return Self::any_sector(disk) };
        let remote = network.drive(world, &disk);
        if remote.limits().block_bytes > 512 {
            Self::AlignedRemote(Box::new(AlignDevice::new(remote)))
        } else {
            Self::Remote(Box::new(remote))
        }
    }
}

impl<D: DriveControl> FittedDevice<D> {
    /// Serves any 512-byte request.
    pub fn any_sector(device: D) -> Self {
        if device.limits().block_bytes > 512 {
            Self::Aligned(Box::new(AlignDevice::new(device)))
        } else {
            Self::Plain(device)
        }
    }
}

/// Calls the same method of whichever it is.
macro_rules! either {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            FittedDevice::Plain($device) => $call,
            FittedDevice::Aligned($device) => $call,
            FittedDevice::Remote($device) => $call,
            FittedDevice::AlignedRemote($device) => $call,
        }
    };
}

impl<D: BlockDevice> BlockDevice for FittedDevice<D> {
    fn limits(&self) -> &Limits {
        either!(self, device => device.limits())
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        either!(self, device => device.read(at, into).await)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        either!(self, device => device.write(at, data, durability).await)
    }

    async fn flush(&self) -> IoResult<()> {
        either!(self, device => device.flush().await)
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        either!(self, device => device.discard(range).await)
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        either!(self, device => device.write_zeroes(range, durability).await)
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        either!(self, device => device.zero_in_place(range, durability).await)
    }
}

impl<D: DriveControl> DriveControl for FittedDevice<D> {
    fn under_way(&self) -> UnderWay {
        either!(self, device => device.under_way())
    }

    fn abandon(&self) {
        either!(self, device => device.abandon());
    }

    fn forget_failed_flush(&self) {
        either!(self, device => device.forget_failed_flush());
    }

    fn patience_ns(&self) -> Nanos {
        either!(self, device => device.patience_ns())
    }
}
