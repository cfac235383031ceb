//! What a door asks of a device, cut to the lengths the device takes.

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Payload, SECTOR_BYTES, SectorRange,
};

/// Bytes of zeroes shared by every piece of a zero-filling write: few pieces, little memory.
const ZERO_BYTES: usize = 256 << 10;

/// Longest single zero-filling write, in bytes: bounds what one client's request occupies below.
const ZERO_WRITE_BYTES_MAX: u64 = 4 << 20;

/// Longest transfer of the device in bytes, as a multiple of its blocks.
fn transfer_bytes(device: &impl BlockDevice) -> usize {
    let limits = device.limits();
    let blocks = (limits.max_transfer_bytes / limits.block_bytes).max(1);
    blocks as usize * limits.block_bytes as usize
}

fn sectors(bytes: usize) -> u64 {
    bytes as u64 / SECTOR_BYTES
}

/// Reads a run of any length.
pub(crate) async fn read(device: &impl BlockDevice, at: Lba, into: Buf) -> IoResult<Buf> {
    let most = transfer_bytes(device);
    if into.len() <= most {
        return device.read(at, into).await;
    }
    let (mut rest, mut at) = (into, at);
    let mut parts = Vec::with_capacity(rest.len().div_ceil(most));
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(most));
        let next = at.plus(sectors(piece.len()));
        // A device may answer in a buffer of its own.
        parts.push(device.read(at, piece).await?);
        at = next;
    }
    Ok(Buf::put_together(parts))
}

/// Writes a run of any length.
pub(crate) async fn write(
    device: &impl BlockDevice,
    at: Lba,
    data: Bytes,
    durability: Durability,
) -> IoResult<()> {
    let most = transfer_bytes(device);
    if data.len() <= most {
        return device.write(at, data.into(), durability).await;
    }
    for start in (0..data.len()).step_by(most) {
        let piece = data.slice(start..data.len().min(start + most));
        device.write(at.plus(sectors(start)), piece.into(), durability).await?;
    }
    Ok(())
}

/// Makes a range read as zeroes; with `keep_space` by writing them.
pub(crate) async fn write_zeroes(
    device: &impl BlockDevice,
    range: SectorRange,
    durability: Durability,
    keep_space: bool,
) -> IoResult<()> {
    if !keep_space {
        let result = device.write_zeroes(range, durability).await;
        if result != Err(IoError::Unsupported) {
            return result;
        }
    }
    let zeroes = Buf::zeroed(ZERO_BYTES).freeze();
    let most = ZERO_WRITE_BYTES_MAX.min(transfer_bytes(device) as u64);
    let mut at = range.start;
    while at < range.end() {
        let piece = (range.end().0 - at.0).min(most / SECTOR_BYTES);
        let data = zero_payload(&zeroes, (piece * SECTOR_BYTES) as usize);
        device.write(at, data, durability).await?;
        at = at.plus(piece);
    }
    Ok(())
}

fn zero_payload(zeroes: &Bytes, bytes: usize) -> Payload {
    let pieces = (0..bytes).step_by(zeroes.len());
    Payload::Many(pieces.map(|start| zeroes.slice(0..(bytes - start).min(zeroes.len()))).collect())
}
