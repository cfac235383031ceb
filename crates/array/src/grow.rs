//! A row of redundancy is added while the array serves: 5 becomes 6, 6 becomes 7.3, a mirror gets one more
//! copy.
//!
//! Nothing moves. The new shape has the same data and parities at the same places, and one member more for
//! each group. For a moment requests wait: when nothing is under way the new shape takes over, with the
//! new members as such that lack everything, and the superblocks say so, those of the new members first.
//! From then on it is a rebuild: at its pace, region by region, gone on with after a restart. A region
//! counts its new row when it is filled.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, Limits};
use voltier_parity::Code;

use crate::array::{Array, Floor, Inner};
use crate::bitmap::write_intent::Bitmap;
use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::metadata::MetadataError;
use crate::errors::replace::ReplaceError;
use crate::format::journal_place::longest_record_bytes;
use crate::format::member_layout::{MemberLayout, SUPERBLOCK_BYTES};
use crate::format::superblock::MEMBERS_MAX;
use crate::geometry::chunks::Geometry;
use crate::journal::ring::Ring;
use crate::members::member::Member;
use crate::tasks::background::BackgroundTask;
use crate::tasks::reshape::Moving;

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
        if !self.membership.is_durable() {
            return Err(GrowError::Bare.into());
        }
        if self.background.is_closing() {
            return Err(ReplaceError::Stopped.into());
        }
        if self.moving.is_some() { Err(GrowError::Reshaping.into()) } else { Ok(()) }
    }

    /// Whether all members are there and nothing is being done to them.
    pub(crate) fn check_settled(&self) -> Result<(), ArrayError> {
        if !self.membership.is_durable() {
            return Err(GrowError::Bare.into());
        }
        let is_settled =
            |member: &Member<D>| member.is_online() && member.successor().borrow().is_none();
        if self.is_at_work(BackgroundTask::Scrub) {
            return Err(ReplaceError::ScrubRuns.into());
        }
        if !self.members.iter().all(is_settled) || self.is_at_work(BackgroundTask::Rebuild) {
            return Err(GrowError::Degraded.into());
        }
        let [.., regions] = self.bitmap.counts();
        if regions > 0 || self.resync.is_running.get() {
            return Err(GrowError::InDoubt { regions }.into());
        }
        if self.journal.placement().is_on_device() {
            return Err(GrowError::JournalDevice.into());
        }
        let has_failed = self.journal.check().is_err();
        if has_failed || self.stripes.has_any_half_written() {
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
            self.check_pending_member(device, own, uuid)?;
            if uuids[..device].contains(uuid) {
                return Err(GrowError::Device { device, error: ReplaceError::Uuid }.into());
            }
        }
        Ok(geometry)
    }

    pub(crate) fn check_pending_member(
        &self,
        device: usize,
        own: &Rc<D>,
        uuid: &[u8; 16],
    ) -> Result<(), GrowError> {
        let unsuited = |error| GrowError::Device { device, error };
        self.check_device(own, uuid).map_err(unsuited)?;
        let limits = own.limits();
        let has_journal = self.journal.is_in_service();
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
            if let Some(lacking) = self.bitmap.lacking(false) {
                member.join(device, *uuid, lacking);
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
        let members = Rc::new(self.members.moved(&geometry, added));
        let membership = self.membership.clone();
        let (consistency, marks) = (self.bitmap.consistency(), self.bitmap.hand_over());
        let bitmap =
            Bitmap::new(&self.handle, &geometry, consistency, &members, &membership, marks);
        let journal = self.journal.grown(&members, ring);
        Ok(Self::over(Floor {
            handle: self.handle.clone(),
            journal: Rc::new(journal),
            members,
            membership,
            bitmap: Rc::new(bitmap),
            merge_policy: self.merger.policy(),
            background: self.background.moved(),
            limits,
            moving,
            code: Some(code),
            geometry,
        }))
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
        self.0.membership.settled().await.map_err(ArrayError::Io)?;
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
