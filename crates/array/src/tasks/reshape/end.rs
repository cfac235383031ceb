//! How an array that has moved comes to have one shape again, and its new size.

use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoError, IoResult, Lba, Nanos, SectorRange};

use crate::array::{Inner, limits_of};
use crate::errors::ArrayError;
use crate::generations::Generations;
use crate::geometry::chunks::Stripe;
use crate::grow::NextShape;
use crate::members::at_once::together;
use crate::members::clear::Clear;
use crate::tasks::reshape::Moving;
use crate::tasks::reshape::worker::Step;

/// How often it looks whether all that was under way has ended.
const LOOK_NS: Nanos = 100_000;
/// How often it tries, when it was not let.
const WAIT_NS: Nanos = 1_000_000_000;

/// All is moved: what is behind it is made what was never written, then the superblocks have one shape.
pub(super) async fn end<D: BlockDevice>(
    generations: &Rc<Generations<D>>,
    moving: &Moving,
) -> IoResult<Step> {
    let inner: &Rc<Inner<D>> = generations;
    let wait = Step::WaitUntil(inner.handle.now() + WAIT_NS);
    let Some(gate) = generations.close() else { return Ok(wait) };
    for is_cleared in [false, true] {
        while !gate.is_at_rest() {
            if inner.background.is_closing() {
                return Ok(Step::End);
            }
            inner.handle.sleep(LOOK_NS).await;
        }
        if inner.reshape_waits_for().is_some() {
            return Ok(wait);
        }
        if !is_cleared {
            inner.clear_behind(moving).await?;
            // What is for rows of the old shape must not be redone any more.
            inner.journal.empty().await?;
        }
    }
    let next = inner.with_one_shape(moving).map_err(|_| IoError::Unsupported)?;
    let settled = gate.succeed(next).await;
    generations.members.health().tell();
    settled.map(|()| Step::End)
}

impl<D: BlockDevice> Inner<D> {
    /// Rows behind those that were moved have parity of the old shape, or none: they become zero, whole
    /// regions by being called never written.
    async fn clear_behind(self: &Rc<Self>, moving: &Moving) -> IoResult<()> {
        let row = moving.shapes().new_rows(moving.shapes().end());
        let start = Lba(row * self.geometry.chunk_sectors());
        if start.0 >= self.geometry.member_sectors() {
            return Ok(());
        }
        let region = self.bitmap.region_of(Stripe(row));
        let range = self.bitmap.region_range(region);
        let is_cut = range.start < start;
        if is_cut && self.bitmap.is_written(region) {
            let _mark = self.bitmap.enter(Stripe(row)).await?;
            let rest = SectorRange::new(start, range.end().0 - start.0);
            let clear = Clear::Zeroes(Durability::Cached);
            let members = 0..self.members.len();
            let clears = members.map(|member| self.members.clone().clear(member, rest, clear));
            let results = together(&self.handle, clears.collect()).await;
            results.into_iter().collect::<IoResult<()>>()?;
            self.membership.flush(&self.members).await?;
        }
        let first = if is_cut { region + 1 } else { region };
        self.bitmap.forget_written_from(first).await
    }

    fn with_one_shape(&self, moving: &Moving) -> Result<Self, ArrayError> {
        let geometry = moving.shapes().after.clone();
        let devices: Vec<Rc<D>> =
            self.members.iter().filter_map(|member| member.device().ok()).collect();
        let mut limits = limits_of(&geometry, devices.iter().map(|device| device.limits()));
        limits.volatile_cache &= !self.journal.is_in_service();
        self.next(NextShape { limits, geometry, added: Vec::new(), ring: None, moving: None })
    }
}
