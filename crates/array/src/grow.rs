//! A parity row is added while the array serves: 5 becomes 6, 6 becomes 7.3, a mirror gets one more
//! copy.
//!
//! Nothing moves. The new shape has the same data and parities at the same places, and one member more
//! for each group. For a moment requests wait. When nothing is under way the new shape takes over, with
//! the new members as such that lack everything. The superblocks say so, those of the new members
//! first. From then on the change is a rebuild: at a rebuild's pace, region by region, gone on with
//! after a restart. A region counts its new parity row when that is filled.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError};

use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::metadata::MetadataError;
use crate::errors::replace::ReplaceError;
use crate::format::journal_place::longest_record_bytes;
use crate::format::member_layout::{MemberLayout, SUPERBLOCK_BYTES};
use crate::format::superblock::MEMBERS_MAX;
use crate::generation::{Generation, NextShape};
use crate::generations::Generations;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::MemberIndex;
use crate::members::member::Member;
use crate::stripe::ground::Ground;

/// # Errors
/// When it is no array that can change its shape, at any time.
pub(crate) fn check_can_grow<D: BlockDevice>(array: &Generation<D>) -> Result<(), ArrayError> {
    if !array.ground.membership.is_durable() {
        return Err(GrowError::Bare.into());
    }
    if array.tasks.is_closing() {
        return Err(ReplaceError::Stopped.into());
    }
    if array.moving().is_some() { Err(GrowError::Reshaping.into()) } else { Ok(()) }
}

/// # Errors
/// When a member is missing, or something is being done to the members.
pub(crate) fn check_undisturbed<D: BlockDevice>(array: &Generation<D>) -> Result<(), ArrayError> {
    let Ground { members, membership, bitmap, journal, .. } = &array.ground;
    if !membership.is_durable() {
        return Err(GrowError::Bare.into());
    }
    if array.tasks.scrub.is_running() {
        return Err(ReplaceError::ScrubRuns.into());
    }
    if !members.iter().all(Member::is_undisturbed) || array.tasks.rebuild.is_running() {
        return Err(GrowError::Degraded.into());
    }
    let [.., regions] = bitmap.counts();
    if regions > 0 || array.tasks.resync.is_running() {
        return Err(GrowError::NeedsResync { regions }.into());
    }
    if journal.placement().is_on_device() {
        return Err(GrowError::JournalDevice.into());
    }
    let has_failed = journal.check().is_err();
    if has_failed || array.stripes.has_any_half_written() {
        return Err(GrowError::Failed.into());
    }
    Ok(())
}

/// The shape with one more parity row on these devices, if the array can have it now.
fn check_growth<D: BlockDevice>(
    array: &Generation<D>,
    devices: &[Rc<D>],
    uuids: &[[u8; 16]],
) -> Result<Geometry, ArrayError> {
    check_can_grow(array)?;
    let own = &array.ground.geometry;
    let level = own.level();
    let geometry = own.with_parity().map_err(|error| match error {
        Some(error) => ArrayError::from(error),
        None => GrowError::Level { level }.into(),
    })?;
    let members = geometry.member_count();
    if members > MEMBERS_MAX {
        return Err(MetadataError::Members { members }.into());
    }
    let (given, needed) = (devices.len(), own.group_count());
    if given != needed || uuids.len() != needed {
        return Err(GrowError::Devices { given, needed }.into());
    }
    check_undisturbed(array)?;
    for (device, (own, uuid)) in devices.iter().zip(uuids).enumerate() {
        check_pending_member(array, device, own, uuid)?;
        if uuids[..device].contains(uuid) {
            return Err(GrowError::Device { device, error: ReplaceError::Uuid }.into());
        }
    }
    Ok(geometry)
}

/// # Errors
/// When a device does not suit as a further member.
pub(crate) fn check_pending_member<D: BlockDevice>(
    array: &Generation<D>,
    device: usize,
    own: &Rc<D>,
    uuid: &[u8; 16],
) -> Result<(), GrowError> {
    let unsuited = |error| GrowError::Device { device, error };
    array.tasks.replacements.check_device(&**own, uuid).map_err(unsuited)?;
    let limits = own.limits();
    let has_journal = array.ground.journal.is_in_service();
    let bytes = limits.max_transfer_bytes;
    if has_journal && u64::from(bytes) < longest_record_bytes(&array.ground.geometry) {
        return Err(unsuited(ReplaceError::Transfer { bytes }));
    }
    if limits.volatile_cache && !array.limits.volatile_cache && !has_journal {
        return Err(GrowError::VolatileCache { device });
    }
    Ok(())
}

/// The array with a parity row more: these members lack everything. Nothing is under way.
fn grown<D: BlockDevice>(
    array: &Generation<D>,
    geometry: Geometry,
    devices: Vec<Rc<D>>,
    uuids: &[[u8; 16]],
) -> Result<Generation<D>, ArrayError> {
    let mut added = Vec::new();
    for (device, uuid) in devices.into_iter().zip(uuids) {
        let member = Member::new(None);
        if let Some(lacking) = array.ground.bitmap.lacking(false) {
            member.join(device, *uuid, lacking);
        }
        added.push(member);
    }
    let limits = array.limits.clone();
    array.next(NextShape { geometry, limits, added, ring: None, moving: None })
}

/// Overwrites what a device says it is, whatever that was, and sees whether it takes it.
pub(crate) async fn wipe<D: BlockDevice>(device: &D) -> Result<(), IoError> {
    for at in MemberLayout::superblock_lbas(device.limits().sectors) {
        let zeroes = Buf::zeroed(SUPERBLOCK_BYTES as usize).freeze();
        device.write(at, zeroes.into(), Durability::Durable).await?;
    }
    Ok(())
}

/// Adds a parity row, or a copy to a mirror, on these devices.
///
/// # Errors
/// When the array or a device does not suit: nothing has changed then. When a device fails while it
/// is taken in.
pub(crate) async fn add_parity<D: BlockDevice>(
    array: &Rc<Generations<D>>,
    devices: Vec<Rc<D>>,
    uuids: &[[u8; 16]],
) -> Result<(), ArrayError> {
    check_growth(array, &devices, uuids)?;
    let gate = array.close().ok_or(GrowError::Growing)?;
    for (device, own) in devices.iter().enumerate() {
        let failed = |error| GrowError::Device { device, error: ReplaceError::Device(error) };
        wipe(&**own).await.map_err(failed)?;
    }
    array.ground.membership.recorded().await.map_err(ArrayError::Io)?;
    gate.at_rest().await;
    // Much may have happened since it was looked at first, and nothing happens from here on.
    let geometry = check_growth(array, &devices, uuids)?;
    let first = array.ground.members.len();
    let next = grown(array, geometry, devices, uuids)?;
    gate.succeed(next).await.map_err(ArrayError::Io)?;
    array.tasks.rebuild.begin_if_wanted();
    let members = &array.ground.members;
    let mut added = members.indexes().skip(first);
    match added.find(|member| !members[*member].has_device()) {
        Some(MemberIndex(member)) => Err(GrowError::Lost { member }.into()),
        None => Ok(()),
    }
}
