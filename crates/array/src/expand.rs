//! How an array comes to have two shapes during a capacity expansion, and one again. The
//! worker (`tasks::reshape`) does what lies between.

use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, IoResult, Nanos};

use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::metadata::MetadataError;
use crate::errors::replace::ReplaceError;
use crate::format::reshape_record::ReshapeRecord;
use crate::format::superblock::MEMBERS_MAX;
use crate::generation::{Generation, NextShape, limits_of};
use crate::generations::Generations;
use crate::geometry::numbers::MemberIndex;
use crate::geometry::shapes::Shapes;
use crate::grow::{check_can_grow, check_pending_member, check_undisturbed, wipe};
use crate::journal::ledger::Ring;
use crate::members::member::Member;
use crate::tasks::background::REST_LOOK_NS;
use crate::tasks::reshape::Moving;
use crate::tasks::reshape::worker::{Reshape, Step};

/// How often a move tries to end, when it was not let.
const WAIT_NS: Nanos = 1_000_000_000;

/// The shapes with one member more, if the array can have it now.
fn check_capacity<D: BlockDevice>(
    array: &Generation<D>,
    device: &Rc<D>,
    uuid: &[u8; 16],
) -> Result<Shapes, ArrayError> {
    let before = &array.ground.geometry;
    let level = before.level();
    check_can_grow(array)?;
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
        let (rows, unit_rows) = (shapes.before.stripe_count(), shapes.unit_rows());
        return Err(GrowError::TooShort { rows, needed: unit_rows * (unit_rows + 1) }.into());
    }
    check_undisturbed(array)?;
    check_pending_member(array, 0, device, uuid)?;
    Ok(shapes)
}

/// The same array with two shapes: nothing has moved, and there is one member more. Nothing is under way.
fn with_two_shapes<D: BlockDevice>(
    array: &Generation<D>,
    shapes: Shapes,
    device: Rc<D>,
    uuid: [u8; 16],
    ring: Option<Ring>,
) -> Result<Generation<D>, ArrayError> {
    let geometry = shapes.after.clone();
    let moving = Rc::new(Moving::new(shapes, ReshapeRecord::default())?);
    let member = Member::new(None);
    member.begin(device, uuid);
    let limits = array.limits.clone();
    array.next(NextShape { geometry, limits, added: vec![member], ring, moving: Some(moving) })
}

/// Adds a member for capacity, on a device that holds nothing that is needed, and begins to move the data.
///
/// # Errors
/// When the array or the device does not suit: nothing has changed then. When the device fails while it
/// is taken in.
pub(crate) async fn add_capacity<D: BlockDevice>(
    array: &Rc<Generations<D>>,
    device: Rc<D>,
    uuid: [u8; 16],
) -> Result<(), ArrayError> {
    check_capacity(array, &device, &uuid)?;
    let gate = array.close().ok_or(GrowError::Growing)?;
    let failed = |error| GrowError::Device { device: 0, error: ReplaceError::Device(error) };
    wipe(&*device).await.map_err(failed)?;
    array.ground.membership.recorded().await.map_err(ArrayError::Io)?;
    gate.at_rest().await;
    let ring = array.ground.journal.make_first_ring(&device).await.map_err(failed)?;
    gate.at_rest().await;
    // Much may have happened since it was looked at first, and nothing happens from here on.
    let shapes = check_capacity(array, &device, &uuid)?;
    let member = MemberIndex(shapes.before.member_count());
    let next = with_two_shapes(array, shapes, device, uuid, ring)?;
    gate.succeed(next).await.map_err(ArrayError::Io)?;
    begin_reshape(array);
    let is_there = array.ground.members[member].has_device();
    if is_there { Ok(()) } else { Err(GrowError::Lost { member: member.0 }.into()) }
}

/// Starts the worker of an array that has two shapes, unless it goes on already.
pub(crate) fn begin_reshape<D: BlockDevice>(array: &Rc<Generations<D>>) {
    let Some(reshape) = &array.tasks.reshape else { return };
    let array = Rc::downgrade(array);
    reshape.begin(async move || match array.upgrade() {
        Some(array) => end(&array).await,
        None => Ok(Step::End),
    });
}

/// All is moved: what is behind it is made what was never written, then the superblocks have one shape.
async fn end<D: BlockDevice>(array: &Rc<Generations<D>>) -> IoResult<Step> {
    let two: &Generation<D> = array;
    let Some(reshape) = &two.tasks.reshape else { return Ok(Step::End) };
    let wait = Step::WaitUntil(two.ground.handle.now() + WAIT_NS);
    let Some(gate) = array.close() else { return Ok(wait) };
    for is_cleared in [false, true] {
        while !gate.is_at_rest() {
            if two.tasks.is_closing() {
                return Ok(Step::End);
            }
            two.ground.handle.sleep(REST_LOOK_NS).await;
        }
        if reshape.waits_for().is_some() {
            return Ok(wait);
        }
        if !is_cleared {
            reshape.clear_behind().await?;
            // Transactions for rows of the old shape must not be redone any more.
            two.ground.journal.empty().await?;
        }
    }
    let one = with_one_shape(two, reshape).map_err(|_| IoError::Unsupported)?;
    let recorded = gate.succeed(one).await;
    array.ground.members.health().tell();
    recorded.map(|()| Step::End)
}

/// The array with the new shape alone. Nothing is under way.
fn with_one_shape<D: BlockDevice>(
    array: &Generation<D>,
    reshape: &Reshape<D>,
) -> Result<Generation<D>, ArrayError> {
    let geometry = reshape.moving().shapes().after.clone();
    let devices: Vec<Rc<D>> =
        array.ground.members.iter().filter_map(|member| member.device().ok()).collect();
    let mut limits = limits_of(&geometry, devices.iter().map(|device| device.limits()));
    limits.volatile_cache &= !array.ground.journal.is_in_service();
    array.next(NextShape { limits, geometry, added: Vec::new(), ring: None, moving: None })
}
