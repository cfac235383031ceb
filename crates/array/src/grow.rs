//! A row of redundancy is added while the array serves: 5 becomes 6, 6 becomes 7.3, a mirror gets one more
//! copy.
//!
//! Nothing moves. The new shape has the same data and parities at the same places, and one member more for
//! each group. For a moment requests wait: when nothing is under way the new shape takes over, with the
//! new members as such that lack everything, and the superblocks say so, those of the new members first.
//! From then on it is a rebuild: at its pace, region by region, gone on with after a restart. A region
//! counts its new row when it is filled.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, Limits};
use voltier_parity::Code;

use crate::array::{Array, ArrayError, Inner};
use crate::background::BackgroundTask;
use crate::counts::Counters;
use crate::errors::MetadataError;
use crate::geometry::Geometry;
use crate::journal::longest_record_bytes;
use crate::journal::ring::Ring;
use crate::level::Level;
use crate::locks::StripeLocks;
use crate::losses::Losses;
use crate::member_layout::{MemberLayout, SUPERBLOCK_BYTES};
use crate::members::Member;
use crate::merge::Streams;
use crate::pace::Foreground;
use crate::replace::ReplaceError;
use crate::reshape::Moving;
use crate::superblock::MEMBERS_MAX;

/// Why an array does not grow: one line for the user. Devices are numbered from 1, as they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// It has no durable state.
    #[error("a bare array does not grow: make it anew")]
    Bare,
    /// The level cannot have one row more.
    #[error(
        "{level} cannot be given one more row: 5, 6, 7.3, N+M, 50 and 60 can, and 1 one more copy"
    )]
    Level {
        /// The level of the array.
        level: Level,
    },
    /// The level does not get room by one member more.
    #[error("{level} cannot be given a member for room: 5, 6, 7.3 and N+M can")]
    NoRoom {
        /// The level of the array.
        level: Level,
    },
    /// There is no room to move the first stripes.
    #[error("members of {rows} chunks are too small to be given one more: {needed} are needed")]
    TooShort {
        /// Chunks of a member.
        rows: u64,
        /// The least there must be.
        needed: u64,
    },
    /// It moves to more members.
    #[error("the array is being given a member for room: wait until that is through")]
    Reshaping,
    /// Not one device for each group.
    #[error("{given} devices given: one more row takes {needed}, one for each group")]
    Devices {
        /// How many were given.
        given: usize,
        /// The groups.
        needed: usize,
    },
    /// Members are missing, or do not have everything yet.
    #[error("members are missing or being filled: replace them, and wait for the rebuild, first")]
    Degraded,
    /// Parity is still made anew after a crash.
    #[error("the parity of {regions} regions is still being made anew: wait until it is")]
    InDoubt {
        /// The regions.
        regions: u64,
    },
    /// The journal is on a device of its own, whose ring is for transactions of the old width.
    #[error(
        "the journal is on a device: put it back on the members, grow, then put it there again"
    )]
    JournalDevice,
    /// Writes have failed, and are not settled.
    #[error("writes to the array have failed: look at its members, and assemble it again, first")]
    Failed,
    /// It is growing at this moment.
    #[error("the array is being grown already: wait for it")]
    Growing,
    /// A device does not suit.
    #[error("device {}: {error}", .device + 1)]
    Device {
        /// The position of the device, from 0.
        device: usize,
        /// Why.
        error: ReplaceError,
    },
    /// A device has a cache that forgets, and clients were told that there is none.
    #[error("device {}: it has a volatile cache, and the others have none: take another", .device + 1)]
    VolatileCache {
        /// The position of the device, from 0.
        device: usize,
    },
    /// A device failed when the array had grown.
    #[error("the array has grown, and member {member} of it has failed at once: replace it")]
    Lost {
        /// The new member.
        member: usize,
    },
}

/// What takes over from an array whose shape changes.
pub(crate) struct NextShape<D> {
    pub(crate) geometry: Geometry,
    pub(crate) limits: Limits,
    /// Members that come.
    pub(crate) added: Vec<Member<D>>,
    /// The ring of the one that comes, if it has one already.
    pub(crate) ring: Option<Ring>,
    /// Set if it has two shapes from now on.
    pub(crate) moving: Option<Rc<Moving>>,
}

impl<D: BlockDevice> Inner<D> {
    /// Whether it is an array that can change its shape, at any time.
    pub(crate) fn check_can_grow(&self) -> Result<(), ArrayError> {
        if self.durable.is_none() {
            return Err(GrowError::Bare.into());
        }
        if self.background.is_closing() {
            return Err(ReplaceError::Stopped.into());
        }
        if self.moving.is_some() { Err(GrowError::Reshaping.into()) } else { Ok(()) }
    }

    /// Whether all members are there and nothing is being done to them.
    pub(crate) fn check_settled(&self) -> Result<(), ArrayError> {
        let durable = self.durable.as_ref().ok_or(GrowError::Bare)?;
        let is_settled =
            |member: &Member<D>| member.is_online() && member.successor().borrow().is_none();
        if self.is_at_work(BackgroundTask::Scrub) {
            return Err(ReplaceError::ScrubRuns.into());
        }
        if !self.members.iter().all(is_settled) || self.is_at_work(BackgroundTask::Rebuild) {
            return Err(GrowError::Degraded.into());
        }
        let [.., regions] = durable.marks.counts();
        if regions > 0 || durable.is_resyncing.get() {
            return Err(GrowError::InDoubt { regions }.into());
        }
        if self.journal_device.borrow().is_some() {
            return Err(GrowError::JournalDevice.into());
        }
        let has_failed = self.journal.get().is_some_and(|journal| journal.check().is_err());
        if has_failed || !self.half_written.borrow().is_empty() {
            return Err(GrowError::Failed.into());
        }
        Ok(())
    }

    /// The shape with one more row on these devices, if the array can have it now.
    fn check_growth(&self, devices: &[Rc<D>], uuids: &[[u8; 16]]) -> Result<Geometry, ArrayError> {
        self.check_can_grow()?;
        let level = self.geometry.level();
        let geometry = self.geometry.with_row().map_err(|error| match error {
            Some(error) => ArrayError::from(error),
            None => GrowError::Level { level }.into(),
        })?;
        let members = geometry.member_count();
        if members > MEMBERS_MAX {
            return Err(MetadataError::Members { members }.into());
        }
        let (given, needed) = (devices.len(), self.geometry.group_count());
        if given != needed || uuids.len() != needed {
            return Err(GrowError::Devices { given, needed }.into());
        }
        self.check_settled()?;
        for (device, (own, uuid)) in devices.iter().zip(uuids).enumerate() {
            self.check_newcomer(device, own, uuid)?;
            if uuids[..device].contains(uuid) {
                return Err(GrowError::Device { device, error: ReplaceError::Uuid }.into());
            }
        }
        Ok(geometry)
    }

    pub(crate) fn check_newcomer(
        &self,
        device: usize,
        own: &Rc<D>,
        uuid: &[u8; 16],
    ) -> Result<(), GrowError> {
        let unsuited = |error| GrowError::Device { device, error };
        self.check_device(own, uuid).map_err(unsuited)?;
        let limits = own.limits();
        let has_journal = self.journal.get().is_some();
        let bytes = limits.max_transfer_bytes;
        if has_journal && u64::from(bytes) < longest_record_bytes(&self.geometry) {
            return Err(unsuited(ReplaceError::Transfer { bytes }));
        }
        if limits.volatile_cache && !self.limits.volatile_cache && !has_journal {
            return Err(GrowError::VolatileCache { device });
        }
        Ok(())
    }

    /// The array with a row more: these members lack everything. Nothing is under way.
    fn grown(
        &self,
        geometry: Geometry,
        devices: Vec<Rc<D>>,
        uuids: &[[u8; 16]],
    ) -> Result<Self, ArrayError> {
        let mut added = Vec::new();
        for (device, uuid) in devices.into_iter().zip(uuids) {
            let member = Member::new(None);
            if let Some(durable) = &self.durable {
                member.join(device, *uuid, durable.marks.lacking(false));
            }
            added.push(member);
        }
        let limits = self.limits.clone();
        self.next(NextShape { geometry, limits, added, ring: None, moving: None })
    }

    /// The array in its new shape: it takes over all that this one has. Nothing is under way.
    pub(crate) fn next(&self, next: NextShape<D>) -> Result<Self, ArrayError> {
        let NextShape { geometry, limits, added, ring, moving } = next;
        let code = Code::new(geometry.data_chunks(), geometry.parity_chunks())?;
        let durable = self.durable.clone();
        let mut members: Vec<Member<D>> = self.members.iter().map(Member::moved).collect();
        members.extend(added);
        if let Some(durable) = &durable {
            durable.marks.leave_rounds();
        }
        let journal = OnceCell::new();
        if let Some(own) = self.journal.get() {
            let _ = journal.set(own.grown(geometry.member_count(), ring));
        }
        Ok(Self {
            handle: self.handle.clone(),
            members,
            locks: StripeLocks::default(),
            counters: Counters::of(self.counters.get()),
            streams: Streams::new(self.streams.policy()),
            consistency: self.consistency,
            data_start: self.data_start,
            durable,
            limits,
            foreground: Foreground::default(),
            background: self.background.moved(&geometry),
            losses: Losses::default(),
            journal,
            journal_device: RefCell::default(),
            half_written: RefCell::default(),
            is_superseded: Cell::new(false),
            watch: self.watch.moved(),
            code: Some(code),
            decoders: RefCell::default(),
            moving,
            geometry,
        })
    }
}

/// Overwrites what a device says it is, whatever that was, and sees whether it takes it.
pub(crate) async fn wipe<D: BlockDevice>(device: &D) -> Result<(), IoError> {
    for at in MemberLayout::superblock_lbas(device.limits().sectors) {
        let zeroes = Buf::zeroed(SUPERBLOCK_BYTES as usize).freeze();
        device.write(at, zeroes.into(), Durability::Durable).await?;
    }
    Ok(())
}

impl<D: BlockDevice> Array<D> {
    /// Adds a row of parity, or a copy to a mirror, on devices that hold nothing that is needed: one for
    /// each group, with a new uuid each. The level is another one then ([`Geometry::with_row`]); what is
    /// there stays where it is, and so does the size.
    ///
    /// Requests wait for a moment. When it returns, the array has its new shape, durably, and a rebuild
    /// fills the new members; until it is through they count as missing. To be waited for to its end.
    ///
    /// # Errors
    /// When the array or a device does not suit: nothing has changed then. When a device fails while it
    /// is taken in.
    pub async fn grow(&self, devices: Vec<D>, uuids: &[[u8; 16]]) -> Result<(), ArrayError> {
        let devices: Vec<Rc<D>> = devices.into_iter().map(Rc::new).collect();
        self.0.check_growth(&devices, uuids)?;
        let gate = self.0.close().ok_or(GrowError::Growing)?;
        for (device, own) in devices.iter().enumerate() {
            let failed = |error| GrowError::Device { device, error: ReplaceError::Device(error) };
            wipe(&**own).await.map_err(failed)?;
        }
        self.0.settled().await.map_err(ArrayError::Io)?;
        gate.at_rest().await;
        // Much may have happened since it was looked at first, and nothing happens from here on.
        let geometry = self.0.check_growth(&devices, uuids)?;
        let first = self.0.members.len();
        let grown = self.0.grown(geometry, devices, uuids)?;
        gate.succeed(grown).await.map_err(ArrayError::Io)?;
        let inner: &Rc<Inner<D>> = &self.0;
        inner.begin_rebuild();
        let mut added = first..inner.members.len();
        match added.find(|member| !inner.members[*member].has_device()) {
            Some(member) => Err(GrowError::Lost { member }.into()),
            None => Ok(()),
        }
    }
}
