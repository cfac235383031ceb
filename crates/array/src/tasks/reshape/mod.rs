//! Capacity expansion: stripes get wider while the array serves. `docs/adr/0022-capacity-expansion.md` has
//! the protocol and why it holds.
//!
//! - `worker`: moves windows, and raises the position.
//! - `strips`: rows of the old shape become rows of the new one.
//! - `backup_area`: the first units lie over what they are moved to, and are kept elsewhere meanwhile.
//! - `begin`: how an array comes to have two shapes, `end`: and one again.
//!
//! What is where while there are two shapes is in `geometry::shapes` and `stripe::two_shapes`; the fence
//! between requests and the worker in `stripe::fence`.

pub(crate) mod backup_area;
pub(crate) mod begin;
pub(crate) mod end;
pub(crate) mod strips;
pub(crate) mod worker;

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Payload, SECTOR_BYTES, SectorRange,
};
use voltier_parity::CodeError;
use voltier_ring::Signal;

use crate::array::{Array, Inner};
use crate::format::reshape_record::ReshapeRecord;
use crate::geometry::shapes::Shapes;
use crate::stripe::two_shapes::TwoShapes;
use crate::tasks::background::BackgroundTask;
use crate::tasks::pace::{Pacer, Progress};

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

/// The worker of a capacity expansion: how it goes on, and with which shapes.
pub(crate) struct Moving {
    two: Rc<TwoShapes>,
    pacer: Pacer,
    is_running: Cell<bool>,
    /// Not while it rests.
    is_stepping: Cell<bool>,
    ended: Signal,
    waits_for: Cell<Option<ReshapeWait>>,
    last_error: Cell<Option<IoError>>,
}

impl Deref for Moving {
    type Target = Rc<TwoShapes>;

    fn deref(&self) -> &Rc<TwoShapes> {
        &self.two
    }
}

impl Moving {
    /// # Errors
    /// When there is no code for the old shape.
    pub(crate) fn new(shapes: Shapes, record: ReshapeRecord) -> Result<Self, CodeError> {
        Ok(Self {
            two: Rc::new(TwoShapes::new(shapes, record)?),
            pacer: Pacer::default(),
            is_running: Cell::new(false),
            is_stepping: Cell::new(false),
            ended: Signal::new(),
            waits_for: Cell::new(None),
            last_error: Cell::new(None),
        })
    }

    /// Waits until it rests; it does not go on in an array that is being stopped.
    pub(crate) async fn rested(&self) {
        self.ended.until(|| !self.is_stepping.get()).await;
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
        let (inner, fence) = (self.clone(), moving.fence().clone());
        let read = async move {
            let _pass = fence.pass(range).await?;
            inner.reader.read(range, into).await
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
        let (inner, fence) = (self.clone(), moving.fence().clone());
        let write = async move {
            let _pass = fence.pass(range).await?;
            inner.writer.write(range, data, durability).await
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
            let data = Payload::zeroes(range.bytes(), chunk_bytes);
            self.write_beside(moving, range, data, durability).await?;
        }
        Ok(())
    }

    pub(crate) fn reshape_status(&self) -> Option<ReshapeStatus> {
        let moving = self.moving.as_ref()?;
        let (before, after) = (&moving.shapes().before, &moving.shapes().after);
        let bytes = |sectors| sectors * SECTOR_BYTES;
        let done = bytes(moving.shapes().border(moving.position()));
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
