//! Assembling an array from its members, given in any order. An examination judges the devices
//! first, and writes nothing ([`examine`](crate::examine)). Then the array is put together and serves.

use std::rc::Rc;

use voltier_block::DriveControl;
use voltier_deadline::Guarded;
use voltier_ring::Handle;

use crate::bitmap::region_states::RegionStates;
use crate::candidates::{Candidate, await_drained};
use crate::errors::ArrayError;
use crate::examine::{AssembleOptions, JournalLeftOut, LeftOut, Ready, examine_all, plain};
use crate::format::superblock::{ArrayRecord, Superblock, Usage};
use crate::foundation::Foundation;
use crate::generation::Generation;
use crate::generations::Generations;
use crate::geometry::numbers::MemberIndex;
use crate::journal::replay::ReplayReport;
use crate::members::label_copies::{evict, write_superblock};
use crate::members::member::Missing;
use crate::members::member_set::MemberSet;
use crate::members::member_watch::MemberWatch;
use crate::{hung, recovery};

/// The findings of an assembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembleReport {
    /// The array, as it is now.
    pub array: ArrayRecord,
    /// Whether the array had been stopped.
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

/// Tells the newest event to members that are behind. The next event would leave them two behind, and a cut
/// in the midst of that event would have lost them.
async fn tell_those_behind<D: DriveControl>(
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
pub(crate) async fn assemble<D: DriveControl>(
    handle: &Handle,
    devices: Vec<Guarded<D>>,
    options: AssembleOptions,
    is_read_only: bool,
    watch: &Rc<MemberWatch>,
) -> Result<(Rc<Generations<Guarded<D>>>, AssembleReport), ArrayError> {
    watch.release_late();
    await_drained(&devices, watch.handle()).await;
    let mut ready = examine_all(devices, options).await?;
    let report = report_of(&ready);
    let generations = put_together(handle, &mut ready, is_read_only, watch)?;
    let silent = hung::install_for_start(&generations);
    let started = begin(&generations, ready).await;
    let journal = started.map_err(|error| match silent.take() {
        members if members.is_empty() => error,
        members => ArrayError::Silent { members },
    })?;
    hung::install(&generations);
    recovery::install(&generations);
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
fn put_together<D: DriveControl>(
    handle: &Handle,
    ready: &mut Ready<Guarded<D>>,
    is_read_only: bool,
    watch: &Rc<MemberWatch>,
) -> Result<Rc<Generations<Guarded<D>>>, ArrayError> {
    let array = &ready.array;
    let unflushed_map = array.journal().is_some() && array.usage != Usage::Clean;
    let (map, to_resync) = (ready.map.clone(), ready.to_resync.clone());
    let states = RegionStates::new(map, array.geometry.member_sectors(), to_resync, unflushed_map);
    let devices =
        array.indexes().map(|member| ready.members.remove(&member).map(|it| it.device)).collect();
    let foundation = Foundation { is_read_only, ..Foundation::of(array, devices, states, watch) };
    let generations = Generations::new(handle, Generation::build(handle, foundation)?);
    let parts = &generations.ground;
    parts.members.name(array);
    for (index, member) in parts.members.indexed() {
        let Ok(device) = member.device() else { continue };
        parts.members.devices().join(&device, member.uuid(), || {
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
async fn begin<D: DriveControl>(
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
