//! Discards and zeroes on one device.

use voltier_block::{
    AfterDiscard, DriveControl, Durability, IoError, IoResult, SectorRange, zero_writes,
};

/// Longest write of zeroes to a member that has no command for it.
const ZEROES_BYTES: u64 = 1 << 20;

/// A change of a range of a member that carries no data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clear {
    Discard,
    Zeroes(Durability),
}

impl Clear {
    /// A discard goes into parity as zeroes: a device that came later and does not return them is
    /// written zeroes.
    pub(crate) fn suited<D: DriveControl>(self, device: &D, has_parity: bool) -> Self {
        let returns_zeroes = device.limits().after_discard == AfterDiscard::Zeroes;
        match self {
            Self::Discard if has_parity && !returns_zeroes => Self::Zeroes(Durability::Cached),
            clear => clear,
        }
    }
}

pub(crate) async fn clear_device<D: DriveControl>(
    device: &D,
    range: SectorRange,
    clear: Clear,
) -> IoResult<()> {
    match clear {
        Clear::Discard => device.discard(range).await,
        Clear::Zeroes(durability) => match device.write_zeroes(range, durability).await {
            Err(IoError::Unsupported) => write_zero_data(device, range, durability).await,
            result => result,
        },
    }
}

async fn write_zero_data<D: DriveControl>(
    device: &D,
    range: SectorRange,
    durability: Durability,
) -> IoResult<()> {
    let longest = ZEROES_BYTES.min(u64::from(device.limits().max_transfer_bytes));
    for (part, zeroes) in zero_writes(range, longest) {
        device.write(part.start, zeroes, durability).await?;
    }
    Ok(())
}
