//! An array with durable state from its start to its stop, and what can be told of it.

use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, IoResult, SECTOR_BYTES};

use crate::array::{Array, Inner};
use crate::errors::ArrayError;
use crate::errors::journal::JournalError;
use crate::format::consistency::Consistency;
use crate::format::journal_label::JournalRecord;
use crate::format::journal_place::JournalOptions;
use crate::format::superblock::{ArrayRecord, MemberState, Usage};
use crate::geometry::level::Level;
use crate::journal::replay::{JournalStart, ReplayReport};
use crate::members::counts::Counts;
use crate::members::health::MemberHealth;
use crate::tasks::rebuild::RebuildStatus;
use crate::tasks::reshape::ReshapeStatus;
use crate::tasks::scrub::ScrubStatus;

/// A member, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its uuid.
    pub uuid: [u8; 16],
    /// What it is to the array.
    pub state: MemberState,
    /// The event with which it came to be that.
    pub since_event: u64,
    /// Whether another device is being filled beside it, to take its place.
    pub is_being_copied: bool,
    /// How well its device does.
    pub health: MemberHealth,
}

/// What can be told of an array with durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayStatus {
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Its name.
    pub name: String,
    /// Its level.
    pub level: Level,
    /// What closes the write hole.
    pub consistency: Consistency,
    /// The chunk, in bytes.
    pub chunk_bytes: u64,
    /// The size of the volume, in bytes.
    pub bytes: u64,
    /// The event count.
    pub event: u64,
    /// Whether it is in use.
    pub usage: Usage,
    /// All members, in the order of their numbers.
    pub members: Vec<MemberStatus>,
    /// The device that has the journal, or had it and was given up; none when it is on the members.
    pub journal_device: Option<JournalRecord>,
    /// Whether members are missing, or do not have everything yet.
    pub is_degraded: bool,
    /// A region, in bytes of a member.
    pub region_bytes: u64,
    /// Regions of the array.
    pub regions: u64,
    /// Regions that were ever written.
    pub regions_written: u64,
    /// Regions marked as being written, or changed while a member is away.
    pub regions_dirty: u64,
    /// Regions whose parity is still to be made anew.
    pub regions_in_doubt: u64,
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

impl<D: BlockDevice> Inner<D> {
    /// Takes a new array into use, when all members have its map.
    pub(crate) async fn take_into_use(
        self: &Rc<Self>,
        journal: Option<JournalOptions>,
    ) -> Result<(), ArrayError> {
        let Some(durable) = self.membership.durable() else { return Ok(()) };
        if let Some(options) = journal {
            self.replay().run(options, JournalStart::Create).await?;
        }
        durable.set_usage(Usage::InUse);
        self.membership.settled().await.map_err(ArrayError::Io)?;
        // A new array without one of its members is not what was asked for.
        let is_journal_lost = self.journal.placement().record_now().is_some()
            && !self.journal.placement().is_on_device();
        if is_journal_lost {
            return Err(JournalError::Device(IoError::Gone).into());
        }
        if self.members.is_degraded() { Err(ArrayError::Io(IoError::Gone)) } else { Ok(()) }
    }

    /// Takes the array into use: makes the map the same on all members, says on all that it is in use, and
    /// who is not there, then brings the members to what the journal says.
    pub(crate) async fn start(
        self: &Rc<Self>,
        unequal: &[u64],
        journal: Option<JournalOptions>,
    ) -> Result<ReplayReport, ArrayError> {
        let Some(durable) = self.membership.durable() else { return Ok(ReplayReport::default()) };
        // A mark that only some members have would be gone with them, and what it speaks of with it.
        self.bitmap.write_blocks(unequal).await.map_err(ArrayError::Io)?;
        durable.set_usage(Usage::InUse);
        durable.must_store();
        self.membership.settled().await.map_err(ArrayError::Io)?;
        let report = match journal {
            Some(options) => self.replay().run(options, JournalStart::Replay).await?,
            None => ReplayReport::default(),
        };
        // Nothing else looks at its rows while they are neither in the one shape nor in the other.
        self.end_unit_between().await;
        self.bitmap.begin_rounds();
        self.begin_resync();
        self.begin_rebuild();
        Ok(report)
    }

    async fn stop(self: &Rc<Self>) -> IoResult<()> {
        self.end_background().await;
        let Some(durable) = self.membership.durable() else {
            return self.membership.flush(&self.members).await;
        };
        durable.close();
        self.resync.ended.until(|| !self.resync.is_running.get()).await;
        self.journal.empty().await?;
        self.membership.flush(&self.members).await?;
        // What is still in doubt must be so at the next start: then it is not called clean.
        if self.bitmap.next_in_doubt(0).is_none() {
            self.bitmap.clear_all_marks().await?;
            durable.set_usage(Usage::Clean);
            self.membership.settled().await?;
        }
        Ok(())
    }
}

impl<D: BlockDevice> Array<D> {
    /// Stops the array: everything is durable and nothing is in doubt at the next start. Changes fail
    /// from here on. Nothing may be under way.
    ///
    /// # Errors
    /// When a member does not take its last state: the array is then not called clean.
    pub async fn stop(&self) -> Result<(), ArrayError> {
        self.0.enter().await.stop().await.map_err(ArrayError::Io)
    }

    /// What the members say of the array.
    ///
    /// # Panics
    /// If it is a bare array.
    pub(crate) fn record(&self) -> ArrayRecord {
        self.0.membership.record()
    }

    /// What can be told of the array now; none of a bare one.
    pub fn status(&self) -> Option<ArrayStatus> {
        let durable = self.0.membership.durable()?;
        let record = durable.record();
        let [regions, regions_written, regions_dirty, regions_in_doubt] = self.0.bitmap.counts();
        let member = |(number, member): (usize, &crate::format::superblock::MemberRecord)| {
            let own = &self.0.members[number];
            MemberStatus {
                uuid: own.uuid(),
                state: own.state(member.state),
                since_event: member.since_event,
                is_being_copied: own.succeeding().is_some(),
                health: self.0.members.health_of(number),
            }
        };
        Some(ArrayStatus {
            uuid: record.uuid,
            level: record.geometry.level(),
            consistency: record.consistency,
            chunk_bytes: record.geometry.chunk_sectors() * SECTOR_BYTES,
            bytes: self.0.stripes.volume_sectors() * SECTOR_BYTES,
            event: record.event,
            usage: record.usage,
            members: record.members.iter().enumerate().map(member).collect(),
            journal_device: self.0.journal.placement().record_now(),
            is_degraded: self.0.members.is_degraded(),
            region_bytes: self.0.members.region_sectors() * SECTOR_BYTES,
            regions,
            regions_written,
            regions_dirty,
            regions_in_doubt,
            rebuild: self.rebuild_status(),
            scrub: self.scrub_status(),
            reshape: self.reshape_status(),
            spares: self.spare_count(),
            counts: self.counts(),
            name: record.name,
        })
    }
}
