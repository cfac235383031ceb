//! Assembling an array from its members, given in any order: who belongs to it, who is up to date, and
//! whether the rest is enough. Nothing is written before all of that is known.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::BlockDevice;
use voltier_deadline::Guarded;
use voltier_ring::Handle;

use crate::bitmap::region_states::RegionStates;
use crate::canary::{self, Canary};
use crate::candidates::{
    Candidate, JournalCandidate, await_drained, flush_what_was_found, read_all, read_map,
};
use crate::errors::ArrayError;
use crate::errors::metadata::MetadataError;
use crate::format::bits::Bits;
use crate::format::consistency::Consistency;
use crate::format::journal_label::JournalLabel;
use crate::format::region_map::{Joined, RegionMap};
use crate::format::superblock::{
    ArrayRecord, JournalState, MemberRecord, MemberState, Superblock, Usage,
};
use crate::foundation::Foundation;
use crate::generation::Generation;
use crate::generations::Generations;
use crate::geometry::numbers::{MemberIndex, Region};
use crate::hung;
use crate::journal::replay::ReplayReport;
use crate::members::label_copies::{evict, write_superblock};
use crate::members::member::Missing;
use crate::members::member_set::MemberSet;
use crate::members::member_watch::MemberWatch;

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

/// The findings of an assembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembleReport {
    /// The array, as it is now.
    pub array: ArrayRecord,
    /// Whether it had been stopped.
    pub was_clean: bool,
    /// Devices that were not taken: the array went on without them.
    pub left_out: Vec<LeftOut>,
    /// Members that were in service and are not there: they are lost now.
    pub now_lost: Vec<usize>,
    /// Journal devices that were not taken: the array went on without them.
    pub journal_left_out: Vec<JournalLeftOut>,
    /// Whether the journal device was in service and is not there: the journal is on the members now.
    pub is_journal_lost: bool,
    /// Positions of devices with one good copy of the superblock; both are good again.
    pub label_copies_mended: Vec<usize>,
    /// Regions whose parity is made anew in the background.
    pub regions_to_resync: u64,
    /// The replay of the journal.
    pub journal: ReplayReport,
}

/// The journal's device, as far as there is one.
struct Chosen<D> {
    /// The device and its label, if it is there and up to date.
    journal: Option<(D, JournalLabel)>,
    left_out: Vec<JournalLeftOut>,
    /// Whether it was in service and is not there.
    is_lost: bool,
}

/// The journal's device, if it is there and up to date, and those that are left out.
///
/// # Errors
/// When it is needed and not there, unless the start is forced.
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
fn plain(members: impl Iterator<Item = MemberIndex>) -> Vec<usize> {
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
struct Ready<D> {
    array: ArrayRecord,
    /// The newest record as it is on those members that have it.
    told: ArrayRecord,
    members: BTreeMap<MemberIndex, Candidate<D>>,
    /// Members that lack that record, or have one copy of it only.
    behind: Vec<MemberIndex>,
    left_out: Vec<LeftOut>,
    /// Candidates left out whose places others have, and whose own superblocks do not say so.
    replaced: Vec<Candidate<D>>,
    /// Those that were given and do not flush.
    unflushed: Vec<(MemberIndex, D)>,
    map: RegionMap,
    /// Blocks of the map that are not the same on all members.
    unequal: Vec<u64>,
    to_resync: Bits<Region>,
    /// Regions that members which are being rebuilt lack.
    lacking: Bits<Region>,
    journal: Chosen<D>,
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

async fn examine_all<D: BlockDevice>(
    devices: Vec<D>,
    options: AssembleOptions,
) -> Result<Ready<D>, ArrayError> {
    let (candidates, journals) = read_all(devices).await?;
    let mut array = newest_of(&candidates)?;
    let told = array.clone();
    if array.usage == Usage::Making {
        return Err(MetadataError::HalfMade { name: array.name }.into());
    }
    let (mut members, mut left_out, mut replaced) = (BTreeMap::new(), Vec::new(), Vec::new());
    for candidate in candidates {
        let own = candidate.superblock();
        let (device, member) = (candidate.position, own.member);
        if is_current(&array, own) {
            members.insert(member, candidate);
        } else {
            let (out, was) = (left_out_of(&array, own, device), own.array[member].state);
            left_out.push(out);
            if out.is_replaced && was == MemberState::InService {
                replaced.push(candidate);
            }
        }
    }
    let is_given = |member| members.contains_key(&member);
    check_usable(&array, &is_given)?;
    check_age(&array, &is_given, options)?;
    let empty = RegionMap::new(array.uuid, array.geometry.member_sectors());
    let mut maps = Vec::new();
    for candidate in members.values() {
        maps.push(read_map(&candidate.device, &empty).await);
    }
    let unflushed = take_unflushed(&array, &mut members).await?;
    let maps: Vec<Option<&[u8]>> = maps.iter().map(|map| Some(&map[..])).collect();
    let mut joined = RegionMap::join(array.uuid, array.geometry.member_sectors(), &maps);
    let journal = choose_journal(&array, journals, options)?;
    if journal.is_lost && array.usage != Usage::Clean {
        // Nobody knows which writes had begun: all that was written may not match, and says so from now on.
        array.needs_resync = true;
        joined.map.dirty = joined.map.written.clone();
        joined.unequal = (0..joined.map.block_count()).collect();
    }
    let to_resync = to_resync(&array, &joined);
    let lacking = lacking(&array, &joined);
    if members.keys().any(|member| array.is_rebuilding(*member)) {
        put_on_record(&lacking, &mut joined);
    }
    let is_there = |member| members.contains_key(&member);
    let missing = missing_data(&array, &is_there, &lacking, &to_resync);
    // Copies are whole blocks, old or new: none of them is computed from others.
    let is_surprise = !missing.is_empty() && !to_resync.is_empty() && !array.geometry.is_mirror();
    if is_surprise && !options.force {
        return Err(MetadataError::DirtyDegraded { regions: to_resync.count(), missing }.into());
    }
    let Joined { map, unequal, .. } = joined;
    let behind = members.iter().filter(|(_, it)| is_behind(it, &told)).map(|it| *it.0).collect();
    Ok(Ready {
        behind,
        array,
        told,
        members,
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

/// Takes out the members that do not flush, or do not answer any more: the array starts as if they were not
/// there.
///
/// # Errors
/// When the others are not enough.
async fn take_unflushed<D: BlockDevice>(
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

/// Tells the newest event to members that are behind. The next event would leave them two behind, and a cut
/// in the midst of that event would have lost them.
async fn tell_those_behind<D: BlockDevice>(
    members: &MemberSet<D>,
    behind: &[MemberIndex],
    told: &ArrayRecord,
) {
    for member in behind {
        let Ok(device) = members[*member].device() else { continue };
        let device_sectors = device.limits().sectors;
        let superblock = Superblock { array: told.clone(), member: *member, device_sectors };
        // A member that does not take it is lost with the next event.
        let _ = write_superblock(&*device, &superblock).await;
    }
}

/// Puts an array in service. The worker of a capacity expansion is still to be begun.
///
/// A device that does not answer meanwhile is given up, as far as the others are enough.
///
/// # Errors
/// When something that was given does not belong to the array, or when too little is there. When the
/// data may not be what was acknowledged, unless the options allow it. Nothing is written then. When members
/// do not answer that cannot be done without.
pub(crate) async fn assemble<D: BlockDevice>(
    handle: &Handle,
    devices: Vec<Guarded<D>>,
    options: AssembleOptions,
    watch: &Rc<MemberWatch>,
) -> Result<(Rc<Generations<Guarded<D>>>, AssembleReport), ArrayError> {
    watch.release_late();
    await_drained(&devices, watch.handle()).await;
    let mut ready = examine_all(devices, options).await?;
    let report = report_of(&ready);
    let generations = put_together(handle, &mut ready, watch)?;
    let silent = hung::install_for_start(&generations);
    let started = begin(&generations, ready).await;
    let journal = started.map_err(|error| match silent.take() {
        members if members.is_empty() => error,
        members => ArrayError::Silent { members },
    })?;
    hung::install(&generations);
    let array = generations.ground.membership.record();
    Ok((generations, AssembleReport { array, journal, ..report }))
}

/// The report of an assembly that is about to change something; the array is the one that was found.
fn report_of<D>(ready: &Ready<D>) -> AssembleReport {
    let (array, members) = (&ready.array, &ready.members);
    let is_one_copy = |it: &&Candidate<D>| it.found.is_one_copy;
    let is_gone = |member: &MemberIndex| {
        let was_there = array.is_in_service(*member) || array.is_rebuilding(*member);
        was_there && !members.contains_key(member)
    };
    AssembleReport {
        array: array.clone(),
        was_clean: array.usage == Usage::Clean,
        left_out: ready.left_out.clone(),
        now_lost: plain(array.indexes().filter(is_gone)),
        journal_left_out: ready.journal.left_out.clone(),
        is_journal_lost: ready.journal.is_lost,
        label_copies_mended: members.values().filter(is_one_copy).map(|it| it.position).collect(),
        regions_to_resync: ready.to_resync.count(),
        journal: ReplayReport::default(),
    }
}

/// The array over its members. Nothing is written yet.
fn put_together<D: BlockDevice>(
    handle: &Handle,
    ready: &mut Ready<Guarded<D>>,
    watch: &Rc<MemberWatch>,
) -> Result<Rc<Generations<Guarded<D>>>, ArrayError> {
    let array = &ready.array;
    let unflushed_map = array.journal().is_some() && array.usage != Usage::Clean;
    let (map, to_resync) = (ready.map.clone(), ready.to_resync.clone());
    let states = RegionStates::new(map, array.geometry.member_sectors(), to_resync, unflushed_map);
    let devices =
        array.indexes().map(|member| ready.members.remove(&member).map(|it| it.device)).collect();
    let foundation = Foundation::of(array, devices, states, watch);
    let generations = Generations::new(Generation::build(handle, foundation)?);
    let parts = &generations.ground;
    parts.members.name(array);
    for (index, member) in parts.members.indexed() {
        let Ok(device) = member.device() else { continue };
        parts.members.join_checksums(&device, member.uuid(), || {
            // A crash leaves these with new data and old checksums, or the other way round.
            let mut distrusted = ready.to_resync.clone();
            if array.is_rebuilding(index) {
                ready.lacking.iter().for_each(|region| distrusted.put(region, true));
            }
            distrusted
        });
    }
    for (member, device) in &ready.unflushed {
        device.abandon();
        watch.note_left(*member, device.under_way());
    }
    for (index, member) in parts.members.indexed() {
        if array.is_rebuilding(index)
            && let Ok(device) = member.device()
        {
            member.join(device, member.uuid(), Missing::new(ready.lacking.clone()));
        }
    }
    let is_lost = ready.journal.is_lost;
    parts.journal.placement().take_device(ready.journal.journal.take(), is_lost);
    Ok(generations)
}

/// Says on the members what is true from now on, and begins to serve.
async fn begin<D: BlockDevice>(
    generations: &Rc<Generations<Guarded<D>>>,
    ready: Ready<Guarded<D>>,
) -> Result<ReplayReport, ArrayError> {
    tell_those_behind(&generations.ground.members, &ready.behind, &ready.told).await;
    // The cache of a member may hold all that says that another one has the place.
    if ready.unflushed.is_empty() {
        for Candidate { device, found, .. } in ready.replaced {
            evict(&device, found.superblock).await;
        }
    }
    generations.start(&ready.unequal, ready.array.journal()).await
}
