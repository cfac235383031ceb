//! The check that every device makes before it does anything.

use voltier_block::{IoError, IoResult, Lba, Limits, Payload, SECTOR_BYTES, SectorRange};

/// The range of a transfer of `bytes` bytes, if the device serves it.
pub(crate) fn transfer_range(limits: &Limits, at: Lba, bytes: usize) -> IoResult<SectorRange> {
    let bytes = bytes as u64;
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(IoError::OutOfRange);
    }
    let range = SectorRange::new(at, bytes / SECTOR_BYTES);
    accepted(limits, range)
}

/// The range, if the device serves it.
pub(crate) fn accepted(limits: &Limits, range: SectorRange) -> IoResult<SectorRange> {
    if limits.accepts(range) { Ok(range) } else { Err(IoError::OutOfRange) }
}

/// The range of a write, if the device takes writes and serves it.
pub(crate) fn write_range(limits: &Limits, at: Lba, data: &Payload) -> IoResult<SectorRange> {
    if limits.read_only {
        return Err(IoError::ReadOnly);
    }
    transfer_range(limits, at, data.len())
}

/// The range of a change without data, if the device takes writes and serves it.
pub(crate) fn writable(limits: &Limits, range: SectorRange) -> IoResult<SectorRange> {
    if limits.read_only {
        return Err(IoError::ReadOnly);
    }
    accepted(limits, range)
}
