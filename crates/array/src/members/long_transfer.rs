//! Transfers of any length: a device takes parts of a long one. The longest request of members.

use voltier_block::{Buf, DriveControl, Durability, IoResult, Lba, Payload, SECTOR_BYTES};

use crate::format::journal_record::BLOCK_BYTES;
use crate::members::member::Member;

/// Longest request of a member that is put together, in sectors: 1 MiB, as a drive takes it in one go.
const RUN_SECTORS_MAX: u64 = 2048;

/// The longest request that is put together for any of some members, in sectors.
pub(crate) fn longest_run<D: DriveControl>(members: &[Member<D>]) -> u64 {
    let devices = members.iter().filter_map(|member| member.device().ok());
    let transfers =
        devices.map(|device| u64::from(device.limits().max_transfer_bytes) / SECTOR_BYTES);
    transfers.fold(RUN_SECTORS_MAX, u64::min)
}

/// A durable write of any length: more than the device takes at once goes in parts, at once.
pub(crate) async fn write_long<D: DriveControl>(
    device: &D,
    at: Lba,
    payload: Payload,
    durability: Durability,
) -> IoResult<()> {
    let longest = longest_transfer(device);
    if payload.len() <= longest {
        return device.write(at, payload, durability).await;
    }
    let whole = payload.into_bytes();
    for start in (0..whole.len()).step_by(longest) {
        let part = whole.slice(start..(start + longest).min(whole.len()));
        let at = at.plus(start as u64 / SECTOR_BYTES);
        device.write(at, Payload::One(part), durability).await?;
    }
    Ok(())
}

/// A read of any length.
pub(crate) async fn read_long<D: DriveControl>(device: &D, at: Lba, bytes: usize) -> IoResult<Buf> {
    let longest = longest_transfer(device);
    if bytes <= longest {
        return device.read(at, Buf::new(bytes)).await;
    }
    let mut whole = Buf::new(bytes);
    for part in whole.chunks_mut(longest).enumerate() {
        let (index, part) = part;
        let at = at.plus((index * longest) as u64 / SECTOR_BYTES);
        part.copy_from_slice(&device.read(at, Buf::new(part.len())).await?);
    }
    Ok(whole)
}

fn longest_transfer<D: DriveControl>(device: &D) -> usize {
    let most = device.limits().max_transfer_bytes as usize;
    (most / BLOCK_BYTES * BLOCK_BYTES).max(BLOCK_BYTES)
}
