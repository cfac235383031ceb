//! The state of an array, as it is told.

use voltier_block::{DriveControl, Figures, IoError, SECTOR_BYTES};

use crate::format::consistency::Consistency;
use crate::format::integrity::Integrity;
use crate::format::superblock::{JournalDeviceRecord, MemberState, Usage};
use crate::generation::Generation;
use crate::geometry::level::Level;
use crate::geometry::numbers::MemberIndex;
use crate::members::counts::Counts;
use crate::members::health::MemberHealth;
use crate::stripe::ground::Ground;
use crate::tasks::rebuild::RebuildStatus;
use crate::tasks::reshape::ReshapeStatus;
use crate::tasks::scrub::ScrubStatus;

/// A member, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The uuid of the member.
    pub uuid: [u8; 16],
    /// The state of the member.
    pub state: MemberState,
    /// The event with which the member came to that state.
    pub since_event: u64,
    /// Whether another device is being filled beside it, to take its place.
    pub has_successor: bool,
    /// How well its device does.
    pub health: MemberHealth,
}

/// The state of an array that has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayStatus {
    /// The uuid of the array.
    pub uuid: [u8; 16],
    /// The name.
    pub name: String,
    /// The level.
    pub level: Level,
    /// The way in which the write hole is closed.
    pub consistency: Consistency,
    /// The checksums that the members keep.
    pub integrity: Integrity,
    /// The chunk, in bytes.
    pub chunk_bytes: u64,
    /// The size of the volume, in bytes.
    pub bytes: u64,
    /// The event count.
    pub event: u64,
    /// Whether the array is in use.
    pub usage: Usage,
    /// All members, in the order of their numbers.
    pub members: Vec<MemberStatus>,
    /// The device that has the journal, or had it and was given up; none when it is on the members.
    pub journal_device: Option<JournalDeviceRecord>,
    /// Whether members are missing, or do not have everything yet.
    pub is_degraded: bool,
    /// Whether members do not answer and none of them is given up: requests wait for them.
    pub is_waiting: bool,
    /// Why the array takes no changes any more; it tries by itself whether it can again.
    pub failure: Option<IoError>,
    /// A region, in bytes of a member.
    pub region_bytes: u64,
    /// Regions of the array.
    pub regions: u64,
    /// Regions that were ever written.
    pub regions_written: u64,
    /// Dirty regions: being written, or changed while a member is away.
    pub regions_dirty: u64,
    /// Regions whose parity is still to be made anew.
    pub regions_to_resync: u64,
    /// How far the rebuild is.
    pub rebuild: RebuildStatus,
    /// The scrub that is running, or the last one.
    pub scrub: ScrubStatus,
    /// How far the move to more members is; none if there is none.
    pub reshape: Option<ReshapeStatus>,
    /// Spares that wait.
    pub spares: usize,
    /// The counters.
    pub counts: Counts,
}

/// The state of an array now; none of a bare one.
pub(crate) fn status_of<D: DriveControl>(generation: &Generation<D>) -> Option<ArrayStatus> {
    let Generation { ground, stripes, tasks, .. } = generation;
    let Ground { members, membership, bitmap, journal, .. } = ground;
    let record = membership.durable()?.record();
    let [regions, regions_written, regions_dirty, regions_to_resync] = bitmap.counts();
    let member = |index: MemberIndex| {
        let (member, own) = (record[index], &members[index]);
        let mut health = members.health_of(index);
        health.counts.add(&members.checksum_counts(index));
        health.counts.undrained_requests = members.watch().left_by(index) as u64;
        MemberStatus {
            uuid: own.uuid(),
            state: own.state(member.state),
            since_event: member.since_event,
            has_successor: own.has_successor(),
            health,
        }
    };
    Some(ArrayStatus {
        uuid: record.uuid,
        level: record.geometry.level(),
        consistency: record.consistency,
        integrity: record.places.integrity(),
        chunk_bytes: record.geometry.chunk_sectors() * SECTOR_BYTES,
        bytes: stripes.volume_sectors() * SECTOR_BYTES,
        event: record.event,
        usage: record.usage,
        members: record.indexes().map(member).collect(),
        journal_device: journal.placement().record_now(),
        is_degraded: members.is_degraded(),
        is_waiting: members.watch().is_waiting(),
        failure: members.check_groups().err().or(generation.failure()),
        region_bytes: members.regions().region_sectors() * SECTOR_BYTES,
        regions,
        regions_written,
        regions_dirty,
        regions_to_resync,
        rebuild: tasks.rebuild_status(),
        scrub: tasks.scrub_status(),
        reshape: tasks.reshape_status(),
        spares: tasks.replacements.spare_count(),
        counts: members.counters().get(),
        name: record.name,
    })
}
