//! Assembling an array from its members, given in any order: who belongs to it, who is up to date, and
//! whether the rest is enough. Nothing is written before all of that is known.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, IoError, Lba, Nanos};
use voltier_deadline::Guarded;
use voltier_ring::{Handle, join_all};

use crate::bitmap::region_states::RegionStates;
use crate::canary::{self, Canary};
use crate::errors::ArrayError;
use crate::errors::metadata::{DeviceError, MetadataError};
use crate::format::bits::Bits;
use crate::format::consistency::Consistency;
use crate::format::journal_label::JournalLabel;
use crate::format::member_layout::MAP_START_BYTES;
use crate::format::region_map::{Joined, MAP_BLOCK_BYTES, RegionMap};
use crate::format::superblock::{
    ArrayRecord, JournalState, MemberRecord, MemberState, Superblock, Usage,
};
use crate::foundation::Foundation;
use crate::generation::Generation;
use crate::generations::Generations;
use crate::geometry::numbers::{MemberIndex, Region};
use crate::hung;
use crate::journal::replay::ReplayReport;
use crate::members::label_copies::{Found, evict, read_label, read_superblock, write_superblock};
use crate::members::member_watch::MemberWatch;
use crate::tasks::background::REST_LOOK_NS;

/// A drive that answers ends in this time what it was asked for.
const DRAIN_NS: Nanos = 2_000_000_000;

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

/// A device with its superblock.
struct Candidate<D> {
    position: usize,
    device: D,
    found: Found,
}

impl<D> Candidate<D> {
    fn superblock(&self) -> &Superblock {
        &self.found.superblock
    }
}

/// A device with the label of a journal.
struct JournalCandidate<D> {
    position: usize,
    device: D,
    label: JournalLabel,
}

/// Members and journals.
type Read<D> = (Vec<Candidate<D>>, Vec<JournalCandidate<D>>);

/// Waits for requests that an assembly which was refused just now may have left on its drives. A drive that
/// hangs is refused after that.
async fn await_drained<D: BlockDevice>(devices: &[D], handle: &Handle) {
    let until = handle.now() + DRAIN_NS;
    while handle.now() < until && devices.iter().any(|device| device.under_way().count() > 0) {
        handle.sleep(REST_LOOK_NS).await;
    }
}

/// Reads all superblocks; refuses what is no part of one array.
async fn read_all<D: BlockDevice>(devices: Vec<D>) -> Result<Read<D>, MetadataError> {
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

/// Refuses a start without enough members, or with what may be an old half.
fn check_presence(
    array: &ArrayRecord,
    is_present: &dyn Fn(MemberIndex) -> bool,
    options: AssembleOptions,
) -> Result<(), MetadataError> {
    let geometry = &array.geometry;
    let (width, needed) = (geometry.width(), geometry.data_chunks());
    let is_missing = |member: &MemberIndex| array.is_in_service(*member) && !is_present(*member);
    let mut could_go_on = true;
    for group in geometry.groups() {
        let members = geometry.members_of(group);
        let usable = members.clone().filter(|&member| is_present(member)).count();
        let missing = plain(members.filter(is_missing));
        could_go_on &= missing.len() >= needed;
        if usable < needed {
            let group = group.0;
            return Err(MetadataError::TooFew { group, usable, width, needed, missing });
        }
    }
    if could_go_on && !options.degraded {
        let missing = plain(array.indexes().filter(is_missing));
        return Err(MetadataError::MayBeOld { missing });
    }
    Ok(())
}

/// The region map of a device. Blocks that cannot be read are zeroes, which are no page of a map: the other
/// members tell what is in them.
async fn read_map<D: BlockDevice>(device: &D, map: &RegionMap) -> Vec<u8> {
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
async fn read_map_blocks<D: BlockDevice>(device: &D, start: u64, count: u64) -> Vec<u8> {
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
    left_out: Vec<LeftOut>,
    /// Of those left out the ones whose places others have, and who do not say so.
    replaced: Vec<Candidate<D>>,
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
    // One that is being rebuilt does not count: nobody knows yet of which stripes it helps.
    let is_usable = |member| members.contains_key(&member) && array.is_in_service(member);
    check_presence(&array, &is_usable, options)?;
    let empty = RegionMap::new(array.uuid, array.geometry.member_sectors());
    let mut maps = Vec::new();
    for candidate in members.values() {
        maps.push(read_map(&candidate.device, &empty).await);
    }
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
    let lacks = |member: &MemberIndex| match members.contains_key(member) {
        true if array.is_in_service(*member) => false,
        true => lacking.iter().any(|region| to_resync.has(region)),
        false => true,
    };
    // Parity alone is made anew from data, of which none is computed without these members.
    let holds_data = |member: &MemberIndex| array.geometry.holds_data(*member);
    let missing = plain(array.indexes().filter(lacks).filter(holds_data));
    // Copies are whole blocks, old or new: none of them is computed from others.
    let is_surprise = !missing.is_empty() && !to_resync.is_empty() && !array.geometry.is_mirror();
    if is_surprise && !options.force {
        return Err(MetadataError::DirtyDegraded { regions: to_resync.count(), missing }.into());
    }
    let Joined { map, unequal, .. } = joined;
    Ok(Ready {
        array,
        told,
        members,
        left_out,
        replaced,
        map,
        unequal,
        to_resync,
        lacking,
        journal,
    })
}

/// Flushes all members; those that could not. After a mere kill what they say, their maps and their records
/// may be in volatile caches. The array goes on from that as it was read, and tells others of it. A power
/// cut must not take it away again, on one member or on all.
async fn flush_what_was_found<D: BlockDevice>(
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

/// Tells the newest event to members that are behind, or have the event in one copy only. The next
/// event would leave them two behind, and a cut in the midst of that event would have lost them.
async fn tell_those_behind<D: BlockDevice>(
    members: &BTreeMap<MemberIndex, Candidate<D>>,
    told: &ArrayRecord,
) {
    for (member, Candidate { device, found, .. }) in members {
        if found.superblock.array.event < told.event || found.is_one_copy {
            let device_sectors = device.limits().sectors;
            let superblock = Superblock { array: told.clone(), member: *member, device_sectors };
            // A member that does not take it is lost with the next event.
            let _ = write_superblock(device, &superblock).await;
        }
    }
}

/// Puts an array in service. The worker of a capacity expansion is still to be begun.
///
/// # Errors
/// When something that was given does not belong to the array, or when too little is there. When the
/// data may not be what was acknowledged, unless the options allow it. Nothing is written then.
pub(crate) async fn assemble<D: BlockDevice>(
    handle: &Handle,
    devices: Vec<Guarded<D>>,
    options: AssembleOptions,
    watch: &Rc<MemberWatch>,
) -> Result<(Rc<Generations<Guarded<D>>>, AssembleReport), ArrayError> {
    await_drained(&devices, watch.handle()).await;
    let ready = examine_all(devices, options).await?;
    let unflushed = flush_what_was_found(&ready.members).await;
    tell_those_behind(&ready.members, &ready.told).await;
    // The cache of a member may hold all that says that another one has the place.
    if unflushed.is_empty() {
        for Candidate { device, found, .. } in ready.replaced {
            evict(&device, found.superblock).await;
        }
    }
    let Ready { array, mut members, left_out, map, unequal, to_resync, lacking, .. } = ready;
    let own_journal = ready.journal;
    let is_one_copy = |it: &&Candidate<Guarded<D>>| it.found.is_one_copy;
    let label_copies_mended = members.values().filter(is_one_copy).map(|it| it.position).collect();
    let is_gone = |member: &MemberIndex| {
        let was_there = array.is_in_service(*member) || array.is_rebuilding(*member);
        was_there && !members.contains_key(member)
    };
    let now_lost = plain(array.indexes().filter(is_gone));
    let regions_to_resync = to_resync.count();
    let was_clean = array.usage == Usage::Clean;
    let journal = array.journal();
    let unflushed_map = journal.is_some() && !was_clean;
    let devices =
        array.indexes().map(|member| members.remove(&member).map(|it| it.device)).collect();
    let states = RegionStates::new(map, array.geometry.member_sectors(), to_resync, unflushed_map);
    let foundation = Foundation::of(&array, devices, states, watch);
    let generations = Generations::new(Generation::build(handle, foundation)?);
    hung::install(&generations);
    let parts = &generations.ground;
    parts.members.name(&array);
    parts.journal.placement().take_device(own_journal.journal, own_journal.is_lost);
    for member in unflushed {
        parts.members.lose_on_error_now(member, Err(IoError::Medium)).map_err(ArrayError::Io)?;
    }
    for (index, member) in parts.members.indexed() {
        if array.is_rebuilding(index)
            && let Ok(device) = member.device()
        {
            member.join(device, member.uuid(), lacking.clone());
        }
    }
    let journal = generations.start(&unequal, journal).await?;
    let report = AssembleReport {
        array: generations.ground.membership.record(),
        was_clean,
        left_out,
        now_lost,
        journal_left_out: own_journal.left_out,
        is_journal_lost: own_journal.is_lost,
        label_copies_mended,
        regions_to_resync,
        journal,
    };
    Ok((generations, report))
}
