//! The two copies of a superblock on a device.
//!
//! The copies are written one after the other, each durable before the next begins: a power cut tears
//! one at most. The first is the newer one.

use voltier_block::{
    Buf, Bytes, DriveControl, Durability, IoError, IoResult, LabelPart, Lba, MIB, SECTOR_BYTES,
    SectorRange, Unsupported, clear_labels,
};

use crate::canary::{self, Canary};
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
use crate::members::label_reading::{Label, read_label_copies};

/// Sectors at either end of a spare that lose what they held: file systems have their signatures there.
const WIPED_SECTORS: u64 = MIB / SECTOR_BYTES;

/// A superblock that was read.
pub(crate) struct Found {
    pub(crate) superblock: Superblock,
    /// Whether one of the copies was missing, damaged, or older.
    pub(crate) is_one_copy: bool,
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
pub(crate) async fn write_label_copies<D: DriveControl>(
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
pub(crate) async fn read_superblock<D: DriveControl>(
    device: &D,
) -> Result<Option<Found>, DeviceError> {
    let found = read_of_this_size(device).await?;
    Ok(found.map(|(superblock, is_one_copy)| Found { superblock, is_one_copy }))
}

/// The label of a device that has not shrunk since, and whether the other copy was missing, damaged or older.
async fn read_of_this_size<D: DriveControl, L: Label>(
    device: &D,
) -> Result<Option<(L, bool)>, DeviceError> {
    let found = read_label_copies::<L>(device).await?;
    if let Some((label, _)) = &found {
        let (had, has) = (label.device_sectors(), device.limits().sectors);
        if had > has {
            return Err(DeviceError::Truncated { had, has });
        }
    }
    Ok(found)
}

/// Makes both copies say this.
pub(crate) async fn write_superblock<D: DriveControl>(
    device: &D,
    superblock: &Superblock,
) -> IoResult<()> {
    write_label_copies(device, |copy| superblock.encode(copy)).await
}

/// Tells a device whose place another one has that it is out, beside what its label says. By the
/// old label nobody would be missing: a start with members lost since would take the device as it was.
pub(crate) async fn evict<D: DriveControl>(device: &D, mut said: Superblock) {
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
pub(crate) async fn read_label<D: DriveControl>(
    device: &D,
) -> Result<Option<(JournalLabel, bool)>, DeviceError> {
    read_of_this_size(device).await
}

/// Makes both copies say this.
pub(crate) async fn write_label<D: DriveControl>(device: &D, label: &JournalLabel) -> IoResult<()> {
    write_label_copies(device, |copy| label.encode(copy)).await
}

/// The label of a spare; none unless both copies are whole, and of a device of this size. Otherwise something
/// else that was made of the device wrote over one of the copies. Two whole ones that differ are a spare
/// that changed hands when the program died: the first is the newer one.
///
/// # Errors
/// When the label is of a format that is unknown, or damaged, or the device cannot be read.
pub async fn read_spare_label<D: DriveControl>(
    device: &D,
) -> Result<Option<SpareLabel>, DeviceError> {
    let found = match read_label_copies::<SpareLabel>(device).await {
        Err(DeviceError::Disagree { .. }) => None,
        found => found?,
    };
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
pub async fn write_spare_label<D: DriveControl>(
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
    // A spare that changes hands is one all the time.
    clear_labels(device, Some(LabelPart::Spare)).await?;
    let label = SpareLabel { device_sectors: sectors, ..label };
    write_label_copies(device, |copy| label.encode(copy)).await
}

/// Makes a plain device of a member, a journal or a spare: overwrites both copies of its superblock or label,
/// durably, and what a cache has left. The last copy goes first: a device whose wipe was interrupted still has
/// the copy that speaks for it. By the last one alone it would be refused, and the array with it.
///
/// # Errors
/// When the device does not take the writes.
pub async fn wipe_superblocks<D: DriveControl>(device: &D) -> IoResult<()> {
    for at in MemberLayout::superblock_lbas(device.limits().sectors).into_iter().rev() {
        let zeroes = Bytes::copy_of(&[0; BLOCK_BYTES]);
        device.write(at, zeroes.into(), Durability::Durable).await?;
    }
    clear_labels(device, None).await
}

/// Makes room for the label of a member, durably, before anything else is written to its device. The label of a
/// spare stays: the superblock replaces it, so the spare is known all the time.
///
/// # Errors
/// When the device does not take the writes.
pub(crate) async fn clear_for_member<D: DriveControl>(device: &D) -> IoResult<()> {
    if canary::is(Canary::OldLabelsKept) {
        return Ok(());
    }
    clear_labels(device, Some(LabelPart::Spare)).await
}
