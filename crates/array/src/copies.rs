//! The two copies of a superblock on a device.
//!
//! They are written one after the other, each durable before the next begins: a power cut tears one
//! at most. The first is the newer one.

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoResult};

use crate::errors::DeviceError;
use crate::member_layout::{MemberLayout, SUPERBLOCK_BYTES};
use crate::superblock::{Rejected, Superblock};

/// A superblock that was read.
pub(crate) struct Found {
    pub(crate) superblock: Superblock,
    /// Whether one of the copies was missing, damaged, or older.
    pub(crate) is_one_copy: bool,
}

/// The superblock of a device, held against its size; none if nothing says it is a member.
///
/// # Errors
/// When it is or was one, and cannot be used.
pub(crate) async fn read_superblock<D: BlockDevice>(
    device: &D,
) -> Result<Option<Found>, DeviceError> {
    let has = device.limits().sectors;
    if device.limits().bytes() < 2 * SUPERBLOCK_BYTES {
        return Ok(None);
    }
    let mut copies = Vec::new();
    let mut io_error = None;
    for (copy, at) in MemberLayout::superblock_lbas(has).into_iter().enumerate() {
        copies.push(match device.read(at, Buf::new(SUPERBLOCK_BYTES as usize)).await {
            Ok(block) => Superblock::decode(&block, copy as u32),
            Err(error) => {
                io_error.get_or_insert(error);
                Err(Rejected::Absent)
            }
        });
    }
    let second = copies.pop().expect("there are two");
    let first = copies.pop().expect("there are two");
    let found = match (first, second) {
        (Ok(first), Ok(second)) => {
            // Behind the end of one array another one's copy may stand: the first is the truth then.
            let is_same = first.array.uuid == second.array.uuid && first.member == second.member;
            let is_one_copy = first != second;
            let is_behind = is_same && second.array.event > first.array.event;
            Found { superblock: if is_behind { second } else { first }, is_one_copy }
        }
        (Err(Rejected::Newer(version)), _) => return Err(DeviceError::Newer(version)),
        (Ok(superblock), Err(_)) | (Err(_), Ok(superblock)) => {
            Found { superblock, is_one_copy: true }
        }
        (Err(_), Err(Rejected::Newer(version))) => return Err(DeviceError::Newer(version)),
        (Err(Rejected::Absent), Err(Rejected::Absent)) => {
            return io_error.map_or(Ok(None), |error| Err(DeviceError::Io(error)));
        }
        (Err(_), Err(_)) => return Err(DeviceError::Damaged),
    };
    let had = found.superblock.device_sectors;
    if had > has { Err(DeviceError::Truncated { had, has }) } else { Ok(Some(found)) }
}

/// Makes both copies say this.
pub(crate) async fn write_superblock<D: BlockDevice>(
    device: &D,
    superblock: &Superblock,
) -> IoResult<()> {
    let sectors = device.limits().sectors;
    for (copy, at) in MemberLayout::superblock_lbas(sectors).into_iter().enumerate() {
        let block = Bytes::copy_of(&superblock.encode(copy as u32));
        device.write(at, block.into(), Durability::Durable).await?;
    }
    Ok(())
}
