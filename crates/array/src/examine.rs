//! The examination of an array before anything is written. An examination finds the devices that belong to
//! the array, those that are up to date, and whether these are enough.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use voltier_block::DriveControl;

use crate::canary::{self, Canary};
use crate::candidates::{Candidate, JournalCandidate, flush_what_was_found, read_all, read_map};
use crate::errors::ArrayError;
use crate::errors::metadata::MetadataError;
use crate::format::bits::Bits;
use crate::format::consistency::Consistency;
use crate::format::journal_label::JournalLabel;
use crate::format::region_map::{Joined, MapBlock, RegionMap};
use crate::format::superblock::{
    ArrayRecord, JournalState, MemberRecord, MemberState, Superblock, Usage,
};
use crate::geometry::numbers::{MemberIndex, Region};

/// Permissions for a start when not everything is as it should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssembleOptions {
    /// Start although stripes may not match and members are missing: what cannot be known is taken
    /// from parity as it is.
    pub force: bool,
    /// Start although the members that are missing could have gone on without these.
    pub degraded: bool,
}

/// A device that was given and is not in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The position of the device among those given, from 0.
    pub device: usize,
    /// The member it is.
    pub member: usize,
    /// The state of this member by the array: lost, being rebuilt, or absent.
    pub state: MemberState,
    /// Whether another device has its place.
    pub is_replaced: bool,
}

/// A journal device that was given and is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLeftOut {
    /// The position of the device among those given, from 0.
    pub device: usize,
}

/// The journal's device, as far as there is one.
pub(crate) struct Chosen<D> {
    /// The device and its label, if it is there and up to date.
    pub(crate) journal: Option<(D, JournalLabel)>,
    pub(crate) left_out: Vec<JournalLeftOut>,
    /// Whether the device was in service and is not there.
    pub(crate) is_lost: bool,
}

/// The journal's device, if it is there and up to date, and those that are left out.
///
/// # Errors
/// When the device is needed and not there, unless the start is forced.
fn choose_journal<D>(
    array: &ArrayRecord,
    journals: Vec<JournalCandidate<D>>,
    options: AssembleOptions,
) -> Result<Chosen<D>, MetadataError> {
    let in_service =
        array.journal_device.filter(|journal| journal.state == JournalState::InService);
    let (mut chosen, mut left_out) = (None, Vec::new());
    for JournalCandidate { position, device, label } in journals {
        let is_it = in_service.is_some_and(|journal| journal.uuid == label.uuid);
        if is_it && label.event > array.event + 1 {
            return Err(MetadataError::JournalNewer { device: position });
        }
        if is_it && label.event + 1 >= array.event {
            chosen = Some((device, label));
        } else {
            left_out.push(JournalLeftOut { device: position });
        }
    }
    let is_missing = in_service.is_some() && chosen.is_none();
    if is_missing && array.usage != Usage::Clean && !options.force {
        return Err(MetadataError::JournalMissing);
    }
    Ok(Chosen { journal: chosen, left_out, is_lost: is_missing })
}

/// The newest record; refuses members that contradict it.
fn newest_of<D>(candidates: &[Candidate<D>]) -> Result<ArrayRecord, MetadataError> {
    // Of equals the first; a parity row that was being added and never was does not make the shape.
    let event = |candidate: &&Candidate<D>| {
        let array = &candidate.superblock().array;
        (array.event, Reverse(array.members.len()))
    };
    let newest = candidates.iter().rev().max_by_key(event).expect("there is one");
    let array = &newest.superblock().array;
    for candidate in candidates {
        let (own, member) = (&candidate.superblock().array, candidate.superblock().member);
        let pair =
            (newest.position.min(candidate.position), newest.position.max(candidate.position));
        let contradiction = MetadataError::Contradiction { first: pair.0, second: pair.1 };
        let is_alike = own.places == array.places && own.consistency == array.consistency;
        let uuid = own[member].uuid;
        let record = array.get(member).filter(|record| record.uuid == uuid);
        if is_alike && record.is_none() && array.geometry.grows_into(&own.geometry) {
            // The device was to have a further parity row, and the others went on as they were.
            continue;
        }
        let is_from_before = own.event < array.event && own.geometry.grows_into(&array.geometry);
        let has_same_shape = own.geometry == array.geometry || is_from_before;
        if !is_alike || !has_same_shape {
            return Err(contradiction);
        }
        let is_lost = |record: &&MemberRecord| record.state == MemberState::Lost;
        if record.filter(is_lost).is_some_and(|record| own.event >= record.since_event) {
            return Err(MetadataError::Diverged { device: candidate.position });
        }
        if own.event == array.event && own != array {
            return Err(contradiction);
        }
    }
    Ok(array.clone())
}

/// Whether a member is up to date: in service, or being rebuilt, by the newest record, and at most one
/// event behind it (see [`membership`](crate::membership)).
fn is_current(array: &ArrayRecord, own: &Superblock) -> bool {
    let uuid = own.array[own.member].uuid;
    let has_place = array.get(own.member).is_some_and(|record| record.uuid == uuid);
    has_place
        && (canary::is(Canary::StaleBelieved)
            || array.is_in_service(own.member)
            || array.is_rebuilding(own.member))
        && own.array.event + 1 >= array.event
}

/// Members as errors and reports say them: plain numbers.
pub(crate) fn plain(members: impl Iterator<Item = MemberIndex>) -> Vec<usize> {
    members.map(|member| member.0).collect()
}

/// Refuses a start with fewer members than hold everything.
fn check_usable(
    array: &ArrayRecord,
    is_present: &dyn Fn(MemberIndex) -> bool,
) -> Result<(), MetadataError> {
    let geometry = &array.geometry;
    let (width, needed) = (geometry.width(), geometry.data_chunks());
    // One that is being rebuilt does not count: nobody knows yet of which stripes it helps.
    let is_usable = |member: &MemberIndex| array.is_in_service(*member) && is_present(*member);
    let is_missing = |member: &MemberIndex| array.is_in_service(*member) && !is_present(*member);
    for group in geometry.groups() {
        let members = geometry.members_of(group);
        let usable = members.clone().filter(is_usable).count();
        if usable < needed {
            let missing = plain(members.filter(is_missing));
            let group = group.0;
            return Err(MetadataError::TooFew { group, usable, width, needed, missing });
        }
    }
    Ok(())
}

/// Refuses what may be an old half: members that are not there could have gone on without these.
fn check_age(
    array: &ArrayRecord,
    is_present: &dyn Fn(MemberIndex) -> bool,
    options: AssembleOptions,
) -> Result<(), MetadataError> {
    let (geometry, needed) = (&array.geometry, array.geometry.data_chunks());
    let is_missing = |member: &MemberIndex| array.is_in_service(*member) && !is_present(*member);
    let could_go_on = geometry
        .groups()
        .all(|group| geometry.members_of(group).filter(is_missing).count() >= needed);
    if could_go_on && !options.degraded {
        let missing = plain(array.indexes().filter(is_missing));
        return Err(MetadataError::MayBeOld { missing });
    }
    Ok(())
}

/// The regions whose stripes may not match after a start from this map. A region of which nobody knows
/// is one.
fn to_resync(array: &ArrayRecord, joined: &Joined) -> Bits<Region> {
    let map = &joined.map;
    if array.geometry.parity_chunks() == 0 {
        return Bits::new(map.count());
    }
    let mut to_resync = joined.unknown.clone();
    let regions = match array.consistency {
        _ if array.usage == Usage::Clean => return to_resync,
        Consistency::Journal if !array.needs_resync => return to_resync,
        Consistency::Journal | Consistency::Bitmap => &map.dirty,
        Consistency::None => &map.written,
    };
    for region in regions.iter().filter(|region| map.written.has(*region)) {
        to_resync.put(region, true);
    }
    to_resync
}

/// The members of an array that may be put in service, and what else is known before anything is
/// written.
pub(crate) struct Ready<D> {
    pub(crate) array: ArrayRecord,
    /// The newest record as it is on those members that have it.
    pub(crate) told: ArrayRecord,
    pub(crate) members: BTreeMap<MemberIndex, Candidate<D>>,
    /// Members that lack that record, or have one copy of it only.
    pub(crate) behind: Vec<MemberIndex>,
    pub(crate) left_out: Vec<LeftOut>,
    /// Candidates left out whose places others have, and whose own superblocks do not say so.
    pub(crate) replaced: Vec<Candidate<D>>,
    /// Those that were given and do not flush.
    pub(crate) unflushed: Vec<(MemberIndex, D)>,
    pub(crate) map: RegionMap,
    /// Blocks of the map that are not the same on all members.
    pub(crate) unequal: Vec<MapBlock>,
    pub(crate) to_resync: Bits<Region>,
    /// Regions that members which are being rebuilt lack.
    pub(crate) lacking: Bits<Region>,
    pub(crate) journal: Chosen<D>,
}

/// Regions that members which are being rebuilt lack: written ones, as the map says. Writes that were redone
/// from a journal may also not be on them: all that is dirty.
fn lacking(array: &ArrayRecord, joined: &Joined) -> Bits<Region> {
    let map = &joined.map;
    let is_redone = array.usage != Usage::Clean && array.consistency == Consistency::Journal;
    let mut lacking = Bits::new(map.count());
    for region in map.written.iter() {
        let is_lacking = map.missing.has(region) || (is_redone && map.dirty.has(region));
        lacking.put(region, is_lacking);
    }
    lacking
}

/// Puts what members lack on record. Dirty regions tell that only after a crash, and members may lack them
/// when the array is stopped in order.
fn put_on_record(lacking: &Bits<Region>, joined: &mut Joined) {
    for region in lacking.iter() {
        if !joined.map.missing.has(region) {
            joined.map.missing.put(region, true);
            joined.unequal.push(joined.map.block_of(region));
        }
    }
    joined.unequal.sort_unstable();
    joined.unequal.dedup();
}

/// A device that the array went on without.
fn left_out_of(array: &ArrayRecord, own: &Superblock, device: usize) -> LeftOut {
    let (member, was) = (own.member, own.array[own.member]);
    // In service and older than it can be: what it is told to be, it is not.
    let state = match array.get(member).map(|record| record.state) {
        Some(MemberState::InService | MemberState::Rebuilding) => MemberState::Lost,
        state => state.unwrap_or(MemberState::Absent),
    };
    let is_replaced = array.get(member).is_some_and(|now| now.uuid != was.uuid);
    LeftOut { device, member: member.0, state, is_replaced }
}

/// Members of whose data something is computed from stripes that may not match.
fn missing_data(
    array: &ArrayRecord,
    is_there: &dyn Fn(MemberIndex) -> bool,
    lacking: &Bits<Region>,
    to_resync: &Bits<Region>,
) -> Vec<usize> {
    let lacks = |member: &MemberIndex| match is_there(*member) {
        true if array.is_in_service(*member) => false,
        true => lacking.iter().any(|region| to_resync.has(region)),
        false => true,
    };
    // Parity alone is made anew from data, of which none is computed without these members.
    let holds_data = |member: &MemberIndex| array.geometry.holds_data(*member);
    plain(array.indexes().filter(lacks).filter(holds_data))
}

/// Takes out the members that do not flush, or do not answer any more: the array starts as if they were not
/// there.
///
/// # Errors
/// When the others are not enough.
async fn take_unflushed<D: DriveControl>(
    array: &ArrayRecord,
    members: &mut BTreeMap<MemberIndex, Candidate<D>>,
) -> Result<Vec<(MemberIndex, D)>, ArrayError> {
    let unflushed = flush_what_was_found(members).await;
    let taken =
        unflushed.iter().filter_map(|member| Some((*member, members.remove(member)?.device)));
    let taken = taken.collect();
    check_usable(array, &|member| members.contains_key(&member))
        .map_err(|_| ArrayError::Silent { members: plain(unflushed.into_iter()) })?;
    Ok(taken)
}

/// Whether a member is behind the newest event, or has that event in one copy only.
fn is_behind<D>(of: &Candidate<D>, told: &ArrayRecord) -> bool {
    of.superblock().array.event < told.event || of.found.is_one_copy
}

/// The members of an array by their numbers, and the candidates that are none.
struct Sorted<D> {
    members: BTreeMap<MemberIndex, Candidate<D>>,
    left_out: Vec<LeftOut>,
    /// See [`Ready::replaced`].
    replaced: Vec<Candidate<D>>,
}

/// Sorts the candidates into members that are up to date and those that the array went on without.
fn sort_candidates<D>(array: &ArrayRecord, candidates: Vec<Candidate<D>>) -> Sorted<D> {
    let (mut members, mut left_out, mut replaced) = (BTreeMap::new(), Vec::new(), Vec::new());
    for candidate in candidates {
        let own = candidate.superblock();
        let (device, member) = (candidate.position, own.member);
        if is_current(array, own) {
            members.insert(member, candidate);
            continue;
        }
        let (out, was) = (left_out_of(array, own, device), own.array[member].state);
        left_out.push(out);
        if out.is_replaced && was == MemberState::InService {
            replaced.push(candidate);
        }
    }
    Sorted { members, left_out, replaced }
}

/// Refuses an array whose making was cut off.
fn refuse_half_made(array: &ArrayRecord) -> Result<(), MetadataError> {
    if array.usage == Usage::Making {
        return Err(MetadataError::HalfMade { name: array.name.clone() });
    }
    Ok(())
}

/// The region maps of all members, one after the other.
async fn read_maps<D: DriveControl>(
    array: &ArrayRecord,
    members: &BTreeMap<MemberIndex, Candidate<D>>,
) -> Vec<Vec<u8>> {
    let empty = RegionMap::new(array.uuid, array.geometry.member_sectors());
    let mut maps = Vec::new();
    for candidate in members.values() {
        maps.push(read_map(&candidate.device, &empty).await);
    }
    maps
}

/// The map that the members hold together.
fn join_maps(array: &ArrayRecord, maps: &[Vec<u8>]) -> Joined {
    let maps: Vec<Option<&[u8]>> = maps.iter().map(|map| Some(&map[..])).collect();
    RegionMap::join(array.uuid, array.geometry.member_sectors(), &maps)
}

/// Distrusts all parity where the journal is lost: nobody knows which writes had begun. All that was written
/// may not match, and says so from now on.
fn distrust_parity(array: &mut ArrayRecord, joined: &mut Joined) {
    array.needs_resync = true;
    joined.map.dirty = joined.map.written.clone();
    joined.unequal = joined.map.blocks().collect();
}

/// Refuses a start that would compute data from stripes that may not match, unless the start is forced. The
/// result may be content that nobody ever wrote, in blocks that nobody was writing.
fn refuse_dirty_degraded(
    array: &ArrayRecord,
    is_present: &dyn Fn(MemberIndex) -> bool,
    lacking: &Bits<Region>,
    to_resync: &Bits<Region>,
    options: AssembleOptions,
) -> Result<(), MetadataError> {
    let missing = missing_data(array, is_present, lacking, to_resync);
    // Copies are whole blocks, old or new: none of them is computed from others.
    let is_surprise = !missing.is_empty() && !to_resync.is_empty() && !array.geometry.is_mirror();
    if is_surprise && !options.force {
        return Err(MetadataError::DirtyDegraded { regions: to_resync.count(), missing });
    }
    Ok(())
}

/// Examines the devices of an array. Nothing is written: a start that is refused changes nothing.
///
/// # Errors
/// Those of an assembly.
pub(crate) async fn examine_all<D: DriveControl>(
    devices: Vec<D>,
    options: AssembleOptions,
) -> Result<Ready<D>, ArrayError> {
    let (candidates, journals) = read_all(devices).await?;
    let told = newest_of(&candidates)?;
    refuse_half_made(&told)?;
    let Sorted { mut members, left_out, replaced } = sort_candidates(&told, candidates);
    check_usable(&told, &|member| members.contains_key(&member))?;
    check_age(&told, &|member| members.contains_key(&member), options)?;
    // Before members that do not flush are taken out: the newest page of the map may be theirs alone.
    let maps = read_maps(&told, &members).await;
    let unflushed = take_unflushed(&told, &mut members).await?;
    let mut joined = join_maps(&told, &maps);
    let journal = choose_journal(&told, journals, options)?;
    let mut array = told.clone();
    if journal.is_lost && array.usage != Usage::Clean {
        distrust_parity(&mut array, &mut joined);
    }
    let to_resync = to_resync(&array, &joined);
    let lacking = lacking(&array, &joined);
    if members.keys().any(|member| array.is_rebuilding(*member)) {
        put_on_record(&lacking, &mut joined);
    }
    let is_present = |member| members.contains_key(&member);
    refuse_dirty_degraded(&array, &is_present, &lacking, &to_resync, options)?;
    let behind = members.iter().filter(|(_, it)| is_behind(it, &told)).map(|it| *it.0).collect();
    let Joined { map, unequal, .. } = joined;
    Ok(Ready {
        array,
        told,
        members,
        behind,
        left_out,
        replaced,
        unflushed,
        map,
        unequal,
        to_resync,
        lacking,
        journal,
    })
}
