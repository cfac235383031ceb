//! A member more for capacity: an array comes to have two shapes. The worker (`tasks::reshape`) does what
//! lies between, and `Generations` goes on with one shape when all has moved.

use std::rc::Rc;

use voltier_block::DriveControl;

use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::metadata::MetadataError;
use crate::errors::replace::ReplaceError;
use crate::format::reshape_record::ReshapeRecord;
use crate::format::superblock::MEMBERS_MAX;
use crate::generation::{Generation, NextShape};
use crate::generations::Generations;
use crate::geometry::numbers::MemberIndex;
use crate::geometry::shapes::Shapes;
use crate::journal::ring::Ring;
use crate::members::label_copies::wipe_superblocks;
use crate::members::member::Member;
use crate::tasks::reshape::Moving;

/// A capacity expansion that is to begin, on a device that holds nothing that is needed.
pub(crate) struct Expansion<'a, D> {
    pub(crate) array: &'a Rc<Generations<D>>,
    pub(crate) device: Rc<D>,
    pub(crate) uuid: [u8; 16],
}

impl<D: DriveControl> Expansion<'_, D> {
    /// Adds the member, and begins to move the data.
    ///
    /// # Errors
    /// When the array or the device does not suit: nothing has changed then. When the device fails while it
    /// is taken in.
    pub(crate) async fn begin(self) -> Result<(), ArrayError> {
        self.check()?;
        let array = self.array;
        let _preparing = array.prepare().ok_or(GrowError::Growing)?;
        let failed = |error| GrowError::Device { device: 0, error: ReplaceError::Device(error) };
        // Requests go on meanwhile: a device that does not answer holds nobody up.
        wipe_superblocks(&*self.device).await.map_err(failed)?;
        let gate = array.close().ok_or(GrowError::Growing)?;
        array.ground.membership.recorded().await.map_err(ArrayError::Io)?;
        gate.at_rest().await;
        let ring = array.ground.journal.make_first_ring(&self.device).await.map_err(failed)?;
        gate.at_rest().await;
        // Much may have happened since it was looked at first, and nothing happens from here on.
        let shapes = self.check()?;
        let member = MemberIndex(shapes.before.member_count());
        let next = self.with_two_shapes(shapes, ring)?;
        gate.succeed(next).await.map_err(ArrayError::Io)?;
        array.begin_reshape();
        let is_there = array.ground.members[member].has_device();
        if is_there { Ok(()) } else { Err(GrowError::Lost { member: member.0 }.into()) }
    }

    /// The shapes with one member more, if the array can have it now.
    fn check(&self) -> Result<Shapes, ArrayError> {
        let before = &self.array.ground.geometry;
        let level = before.level();
        self.array.check_can_grow()?;
        if self.array.ground.members.devices().have_checksums() {
            return Err(GrowError::Integrity.into());
        }
        let after = before.with_member().map_err(|error| match error {
            Some(error) => ArrayError::from(error),
            None => GrowError::FixedWidth { level }.into(),
        })?;
        let members = after.member_count();
        if members > MEMBERS_MAX {
            return Err(MetadataError::Members { members }.into());
        }
        let shapes = Shapes { before: before.clone(), after };
        if !shapes.has_room() {
            let (rows, section_rows) = (shapes.before.stripe_count(), shapes.section_rows());
            return Err(
                GrowError::TooShort { rows, needed: section_rows * (section_rows + 1) }.into()
            );
        }
        self.array.check_undisturbed()?;
        self.array.check_pending_member(0, &self.device, &self.uuid)?;
        Ok(shapes)
    }

    /// The same array with two shapes: nothing has moved, and there is one member more. Nothing is under way.
    fn with_two_shapes(
        &self,
        shapes: Shapes,
        ring: Option<Ring>,
    ) -> Result<Generation<D>, ArrayError> {
        let geometry = shapes.after.clone();
        let moving = Some(Rc::new(Moving::new(shapes, ReshapeRecord::default())?));
        let member = Member::new(None);
        member.begin(self.device.clone(), self.uuid);
        let (limits, added) = (self.array.limits.clone(), vec![member]);
        self.array.next(NextShape { geometry, limits, added, ring, moving })
    }
}
