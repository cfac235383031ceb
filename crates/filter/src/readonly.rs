//! Takes no writes.

use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Lba, Limits, Payload, SectorRange,
};

/// The device below, for reading only: every change fails with [`IoError::ReadOnly`].
pub struct ReadOnlyDevice<D> {
    below: D,
    limits: Limits,
}

impl<D: BlockDevice> ReadOnlyDevice<D> {
    /// Closes `below` to writes.
    pub fn new(below: D) -> Self {
        let limits = Limits { read_only: true, ..below.limits().clone() };
        Self { below, limits }
    }
}

impl<D: BlockDevice> BlockDevice for ReadOnlyDevice<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.below.read(at, into).await
    }

    async fn write(&self, _at: Lba, _data: Payload, _durability: Durability) -> IoResult<()> {
        Err(IoError::ReadOnly)
    }

    async fn flush(&self) -> IoResult<()> {
        self.below.flush().await
    }

    async fn discard(&self, _range: SectorRange) -> IoResult<()> {
        Err(IoError::ReadOnly)
    }

    async fn write_zeroes(&self, _range: SectorRange, _durability: Durability) -> IoResult<()> {
        Err(IoError::ReadOnly)
    }
}

voltier_block::pass_control_on!(ReadOnlyDevice.below);
