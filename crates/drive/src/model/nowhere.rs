//! A store below a modelled drive of full size of which only the time is of interest.

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, Payload, SectorRange,
};

/// Keeps nothing, and reads as anything: for loads whose content nobody looks at.
pub struct Nowhere(Limits);

impl Nowhere {
    /// A store of `bytes` bytes, with blocks of a sector.
    pub fn new(bytes: u64) -> Self {
        Self(Limits::plain(bytes))
    }
}

impl BlockDevice for Nowhere {
    fn limits(&self) -> &Limits {
        &self.0
    }

    async fn read(&self, _at: Lba, into: Buf) -> IoResult<Buf> {
        Ok(into)
    }

    async fn write(&self, _at: Lba, _data: Payload, _durability: Durability) -> IoResult<()> {
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, _range: SectorRange) -> IoResult<()> {
        Ok(())
    }

    async fn write_zeroes(&self, _range: SectorRange, _durability: Durability) -> IoResult<()> {
        Ok(())
    }
}

impl InMemory for Nowhere {}
