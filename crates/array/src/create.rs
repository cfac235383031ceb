//! Making an array: superblocks and an empty region map, and nothing else. No chunk is written, so it
//! takes as long for large members as for small ones.

use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Bytes, DriveControl, Durability, IoResult, Lba, SECTOR_BYTES, clear_labels,
};
use voltier_deadline::Guarded;
use voltier_ring::Handle;

use crate::bitmap::region_states::RegionStates;
use crate::errors::ArrayError;
use crate::errors::journal::JournalError;
use crate::errors::metadata::{DeviceError, MetadataError};
use crate::format::bits::Bits;
use crate::format::consistency::Consistency;
use crate::format::integrity::Integrity;
use crate::format::member_layout::{MAP_START_BYTES, MemberLayout};
use crate::format::region_map::{MAP_BLOCK_BYTES, RegionMap};
use crate::format::superblock::{
    ArrayRecord, JournalDeviceRecord, JournalState, MEMBERS_MAX, MemberRecord, MemberState,
    Superblock, Usage, is_name,
};
use crate::foundation::Foundation;
use crate::generation::Generation;
use crate::generations::Generations;
use crate::geometry::chunks::Geometry;
use crate::geometry::level::{Layout, Level};
use crate::journal::placement::label_for;
use crate::members::label_copies::{write_label, write_superblock};
use crate::members::member_watch::MemberWatch;
use crate::{hung, recovery};

/// The array that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// The name of the array: 1 to 64 bytes.
    pub name: String,
    /// The level.
    pub level: Level,
    /// Where parity is.
    pub layout: Layout,
    /// The chunk, in bytes.
    pub chunk_bytes: u64,
    /// The way in which the write hole is closed.
    pub consistency: Consistency,
    /// The checksums that the members keep.
    pub integrity: Integrity,
    /// The uuid of the array, a new one.
    pub uuid: [u8; 16],
    /// The uuids of the members, all different, in the order of the devices.
    pub member_uuids: Vec<[u8; 16]>,
}

/// The record of the new array: checks all that was asked for.
pub(crate) fn plan<D: DriveControl>(
    options: &CreateOptions,
    devices: &[D],
) -> Result<ArrayRecord, ArrayError> {
    let members = devices.len();
    let sectors = devices.iter().map(|device| device.limits().sectors).min();
    let sectors = sectors.ok_or(MetadataError::NoDevices)?;
    // First what is possible at all: the size that counts follows below.
    let CreateOptions { level, layout, chunk_bytes, .. } = *options;
    let shape = Geometry::new(level, layout, members, chunk_bytes, sectors)?;
    if members > MEMBERS_MAX {
        return Err(MetadataError::Members { members }.into());
    }
    if !is_name(&options.name) {
        return Err(MetadataError::Name { name: options.name.clone() }.into());
    }
    let uuids: BTreeSet<&[u8; 16]> = options.member_uuids.iter().collect();
    if uuids.len() != members || options.member_uuids.len() != members {
        return Err(MetadataError::Uuids { uuids: uuids.len(), members }.into());
    }
    if let Some(device) = devices.iter().position(|device| device.limits().read_only) {
        return Err(MetadataError::Device { device, error: DeviceError::ReadOnly }.into());
    }
    if let Some(device) = devices.iter().position(|device| device.under_way().count() > 0) {
        return Err(MetadataError::Device { device, error: DeviceError::Undrained }.into());
    }
    let has_journal = options.consistency == Consistency::Journal && shape.parity_chunks() > 0;
    let journal_bytes =
        if has_journal { MemberLayout::journal_bytes_for(sectors, chunk_bytes) } else { 0 };
    if options.integrity != Integrity::None && shape.parity_chunks() == 0 {
        return Err(MetadataError::Integrity { level }.into());
    }
    let sums_bytes = match options.integrity {
        Integrity::None => 0,
        Integrity::Crc32c => MemberLayout::checksum_sectors(sectors) * SECTOR_BYTES,
    };
    let overhead_bytes = journal_bytes + sums_bytes + chunk_bytes;
    let places = MemberLayout::plan(sectors, chunk_bytes, journal_bytes, options.integrity)
        .ok_or(MetadataError::TooSmall { sectors, overhead_bytes })?;
    let member = |uuid: &[u8; 16]| MemberRecord {
        uuid: *uuid,
        state: MemberState::InService,
        since_event: 1,
    };
    Ok(ArrayRecord {
        uuid: options.uuid,
        name: options.name.clone(),
        geometry: Geometry::new(level, layout, members, chunk_bytes, places.data.count)?,
        places,
        consistency: options.consistency,
        event: 1,
        usage: Usage::Making,
        members: options.member_uuids.iter().map(member).collect(),
        journal_device: None,
        needs_resync: false,
        reshape: None,
    })
}

async fn write_map<D: DriveControl>(device: &D, map: &RegionMap) -> IoResult<()> {
    let all: Vec<u8> = map.blocks().flat_map(|block| map.encode(block)).collect();
    let longest = u64::from(device.limits().max_transfer_bytes) / MAP_BLOCK_BYTES * MAP_BLOCK_BYTES;
    let mut at = Lba::from_bytes(MAP_START_BYTES);
    for bytes in all.chunks(longest.max(MAP_BLOCK_BYTES) as usize) {
        device.write(at, Bytes::copy_of(bytes).into(), Durability::Cached).await?;
        at = at.plus(bytes.len() as u64 / SECTOR_BYTES);
    }
    device.flush().await
}

/// Makes a device a member, whatever it was before.
async fn label_member<D: DriveControl>(
    device: &D,
    superblock: &Superblock,
    map: &RegionMap,
) -> IoResult<()> {
    clear_labels(device, None).await?;
    write_map(device, map).await?;
    write_superblock(device, superblock).await
}

/// Makes an array over these devices, and takes it into use.
///
/// # Errors
/// When no such array is possible: nothing was written then. When a device fails.
pub(crate) async fn create<D: DriveControl>(
    handle: &Handle,
    options: &CreateOptions,
    devices: Vec<Guarded<D>>,
    journal: Option<(Guarded<D>, [u8; 16])>,
    watch: &Rc<MemberWatch>,
) -> Result<Rc<Generations<Guarded<D>>>, ArrayError> {
    watch.release_late();
    let mut record = plan(options, &devices)?;
    let block_bytes = devices.iter().map(|device| device.limits().block_bytes).max();
    let journal = match journal {
        Some((device, uuid)) => {
            let label = label_for(&record, &device, uuid, block_bytes.unwrap_or(0))?;
            let (state, since_event) = (JournalState::InService, 1);
            record.journal_device = Some(JournalDeviceRecord { uuid, state, since_event });
            let io = |error| ArrayError::from(JournalError::Device(error));
            clear_labels(&device, None).await.map_err(io)?;
            write_label(&device, &label).await.map_err(io)?;
            Some((device, label))
        }
        None => None,
    };
    let member_sectors = record.geometry.member_sectors();
    let map = RegionMap::new(record.uuid, member_sectors);
    // All are labelled before any of them is believed.
    for (member, device) in record.indexes().zip(&devices) {
        let device_sectors = device.limits().sectors;
        let superblock = Superblock { array: record.clone(), member, device_sectors };
        let written = label_member(device, &superblock, &map).await;
        let error =
            |error| MetadataError::Device { device: member.0, error: DeviceError::Io(error) };
        written.map_err(error)?;
    }
    let to_resync = Bits::new(map.count());
    let states = RegionStates::new(map, member_sectors, to_resync, false);
    let members = devices.into_iter().map(Some).collect();
    let foundation = Foundation::of(&record, members, states, watch);
    let generations = Generations::new(handle, Generation::build(handle, foundation)?);
    generations.ground.members.name(&record);
    for (index, member) in generations.ground.members.indexed() {
        if let Ok(device) = member.device() {
            generations.ground.members.devices().join_new(&device, record[index].uuid);
        }
    }
    generations.ground.journal.placement().take_device(journal, false);
    generations.take_into_use(record.journal()).await?;
    hung::install(&generations);
    recovery::install(&generations);
    Ok(generations)
}
