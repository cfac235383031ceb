//! A parity row is added while the array serves: 5 becomes 6, 6 becomes 7.3, a mirror gets one more
//! copy.
//!
//! Nothing moves. The new shape has the same data and parities at the same places, and one member more
//! for each group. The new devices are wiped first. Then requests wait for a moment. When nothing is under
//! way the new shape takes over, with the new members as such that lack everything. The superblocks say so,
//! those of the new members first. From then on the change is a rebuild: at a rebuild's pace, region by
//! region, gone on with after a restart. A region counts its new parity row when that is filled.

use std::rc::Rc;

use voltier_block::DriveControl;

use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::metadata::MetadataError;
use crate::errors::replace::ReplaceError;
use crate::format::superblock::MEMBERS_MAX;
use crate::generation::{Generation, NextShape};
use crate::generations::Generations;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::MemberIndex;
use crate::members::label_copies::wipe_superblocks;
use crate::members::member::{Member, Missing};
use crate::stripe::ground::Ground;

/// A parity row, or a copy of a mirror, that is to be added on these devices.
pub(crate) struct ParityRow<'a, D> {
    pub(crate) array: &'a Rc<Generations<D>>,
    pub(crate) devices: Vec<Rc<D>>,
    pub(crate) uuids: &'a [[u8; 16]],
}

impl<D: DriveControl> ParityRow<'_, D> {
    /// Adds the row.
    ///
    /// # Errors
    /// When the array or a device does not suit: nothing has changed then. When a device fails while it
    /// is taken in.
    pub(crate) async fn add(self) -> Result<(), ArrayError> {
        self.check()?;
        let array = self.array;
        let _preparing = array.prepare().ok_or(GrowError::Growing)?;
        // Requests go on meanwhile: a device that does not answer holds nobody up.
        for (device, own) in self.devices.iter().enumerate() {
            let failed = |error| GrowError::Device { device, error: ReplaceError::Device(error) };
            wipe_superblocks(&**own).await.map_err(failed)?;
        }
        let gate = array.close().ok_or(GrowError::Growing)?;
        array.ground.membership.recorded().await.map_err(ArrayError::Io)?;
        gate.at_rest().await;
        // Much may have happened since it was looked at first, and nothing happens from here on.
        let geometry = self.check()?;
        let first = array.ground.members.len();
        let next = self.grown(geometry)?;
        gate.succeed(next).await.map_err(ArrayError::Io)?;
        array.tasks.rebuild.begin_if_wanted();
        let members = &array.ground.members;
        let mut added = members.indexes().skip(first);
        match added.find(|member| !members[*member].has_device()) {
            Some(MemberIndex(member)) => Err(GrowError::Lost { member }.into()),
            None => Ok(()),
        }
    }

    /// The shape with one more parity row on these devices, if the array can have it now.
    fn check(&self) -> Result<Geometry, ArrayError> {
        self.array.check_can_grow()?;
        let own = &self.array.ground.geometry;
        let level = own.level();
        let geometry = own.with_parity().map_err(|error| match error {
            Some(error) => ArrayError::from(error),
            None => GrowError::Level { level }.into(),
        })?;
        let members = geometry.member_count();
        if members > MEMBERS_MAX {
            return Err(MetadataError::Members { members }.into());
        }
        let (given, needed) = (self.devices.len(), own.group_count());
        if given != needed || self.uuids.len() != needed {
            return Err(GrowError::Devices { given, needed }.into());
        }
        self.array.check_undisturbed()?;
        for (device, (own, uuid)) in self.devices.iter().zip(self.uuids).enumerate() {
            self.array.check_pending_member(device, own, uuid)?;
            if self.uuids[..device].contains(uuid) {
                return Err(GrowError::Device { device, error: ReplaceError::Uuid }.into());
            }
        }
        Ok(geometry)
    }

    /// The array with a parity row more: these members lack everything. Nothing is under way.
    fn grown(&self, geometry: Geometry) -> Result<Generation<D>, ArrayError> {
        let mut added = Vec::new();
        for (device, uuid) in self.devices.iter().zip(self.uuids) {
            let member = Member::new(None);
            let Ground { members, bitmap, .. } = &self.array.ground;
            members.devices().join_new(device, *uuid);
            if let Some(lacking) = bitmap.lacking(false) {
                member.join(device.clone(), *uuid, Missing::new(lacking));
            }
            added.push(member);
        }
        let limits = self.array.limits.clone();
        self.array.next(NextShape { geometry, limits, added, ring: None, moving: None })
    }
}
