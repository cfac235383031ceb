//! Capacity expansion: stripes get wider while the array serves. `docs/internals/capacity-expansion.md`
//! has the protocol and why it holds.
//!
//! - `worker`: moves windows, and raises the frontier.
//! - `strips`: rows of the old shape become rows of the new one.
//! - `backup_area`: the first sections lie over what they are moved to, and are kept elsewhere meanwhile.
//!
//! How an array comes to have two shapes, and one again, is in `expand`.
//!
//! The places of content while there are two shapes are in `geometry::shapes` and `stripe::two_shapes`;
//! the fence between requests and the worker in `stripe::fence`.

pub(crate) mod backup_area;
pub(crate) mod strips;
pub(crate) mod worker;

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use voltier_block::{IoError, Nanos, SECTOR_BYTES};
use voltier_parity::CodeError;
use voltier_ring::Signal;

use crate::format::reshape_record::ReshapeRecord;
use crate::geometry::shapes::Shapes;
use crate::stripe::two_shapes::TwoShapes;
use crate::tasks::pace::{Pace, Pacer, Progress};

/// The reasons for which a move waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReshapeWait {
    /// Members are missing or being filled.
    Members,
    /// Parity is being made anew after a crash.
    Resync,
    /// Writes have failed, and stripes are half written.
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
    /// The reason for which the move waits; none while it goes on.
    pub waits_for: Option<ReshapeWait>,
    /// The error of the last attempt that did not go on.
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

    /// Starts the worker's turns; false if it is at work already.
    fn start(&self, now: Nanos) -> bool {
        let starts = !self.is_running.replace(true);
        if starts {
            self.pacer.start(now);
        }
        starts
    }

    /// Whether the worker goes on.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.get()
    }

    /// Waits until the worker has ended.
    pub(crate) async fn ended(&self) {
        self.ended.until(|| !self.is_running.get()).await;
    }

    /// How far the move is, at the pace of the rebuild.
    pub(crate) fn status(&self, now: Nanos, pace: Pace) -> ReshapeStatus {
        let (before, after) = (&self.shapes().before, &self.shapes().after);
        let bytes = |sectors| sectors * SECTOR_BYTES;
        let done = bytes(self.shapes().border(self.frontier()));
        let total = bytes(before.sectors());
        self.pacer.set_pace_if_new(pace);
        ReshapeStatus {
            progress: self.pacer.progress(now, self.is_running.get(), done, total),
            from_members: before.member_count(),
            to_members: after.member_count(),
            bytes_after: bytes(after.sectors()),
            waits_for: self.waits_for.get(),
            last_error: self.last_error.get(),
        }
    }
}
