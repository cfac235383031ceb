//! How an array comes to have two shapes: nothing has moved, and there is one member more.

use std::rc::Rc;

use voltier_block::BlockDevice;

use crate::array::{Array, Inner};
use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::metadata::MetadataError;
use crate::errors::replace::ReplaceError;
use crate::format::reshape_record::ReshapeRecord;
use crate::format::superblock::MEMBERS_MAX;
use crate::geometry::shapes::Shapes;
use crate::grow::{NextShape, wipe};
use crate::journal::ring::Ring;
use crate::members::member::Member;
use crate::tasks::reshape::Moving;
use crate::tasks::reshape::worker::begin_reshape;

impl<D: BlockDevice> Inner<D> {
    /// The shapes with one member more, if the array can have it now.
    fn check_capacity(&self, device: &Rc<D>, uuid: &[u8; 16]) -> Result<Shapes, ArrayError> {
        let level = self.geometry.level();
        self.check_can_grow()?;
        let after = self.geometry.with_member().map_err(|error| match error {
            Some(error) => ArrayError::from(error),
            None => GrowError::NoRoom { level }.into(),
        })?;
        let members = after.member_count();
        if members > MEMBERS_MAX {
            return Err(MetadataError::Members { members }.into());
        }
        let shapes = Shapes { before: self.geometry.clone(), after };
        if !shapes.has_room() {
            let (rows, unit_rows) = (shapes.before.stripe_count(), shapes.unit_rows());
            return Err(GrowError::TooShort { rows, needed: unit_rows * (unit_rows + 1) }.into());
        }
        self.check_settled()?;
        self.check_pending_member(0, device, uuid)?;
        Ok(shapes)
    }

    /// The same array with two shapes. Nothing is under way.
    fn with_two_shapes(
        &self,
        shapes: Shapes,
        device: Rc<D>,
        uuid: [u8; 16],
        ring: Option<Ring>,
    ) -> Result<Self, ArrayError> {
        let geometry = shapes.after.clone();
        let moving = Rc::new(Moving::new(shapes, ReshapeRecord::default())?);
        let member = Member::new(None);
        member.begin(device, uuid);
        self.next(NextShape {
            limits: self.limits.clone(),
            geometry,
            added: vec![member],
            ring,
            moving: Some(moving),
        })
    }
}

impl<D: BlockDevice> Array<D> {
    /// Adds a member for room, on a device that holds nothing that is needed, with a new uuid. Stripes
    /// become one chunk of data wider (`with_member`): all data move, in the background, and
    /// requests go on. The size is what it was until the last of them has; then it is the new one.
    ///
    /// When it returns, the array has begun, durably; it goes on after a restart. To be waited for to its
    /// end.
    ///
    /// # Errors
    /// When the array or the device does not suit: nothing has changed then. When the device fails while it
    /// is taken in.
    pub async fn grow_capacity(&self, device: D, uuid: [u8; 16]) -> Result<(), ArrayError> {
        let device = Rc::new(device);
        self.0.check_capacity(&device, &uuid)?;
        let gate = self.0.close().ok_or(GrowError::Growing)?;
        let failed = |error| GrowError::Device { device: 0, error: ReplaceError::Device(error) };
        wipe(&*device).await.map_err(failed)?;
        self.0.membership.settled().await.map_err(ArrayError::Io)?;
        gate.at_rest().await;
        let ring = self.0.journal.make_first_ring(&device).await.map_err(failed)?;
        gate.at_rest().await;
        // Much may have happened since it was looked at first, and nothing happens from here on.
        let shapes = self.0.check_capacity(&device, &uuid)?;
        let member = shapes.before.member_count();
        let next = self.0.with_two_shapes(shapes, device, uuid, ring)?;
        gate.succeed(next).await.map_err(ArrayError::Io)?;
        begin_reshape(&self.0);
        let is_there = self.0.members[member].has_device();
        if is_there { Ok(()) } else { Err(GrowError::Lost { member }.into()) }
    }
}
