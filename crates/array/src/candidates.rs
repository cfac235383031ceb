//! Devices that are given to an assembly: their superblocks and labels, their maps, and whether they flush.

use std::collections::BTreeMap;

use voltier_block::{Buf, DriveControl, Lba, Nanos};
use voltier_ring::{Handle, join_all};

use crate::canary::{self, Canary};
use crate::errors::metadata::{DeviceError, MetadataError};
use crate::format::journal_label::JournalLabel;
use crate::format::member_layout::MAP_START_BYTES;
use crate::format::region_map::{MAP_BLOCK_BYTES, RegionMap};
use crate::format::superblock::Superblock;
use crate::geometry::numbers::MemberIndex;
use crate::members::label_copies::{Found, read_label, read_superblock};
use crate::tasks::background::REST_LOOK_NS;

/// A drive that answers ends in this time what it was asked for.
const DRAIN_NS: Nanos = 2_000_000_000;

/// A device with its superblock.
pub(crate) struct Candidate<D> {
    pub(crate) position: usize,
    pub(crate) device: D,
    pub(crate) found: Found,
}

impl<D> Candidate<D> {
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.found.superblock
    }
}

/// A device with the label of a journal.
pub(crate) struct JournalCandidate<D> {
    pub(crate) position: usize,
    pub(crate) device: D,
    pub(crate) label: JournalLabel,
}

/// Members and journals.
pub(crate) type Read<D> = (Vec<Candidate<D>>, Vec<JournalCandidate<D>>);

/// Waits for requests that an assembly which was refused just now may have left on its drives. A drive that
/// hangs is refused after that.
pub(crate) async fn await_drained<D: DriveControl>(devices: &[D], handle: &Handle) {
    let until = handle.now() + DRAIN_NS;
    while handle.now() < until && devices.iter().any(|device| device.under_way().count() > 0) {
        handle.sleep(REST_LOOK_NS).await;
    }
}

/// Reads all superblocks; refuses what is no part of one array.
pub(crate) async fn read_all<D: DriveControl>(devices: Vec<D>) -> Result<Read<D>, MetadataError> {
    let mut journals: Vec<JournalCandidate<D>> = Vec::new();
    let mut candidates: Vec<Candidate<D>> = Vec::with_capacity(devices.len());
    for (position, device) in devices.into_iter().enumerate() {
        let refused = |error| MetadataError::Device { device: position, error };
        if device.limits().read_only {
            return Err(refused(DeviceError::ReadOnly));
        }
        if device.under_way().count() > 0 {
            return Err(refused(DeviceError::Undrained));
        }
        let found = read_superblock(&device).await.map_err(refused)?;
        let Some(found) = found else {
            let label = read_label(&device).await.map_err(refused)?;
            let (label, _) = label.ok_or(refused(DeviceError::NoSuperblock))?;
            if let Some(first) = journals.iter().find(|it| it.label.uuid == label.uuid) {
                let (first, second) = (first.position, position);
                return Err(MetadataError::DuplicateJournal { first, second });
            }
            journals.push(JournalCandidate { position, device, label });
            continue;
        };
        let own = &found.superblock;
        if let Some(first) = candidates.first()
            && first.superblock().array.uuid != own.array.uuid
        {
            let (uuid, name) = (own.array.uuid, own.array.name.clone());
            return Err(MetadataError::Stranger { device: position, uuid, name });
        }
        // Two devices of one number and not of one uuid: one of them took the place of the other.
        let uuid = |of: &Superblock| of.array[of.member].uuid;
        let is_same = |it: &&Candidate<D>| {
            it.superblock().member == own.member && uuid(it.superblock()) == uuid(own)
        };
        if let Some(first) = candidates.iter().find(is_same) {
            let (first, member) = (first.position, own.member.0);
            return Err(MetadataError::Duplicate { first, second: position, member });
        }
        candidates.push(Candidate { position, device, found });
    }
    check_journals(&candidates, &journals)?;
    Ok((candidates, journals))
}

/// Refuses journals without members, and those of another array.
fn check_journals<D>(
    candidates: &[Candidate<D>],
    journals: &[JournalCandidate<D>],
) -> Result<(), MetadataError> {
    let Some(member) = candidates.first() else {
        return Err(journals.first().map_or(MetadataError::NoDevices, |journal| {
            let (device, name) = (journal.position, journal.label.name.clone());
            MetadataError::OnlyJournal { device, name }
        }));
    };
    let array = member.superblock().array.uuid;
    match journals.iter().find(|journal| journal.label.array != array) {
        Some(JournalCandidate { position, label, .. }) => {
            let (device, uuid, name) = (*position, label.array, label.name.clone());
            Err(MetadataError::Stranger { device, uuid, name })
        }
        None => Ok(()),
    }
}

/// The region map of a device. Blocks that cannot be read are zeroes, which are no page of a map: the other
/// members tell what is in them.
pub(crate) async fn read_map<D: DriveControl>(device: &D, map: &RegionMap) -> Vec<u8> {
    let longest = u64::from(device.limits().max_transfer_bytes) / MAP_BLOCK_BYTES * MAP_BLOCK_BYTES;
    let all = map.block_count() * MAP_BLOCK_BYTES;
    let mut bytes = Vec::new();
    for start in (0..all).step_by(longest.max(MAP_BLOCK_BYTES) as usize) {
        let count = longest.max(MAP_BLOCK_BYTES).min(all - start);
        let at = Lba::from_bytes(MAP_START_BYTES + start);
        match device.read(at, Buf::new(count as usize)).await {
            Ok(read) => bytes.extend_from_slice(&read),
            Err(_) => bytes.extend(read_map_blocks(device, start, count).await),
        }
    }
    bytes
}

/// A part of the map, block by block.
async fn read_map_blocks<D: DriveControl>(device: &D, start: u64, count: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count as usize);
    for start in (start..start + count).step_by(MAP_BLOCK_BYTES as usize) {
        let block = Buf::new(MAP_BLOCK_BYTES as usize);
        let read = device.read(Lba::from_bytes(MAP_START_BYTES + start), block).await;
        match read {
            Ok(block) => bytes.extend_from_slice(&block),
            Err(_) => bytes.resize(bytes.len() + MAP_BLOCK_BYTES as usize, 0),
        }
    }
    bytes
}

/// Flushes all members; those that could not. After a mere kill what they say, their maps and their records
/// may be in volatile caches. The array goes on from that as it was read, and tells others of it. A power
/// cut must not take it away again, on one member or on all.
pub(crate) async fn flush_what_was_found<D: DriveControl>(
    members: &BTreeMap<MemberIndex, Candidate<D>>,
) -> Vec<MemberIndex> {
    if canary::is(Canary::ReplayBeforeFlush) {
        return Vec::new();
    }
    let flush = async |(member, it): (&MemberIndex, &Candidate<D>)| {
        it.device.flush().await.is_err().then_some(*member)
    };
    join_all(members.iter().map(flush)).await.into_iter().flatten().collect()
}
