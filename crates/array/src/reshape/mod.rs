//! A member for room: stripes get wider while the array serves. `docs/adr/0022-members-for-room.md` has
//! the protocol and why it holds.
//!
//! - `shapes`: what is where while there are two shapes. Pure.
//! - `fence`: requests and what is being moved keep out of each other's way.
//! - `mover`: moves windows, and raises the position.
//! - `rows`: rows of the old shape become rows of the new one.
//! - `staging`: the first units lie over what they are moved to, and are kept elsewhere meanwhile.
//! - `begin`: how an array comes to have two shapes, `end`: and one again.

pub(crate) mod mover;

mod begin;
mod end;
mod fence;
mod rows;
pub(crate) mod shapes;
mod staging;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Payload, SECTOR_BYTES, SectorRange,
};
use voltier_parity::{Code, CodeError};
use voltier_ring::Signal;

use crate::array::{Array, Inner};
use crate::background::BackgroundTask;
use crate::canary::{self, Canary};
use crate::geometry::{Geometry, Part, Stripe};
use crate::pace::{Pacer, Progress};
use crate::write::zeroes;
use fence::Fence;
use shapes::Shapes;

/// Where a move is, as all members say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshapeRecord {
    /// Units that have the new shape.
    pub position: u64,
    /// Of the chunks of the next unit so many sectors have it too: above zero after a crash alone.
    pub moved_sectors: u64,
    /// So many sectors behind those are kept on all members for the case of a crash; none if 0.
    pub staged_sectors: u64,
    /// Every transaction of the journal below this is in place, and may be for a shape that is gone.
    pub settled_below: u64,
}

impl ReshapeRecord {
    /// Whether a unit has neither the one shape nor the other.
    pub(crate) const fn is_between(&self) -> bool {
        self.moved_sectors > 0 || self.staged_sectors > 0
    }

    /// Whether an array that comes to have these shapes can be there.
    pub(crate) fn is_possible(&self, shapes: &Shapes) -> bool {
        let chunk_sectors = shapes.before.chunk_sectors();
        let Some(sectors) = self.moved_sectors.checked_add(self.staged_sectors) else {
            return false;
        };
        let is_in_chunk = self.moved_sectors < chunk_sectors && sectors <= chunk_sectors;
        let are_blocks = (self.moved_sectors | self.staged_sectors).is_multiple_of(8);
        // Only the first ones are moved over themselves.
        let is_over_itself = self.position < shapes.end().min(shapes.unit_rows());
        self.position <= shapes.end()
            && is_in_chunk
            && are_blocks
            && (is_over_itself || !self.is_between())
            && shapes.has_room()
    }
}

/// What a move waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReshapeWait {
    /// Members are missing or being filled.
    Members,
    /// Parity is being made anew after a crash.
    Resync,
    /// Writes have failed that are not settled.
    FailedWrites,
}

/// A move, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReshapeStatus {
    /// How far it is, in bytes of the volume.
    pub progress: Progress,
    /// Members before it.
    pub from_members: usize,
    /// And after it.
    pub to_members: usize,
    /// The size of the volume after it, in bytes.
    pub bytes_after: u64,
    /// What it waits for; none while it goes on.
    pub waits_for: Option<ReshapeWait>,
    /// Why it did not go on when it tried last.
    pub last_error: Option<IoError>,
}

/// An array that has two shapes.
pub(crate) struct Moving {
    pub(crate) shapes: Shapes,
    /// The code of the old one.
    code: Code,
    /// Units that requests find in the new one.
    position: Cell<u64>,
    /// What the members are to say.
    record: Cell<ReshapeRecord>,
    fence: Rc<Fence>,
    pacer: Pacer,
    is_running: Cell<bool>,
    /// Not while it rests.
    is_stepping: Cell<bool>,
    ended: Signal,
    waits_for: Cell<Option<ReshapeWait>>,
    last_error: Cell<Option<IoError>>,
}

impl Moving {
    /// # Errors
    /// When there is no code for the old shape.
    pub(crate) fn new(shapes: Shapes, record: ReshapeRecord) -> Result<Self, CodeError> {
        let code = Code::new(shapes.before.data_chunks(), shapes.before.parity_chunks())?;
        Ok(Self {
            code,
            position: Cell::new(record.position),
            record: Cell::new(record),
            fence: Rc::default(),
            pacer: Pacer::default(),
            is_running: Cell::new(false),
            is_stepping: Cell::new(false),
            ended: Signal::new(),
            waits_for: Cell::new(None),
            last_error: Cell::new(None),
            shapes,
        })
    }

    pub(crate) fn record(&self) -> ReshapeRecord {
        self.record.get()
    }

    /// Waits until it rests; it does not go on in an array that is being stopped.
    pub(crate) async fn rested(&self) {
        self.ended.until(|| !self.is_stepping.get()).await;
    }

    /// Whether a row holds nothing, or is of a unit that has neither shape.
    fn is_idle_row(&self, row: u64) -> bool {
        let position = self.position.get();
        let next = if self.record.get().is_between() { position + 1 } else { position };
        (self.shapes.new_rows(position)..self.shapes.old_rows(next)).contains(&row)
    }
}

impl<D> Inner<D> {
    /// The shape of a stripe: of one that holds nothing it does not matter.
    pub(crate) fn shape(&self, stripe: Stripe) -> &Geometry {
        let Some(moving) = &self.moving else { return &self.geometry };
        let shape = moving.shapes.of_row(moving.position.get(), stripe.0);
        shape.unwrap_or(&moving.shapes.before)
    }

    /// The code of a stripe; asked only where there is redundancy.
    pub(crate) fn code_of(&self, stripe: Stripe) -> &Code {
        match &self.moving {
            Some(moving) if std::ptr::eq(self.shape(stripe), &moving.shapes.before) => &moving.code,
            _ => self.code(),
        }
    }

    /// Whether a stripe is none at this moment: its row holds nothing, or is between two shapes.
    pub(crate) fn is_idle(&self, stripe: Stripe) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.is_idle_row(stripe.0))
    }

    /// Whether some rows are between two shapes: nothing may be computed from them.
    pub(crate) fn has_rows_between(&self, rows: &Range<u64>) -> bool {
        let Some(moving) = &self.moving else { return false };
        let unit = moving.shapes.window(moving.position.get(), 1);
        let between = unit.new_rows.start..unit.old_rows.end;
        moving.record.get().is_between() && rows.start < between.end && between.start < rows.end
    }

    /// The parts of a range of the volume, in its order.
    pub(crate) fn parts(&self, range: SectorRange) -> Vec<Part> {
        match &self.moving {
            None => self.geometry.parts(range).collect(),
            Some(moving) => {
                let missed = u64::from(canary::is(Canary::MovedPartMissed));
                moving.shapes.parts(moving.position.get().saturating_sub(missed), range)
            }
        }
    }

    /// The range as a part of a chunk, if it is known to be in one chunk alone.
    pub(crate) fn only_part(&self, range: SectorRange) -> Option<Part> {
        if self.moving.is_some() { None } else { self.geometry.only_part(range) }
    }

    /// The size of the volume, in sectors.
    pub(crate) fn volume_sectors(&self) -> u64 {
        self.moving.as_ref().map_or(&self.geometry, |moving| &moving.shapes.before).sectors()
    }
}

impl<D: BlockDevice> Inner<D> {
    /// A request beside a move: to its end, whoever waits.
    pub(crate) async fn read_beside(
        self: &Rc<Self>,
        moving: &Moving,
        range: SectorRange,
        into: Buf,
    ) -> IoResult<Buf> {
        let (inner, fence) = (self.clone(), moving.fence.clone());
        let read = async move {
            let _pass = fence.pass(range).await?;
            inner.read(range, into).await
        };
        self.handle.finish(read).await
    }

    /// The same for a write.
    pub(crate) async fn write_beside(
        self: &Rc<Self>,
        moving: &Moving,
        range: SectorRange,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let (inner, fence) = (self.clone(), moving.fence.clone());
        let write = async move {
            let _pass = fence.pass(range).await?;
            inner.write(range, data, durability).await
        };
        self.handle.finish(write).await
    }

    /// The same for zeroes, a stripe at a time. Discards are left out: what they leave is anything.
    pub(crate) async fn zero_beside(
        self: &Rc<Self>,
        moving: &Moving,
        range: SectorRange,
        durability: Durability,
    ) -> IoResult<()> {
        let chunk_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
        for range in range.split_at_multiples(self.geometry.stripe_sectors()) {
            let data = zeroes(range.count, chunk_bytes);
            self.write_beside(moving, range, data, durability).await?;
        }
        Ok(())
    }

    pub(crate) fn reshape_status(&self) -> Option<ReshapeStatus> {
        let moving = self.moving.as_ref()?;
        let (before, after) = (&moving.shapes.before, &moving.shapes.after);
        let bytes = |sectors| sectors * SECTOR_BYTES;
        let done = bytes(moving.shapes.border(moving.position.get()));
        let total = bytes(before.sectors());
        let (now, is_running) = (self.handle.now(), moving.is_running.get());
        moving.pacer.set_pace_if_new(self.task(BackgroundTask::Rebuild).pacer.pace());
        Some(ReshapeStatus {
            progress: moving.pacer.progress(now, is_running, done, total),
            from_members: before.member_count(),
            to_members: after.member_count(),
            bytes_after: bytes(after.sectors()),
            waits_for: moving.waits_for.get(),
            last_error: moving.last_error.get(),
        })
    }
}

impl<D: BlockDevice> Array<D> {
    /// How far the move to more members is; none if there is none. It goes at the pace of the rebuild.
    pub fn reshape_status(&self) -> Option<ReshapeStatus> {
        self.0.reshape_status()
    }

    /// Waits until the array has one shape, or the move ends because the array is stopped.
    pub async fn reshaped(&self) {
        // Not the array itself: its shape changes when nobody holds it any more.
        while let Some(moving) = self.0.moving.clone().filter(|it| it.is_running.get()) {
            moving.ended.until(|| !moving.is_running.get()).await;
        }
    }
}
