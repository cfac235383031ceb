//! The store below the modelled drives of twins and replays.
//!
//! All of them share one type of drive. So an engine over the drive is compiled once, and an engine is
//! the largest part of the laboratory.

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, Payload, SectorRange,
};
use voltier_drive::ModelDevice;
use voltier_drive::model::Nowhere;

use crate::zeroes_aside::ZeroesAside;

/// A modelled drive that an engine runs on.
pub(crate) type Drive = ModelDevice<ModelStore>;

/// The bytes that a modelled drive keeps: as few as the load needs.
pub(crate) enum ModelStore {
    /// None: for loads whose content nobody looks at.
    Nowhere(Nowhere),
    /// Pages that are not all zeroes.
    ZeroesAside(ZeroesAside),
}

impl ModelStore {
    /// A store of `bytes` bytes that keeps nothing. The blocks have a sector.
    pub(crate) fn nowhere(bytes: u64) -> Self {
        Self::Nowhere(Nowhere::new(bytes))
    }

    /// A store of `bytes` bytes that keeps pages that are not all zeroes. The blocks have 4 KiB.
    pub(crate) fn zeroes_aside(bytes: u64) -> Self {
        Self::ZeroesAside(ZeroesAside::new(bytes))
    }
}

impl BlockDevice for ModelStore {
    fn limits(&self) -> &Limits {
        match self {
            Self::Nowhere(store) => store.limits(),
            Self::ZeroesAside(store) => store.limits(),
        }
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        match self {
            Self::Nowhere(store) => store.read(at, into).await,
            Self::ZeroesAside(store) => store.read(at, into).await,
        }
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        match self {
            Self::Nowhere(store) => store.write(at, data, durability).await,
            Self::ZeroesAside(store) => store.write(at, data, durability).await,
        }
    }

    async fn flush(&self) -> IoResult<()> {
        match self {
            Self::Nowhere(store) => store.flush().await,
            Self::ZeroesAside(store) => store.flush().await,
        }
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        match self {
            Self::Nowhere(store) => store.discard(range).await,
            Self::ZeroesAside(store) => store.discard(range).await,
        }
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        match self {
            Self::Nowhere(store) => store.write_zeroes(range, durability).await,
            Self::ZeroesAside(store) => store.write_zeroes(range, durability).await,
        }
    }
}

impl InMemory for ModelStore {}
