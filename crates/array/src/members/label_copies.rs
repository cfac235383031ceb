//! The two copies of a superblock on a device.
//!
//! The copies are written one after the other, each durable before the next begins: a power cut tears
//! one at most. The first is the newer one.

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, MIB, SECTOR_BYTES, SectorRange,
    Unsupported,
};

use crate::errors::metadata::DeviceError;
use crate::format::checksum::{Rejected, check_head};
use crate::format::journal_label::{JOURNAL_FORMAT, JOURNAL_MAGIC, JournalLabel};
use crate::format::journal_record::BLOCK_BYTES;
use crate::format::member_layout::{MemberLayout, SUPERBLOCK_BYTES};
use crate::format::spare_label::{SPARE_FORMAT, SPARE_MAGIC, SpareLabel};
use crate::format::superblock::{
    MemberRecord, MemberState, SUPERBLOCK_FORMAT, SUPERBLOCK_MAGIC, Superblock,
};
use crate::members::clear::{Clear, clear_device};

/// Sectors at either end of a spare that lose what they held: file systems have their signatures there.
const WIPED_SECTORS: u64 = MIB / SECTOR_BYTES;

/// A superblock that was read.
pub(crate) struct Found {
    pub(crate) superblock: Superblock,
    /// Whether one of the copies was missing, damaged, or older.
    pub(crate) is_one_copy: bool,
}

/// The content of two copies on a device, the second if `is_behind` says that the first one is. With the
/// content, whether the copies differ. None if neither begins as a copy. `array_of` tells the array, or the
/// owner, that a copy names.
///
/// # Errors
/// When there are copies, and none that can be believed.
pub(crate) async fn read_label_copies<D: BlockDevice, T: PartialEq>(
    device: &D,
    decode: impl Fn(&[u8], u32) -> Result<T, Rejected>,
    array_of: impl Fn(&T) -> [u8; 16],
    is_behind: impl Fn(&T, &T) -> bool,
) -> Result<Option<(T, bool)>, DeviceError> {
    if device.limits().bytes() < 2 * SUPERBLOCK_BYTES {
        return Ok(None);
    }
    let mut copies = Vec::new();
    let mut io_error = None;
    let places = MemberLayout::superblock_lbas(device.limits().sectors);
    for (copy, at) in places.into_iter().enumerate() {
        copies.push(match device.read(at, Buf::new(SUPERBLOCK_BYTES as usize)).await {
            Ok(block) => decode(&block, copy as u32),
            Err(error) => {
                io_error.get_or_insert(error);
                Err(Rejected::Absent)
            }
        });
    }
    let second = copies.pop().expect("there are two");
    let first = copies.pop().expect("there are two");
    match (first, second) {
        (Ok(first), Ok(second)) => {
            let is_one_copy = first != second;
            let is_behind = is_behind(&first, &second);
            Ok(Some((if is_behind { second } else { first }, is_one_copy)))
        }
        // Behind the end of one array another one's copy may stand: the first is the truth then.
        (Ok(first), Err(Rejected::Unsupported { array, .. })) if array != array_of(&first) => {
            Ok(Some((first, true)))
        }
        // One copy does not make up for the other: the program that wrote it may have been stopped between them.
        (Err(Rejected::Unsupported { array, why }), _)
        | (_, Err(Rejected::Unsupported { array, why })) => {
            Err(DeviceError::Unsupported { array, why })
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(Some((one, true))),
        (Err(Rejected::Absent), Err(Rejected::Absent)) => {
            io_error.map_or(Ok(None), |error| Err(DeviceError::Io(error)))
        }
        (Err(_), Err(_)) => Err(DeviceError::Damaged),
    }
}

/// The version or features for which this program cannot read a superblock or label, if it is whole and
/// has such.
pub fn unsupported_label(block: &[u8]) -> Option<Unsupported> {
    let formats = [
        (SUPERBLOCK_MAGIC, SUPERBLOCK_FORMAT),
        (JOURNAL_MAGIC, JOURNAL_FORMAT),
        (SPARE_MAGIC, SPARE_FORMAT),
    ];
    formats.iter().find_map(|(magic, format)| match check_head(block, *magic, format) {
        Err(Rejected::Unsupported { why, .. }) => Some(why),
        _ => None,
    })
}

/// Writes two copies, each durable before the next begins.
pub(crate) async fn write_label_copies<D: BlockDevice>(
    device: &D,
    encode: impl Fn(u32) -> [u8; SUPERBLOCK_BYTES as usize],
) -> IoResult<()> {
    let places = MemberLayout::superblock_lbas(device.limits().sectors);
    for (copy, at) in places.into_iter().enumerate() {
        let block = Bytes::copy_of(&encode(copy as u32));
        device.write(at, block.into(), Durability::Durable).await?;
    }
    Ok(())
}

/// The superblock of a device, held against its size; none if nothing says it is a member.
///
/// # Errors
/// When the device is or was a member, and cannot be used.
pub(crate) async fn read_superblock<D: BlockDevice>(
    device: &D,
) -> Result<Option<Found>, DeviceError> {
    // Behind the end of one array another one's copy may stand: the first is the truth then.
    let is_behind = |first: &Superblock, second: &Superblock| {
        let is_same = first.array.uuid == second.array.uuid && first.member == second.member;
        is_same && second.array.event > first.array.event
    };
    let found =
        read_label_copies(device, Superblock::decode, |it| it.array.uuid, is_behind).await?;
    let Some((superblock, is_one_copy)) = found else { return Ok(None) };
    let (had, has) = (superblock.device_sectors, device.limits().sectors);
    if had > has {
        return Err(DeviceError::Truncated { had, has });
    }
    if is_one_copy && is_of_a_partition(device, had, Superblock::decode).await {
        return Ok(None);
    }
    Ok(Some(Found { superblock, is_one_copy }))
}

/// Makes both copies say this.
pub(crate) async fn write_superblock<D: BlockDevice>(
    device: &D,
    superblock: &Superblock,
) -> IoResult<()> {
    write_label_copies(device, |copy| superblock.encode(copy)).await
}

/// Tells a device whose place another one has that it is out, beside what its label says. By the
/// old label nobody would be missing: a start with members lost since would take the device as it was.
pub(crate) async fn evict<D: BlockDevice>(device: &D, mut said: Superblock) {
    let since_event = said.array.event;
    let own = &mut said.array[said.member];
    *own = MemberRecord { uuid: own.uuid, state: MemberState::Lost, since_event };
    // A device that refuses the write is no good: nothing depends on such a device.
    let _ = write_superblock(device, &said).await;
}

/// The label of a device, held against its size; none if nothing says that it is a journal. The
/// second value says whether one of the copies was missing, damaged, or older.
///
/// # Errors
/// When the device is or was a journal device, and cannot be used.
pub(crate) async fn read_label<D: BlockDevice>(
    device: &D,
) -> Result<Option<(JournalLabel, bool)>, DeviceError> {
    let is_behind = |first: &JournalLabel, second: &JournalLabel| {
        first.uuid == second.uuid && second.event > first.event
    };
    let found = read_label_copies(device, JournalLabel::decode, |it| it.array, is_behind).await?;
    let (had, has) = match &found {
        Some((label, _)) => (label.device_sectors, device.limits().sectors),
        None => return Ok(None),
    };
    if had > has {
        return Err(DeviceError::Truncated { had, has });
    }
    let is_one_copy = found.as_ref().is_some_and(|(_, is_one_copy)| *is_one_copy);
    let is_foreign = is_one_copy && is_of_a_partition(device, had, JournalLabel::decode).await;
    Ok(found.filter(|_| !is_foreign))
}

/// Whether the only copy of a label is that of a partition which ends where its disk does. The label tells a
/// smaller size then, and the disk begins with something else. To write to the disk as to a member would
/// overwrite its partition table.
async fn is_of_a_partition<D: BlockDevice, T>(
    device: &D,
    had: u64,
    decode: impl Fn(&[u8], u32) -> Result<T, Rejected>,
) -> bool {
    if had == device.limits().sectors {
        return false;
    }
    let first = device.read(Lba(0), Buf::new(SUPERBLOCK_BYTES as usize)).await;
    first.is_ok_and(|block| matches!(decode(&block, 0), Err(Rejected::Absent)))
}

/// Makes both copies say this.
pub(crate) async fn write_label<D: BlockDevice>(device: &D, label: &JournalLabel) -> IoResult<()> {
    write_label_copies(device, |copy| label.encode(copy)).await
}

/// The label of a spare; none unless both copies are whole, and of a device of this size. Otherwise something
/// else that was made of the device wrote over one of the copies. Two whole ones that differ are a spare
/// that changed hands when the program died: the first is the newer one.
///
/// # Errors
/// When the label is of a format that is unknown, or damaged, or the device cannot be read.
pub async fn read_spare_label<D: BlockDevice>(
    device: &D,
) -> Result<Option<SpareLabel>, DeviceError> {
    let found = read_label_copies(device, SpareLabel::decode, |it| it.owner, |_, _| false).await?;
    let size = device.limits().sectors;
    let Some((label, is_one)) = found.filter(|(label, _)| label.device_sectors == size) else {
        return Ok(None);
    };
    if is_one {
        for (copy, at) in MemberLayout::superblock_lbas(size).into_iter().enumerate() {
            let block = device.read(at, Buf::new(SUPERBLOCK_BYTES as usize)).await;
            let block = block.map_err(DeviceError::Io)?;
            let other = SpareLabel::decode(&block, copy as u32);
            if !other.is_ok_and(|other| other.device_sectors == size) {
                return Ok(None);
            }
        }
    }
    Ok(Some(label))
}

/// Makes a spare of a device; its size comes into the label. `wipe` first clears both ends of the device of
/// what they held: whoever put something there later did so after the consent to overwrite it.
///
/// # Errors
/// `NoSpace` when the device has no room for two copies; else the device's.
pub async fn write_spare_label<D: BlockDevice>(
    device: &D,
    label: SpareLabel,
    wipe: bool,
) -> IoResult<()> {
    let sectors = device.limits().sectors;
    if device.limits().bytes() < 2 * SUPERBLOCK_BYTES {
        return Err(IoError::NoSpace);
    }
    if wipe {
        let count = WIPED_SECTORS.min(sectors);
        for start in [0, sectors - count] {
            let end = SectorRange::new(Lba(start), count);
            clear_device(device, end, Clear::Zeroes(Durability::Durable)).await?;
        }
    }
    let label = SpareLabel { device_sectors: sectors, ..label };
    write_label_copies(device, |copy| label.encode(copy)).await
}

/// Makes a plain device of a member, a journal or a spare: overwrites both copies of its superblock or label,
/// durably.
///
/// # Errors
/// When the device does not take the writes.
pub async fn wipe_superblocks<D: BlockDevice>(device: &D) -> IoResult<()> {
    write_label_copies(device, |_| [0; BLOCK_BYTES]).await
}
