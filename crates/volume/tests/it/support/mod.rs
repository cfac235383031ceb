//! Requests of one line, for tests of volumes over drives with faults.

use voltier_block::{BlockDevice, Buf, Durability, IoResult, Lba};

/// Bytes of a line.
pub(crate) const LINE: u64 = 4096;

/// Fills a line with a byte.
pub(crate) async fn write(device: &impl BlockDevice, line: u64, byte: u8) -> IoResult<()> {
    let mut data = Buf::new(LINE as usize);
    data.fill(byte);
    device.write(Lba::from_bytes(line * LINE), data.into(), Durability::Cached).await
}

/// The first byte of a line.
pub(crate) async fn read(device: &impl BlockDevice, line: u64) -> IoResult<u8> {
    Ok(device.read(Lba::from_bytes(line * LINE), Buf::new(LINE as usize)).await?[0])
}
