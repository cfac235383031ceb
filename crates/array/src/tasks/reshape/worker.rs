//! Moves the array window by window from its old shape to the new one.
//!
//! A window is closed to requests, what the journal has for it is brought in place, its rows are written
//! where nothing is needed any more, flushed, and then the superblocks say that the position is behind
//! it. Until all of them do, the rows it was read from are as they were. The first units lie over what
//! they are moved to: these are kept on all members (`staging`) before they are written.

use std::ops::Range;
use std::rc::{Rc, Weak};

use voltier_block::{BlockDevice, IoResult, Nanos, SECTOR_BYTES};

use crate::array::Inner;
use crate::bitmap::write_intent::RegionGuard;
use crate::canary::{self, Canary};
use crate::format::reshape_record::ReshapeRecord;
use crate::generations::Generations;
use crate::geometry::chunks::Stripe;
use crate::geometry::shapes::Window;
use crate::stripe::locks::{Access, StripeGuard};
use crate::stripe::two_shapes::TwoShapes;
use crate::tasks::background::BackgroundTask;
use crate::tasks::pace::Turn;
use crate::tasks::reshape::backup_area::sectors_at_once;
use crate::tasks::reshape::strips::{Strip, spans, strips};
use crate::tasks::reshape::{Moving, ReshapeWait};

/// What a window writes to each member at most, in bytes, if a unit is no longer.
const WINDOW_BYTES: u64 = 8 << 20;
/// How often a move that waits looks again.
const WAIT_NS: Nanos = 1_000_000_000;
/// And one that could not go on.
const RETRY_NS: Nanos = 10_000_000_000;

/// How it goes on.
pub(super) enum Step {
    Again,
    WaitUntil(Nanos),
    End,
}

/// Starts the move of an array that has two shapes, unless it goes on already.
pub(crate) fn begin_reshape<D: BlockDevice>(generations: &Rc<Generations<D>>) {
    let inner: &Rc<Inner<D>> = generations;
    let Some(moving) = inner.moving.clone() else { return };
    if inner.background.is_closing() || moving.is_running.replace(true) {
        return;
    }
    moving.pacer.start(inner.handle.now());
    let (handle, generations) = (inner.handle.clone(), Rc::downgrade(generations));
    drop(inner.handle.spawn(async move {
        loop {
            moving.is_stepping.set(true);
            let next = step(&generations, &moving).await;
            moving.is_stepping.set(false);
            moving.ended.notify();
            match next {
                Step::Again => handle.yield_now().await,
                Step::WaitUntil(until_ns) => handle.sleep_until(until_ns).await,
                Step::End => break,
            }
        }
        moving.is_running.set(false);
        moving.ended.notify();
    }));
}

async fn step<D: BlockDevice>(generations: &Weak<Generations<D>>, moving: &Moving) -> Step {
    let Some(generations) = generations.upgrade() else { return Step::End };
    let now = generations.handle.now();
    if generations.background.is_closing() {
        return Step::End;
    }
    let is_between = moving.record().is_between();
    moving.waits_for.set(generations.reshape_waits_for());
    if moving.waits_for.get().is_some() && !is_between {
        return Step::WaitUntil(now + WAIT_NS);
    }
    if moving.position() == moving.shapes().end() {
        let ended = super::end::end(&generations, moving).await;
        return ended.unwrap_or_else(|error| {
            moving.last_error.set(Some(error));
            Step::WaitUntil(now + RETRY_NS)
        });
    }
    let inner: Rc<Inner<D>> = (**generations).clone();
    moving.pacer.set_pace_if_new(inner.task(BackgroundTask::Rebuild).pacer.pace());
    if let Turn::WaitUntil(until_ns) = moving.pacer.turn(now, &inner.foreground) {
        return Step::WaitUntil(until_ns);
    }
    moving.pacer.begin(now, inner.window_bytes(moving));
    let moved = inner.move_window(moving).await;
    moving.last_error.set(moved.as_ref().err().copied());
    let ended = inner.handle.now();
    moving.pacer.end(ended, now, *moved.as_ref().unwrap_or(&0));
    if moved.is_ok() { Step::Again } else { Step::WaitUntil(ended + RETRY_NS) }
}

/// Units of the next window that has something in it.
fn units_at_once(two: &TwoShapes) -> u64 {
    let unit_bytes = two.shapes().unit_rows() * two.shapes().before.chunk_sectors() * SECTOR_BYTES;
    let apart = two.shapes().units_apart(two.position());
    (WINDOW_BYTES / unit_bytes).min(apart).max(1)
}

fn checkpoint(position: u64, settled_below: u64) -> ReshapeRecord {
    ReshapeRecord { position, settled_below, ..ReshapeRecord::default() }
}

impl<D: BlockDevice> Inner<D> {
    /// What the array is to be before anything is moved on.
    pub(super) fn reshape_waits_for(&self) -> Option<ReshapeWait> {
        let is_whole = self
            .members
            .iter()
            .all(|member| member.is_online() && member.successor().borrow().is_none());
        if !is_whole || self.is_at_work(BackgroundTask::Rebuild) {
            return Some(ReshapeWait::Members);
        }
        if self.bitmap.next_in_doubt(0).is_some() || self.resync.is_running.get() {
            return Some(ReshapeWait::Resync);
        }
        let has_failed = self.journal.check().is_err();
        let has_failed = has_failed || self.stripes.has_any_half_written();
        has_failed.then_some(ReshapeWait::FailedWrites)
    }

    /// What the next window writes to each member, in bytes.
    fn window_bytes(&self, moving: &Moving) -> u64 {
        let rows = units_at_once(moving) * moving.shapes().unit_rows();
        rows * self.geometry.chunk_sectors() * SECTOR_BYTES
    }

    /// So many units from the position on were never written, and nothing was where they go: there is
    /// nothing to move.
    fn blank_units(&self, moving: &Moving) -> u64 {
        let (shapes, position) = (moving.shapes(), moving.position());
        let row_of =
            |region: u64| self.bitmap.region_range(region).start.0 / self.geometry.chunk_sectors();
        let next_written = |row: u64| {
            let region = self.bitmap.region_of(Stripe(row.min(shapes.before.stripe_count() - 1)));
            self.bitmap.next_written(region).map(row_of)
        };
        let first = shapes.window(position, 1);
        let behind = first.old_rows.start;
        let Some(old) = next_written(behind) else {
            // Nothing is left to be moved; where it goes to there may be something still.
            let Some(new) = next_written(first.new_rows.start) else {
                return shapes.end() - position;
            };
            return new.saturating_sub(first.new_rows.start) / shapes.unit_rows();
        };
        let new = next_written(first.new_rows.start).unwrap_or(old);
        let room = new.saturating_sub(first.new_rows.start) / shapes.unit_rows();
        room.min(old.saturating_sub(behind) / (shapes.unit_rows() + 1))
    }

    /// Moves the next units; the bytes of the volume that were written.
    async fn move_window(self: &Rc<Self>, moving: &Moving) -> IoResult<u64> {
        let blank = self.blank_units(moving);
        let is_blank = blank > 0 && !moving.record().is_between();
        let units = if is_blank { blank } else { units_at_once(moving) };
        let window = moving.shapes().window(moving.position(), units);
        moving.fence().close(window.range).await;
        let moved = self.move_closed(moving, &window, is_blank).await;
        match moved {
            Err(error) if moving.record().is_between() => moving.fence().fail(error),
            _ => moving.fence().open(),
        }
        moved
    }

    async fn move_closed(
        self: &Rc<Self>,
        moving: &Moving,
        window: &Window,
        is_blank: bool,
    ) -> IoResult<u64> {
        if is_blank && self.blank_units(moving) < window.units.end - window.units.start {
            // Somebody was faster.
            return Ok(0);
        }
        let (mut _marks, mut _locks) = (Vec::new(), Vec::new());
        if !is_blank {
            _marks = self.mark_rows(window.new_rows.clone()).await?;
            _locks = self.lock_moved(window).await;
        }
        let drained = self.journal.drain().await?;
        if self.reshape_waits_for().is_some() && !moving.record().is_between() {
            // Since it was asked a member went, or a copy began, which would not have what is staged.
            return Ok(0);
        }
        let settled_below = if canary::is(Canary::MovedRedone) { 0 } else { drained };
        let next = checkpoint(window.units.end, settled_below);
        if !is_blank && window.overlaps_itself() {
            self.move_over_itself(moving, window, settled_below).await?;
        } else {
            if !is_blank {
                for strip in strips(moving, window.units.clone()) {
                    let filled = self.strip_in_new_shape(moving, &strip).await?;
                    self.write_rows(&filled).await?;
                }
            }
            if !canary::is(Canary::MovedBeforeFlush) {
                self.membership.flush(&self.members).await?;
            }
            self.journal.note_flushed(settled_below);
            self.say_moved(moving, next).await?;
        }
        moving.set_position(window.units.end);
        Ok(if is_blank { 0 } else { window.range.bytes() })
    }

    /// Has all regions of some rows called written, and kept so: they are zero where they were not.
    async fn mark_rows(self: &Rc<Self>, rows: Range<u64>) -> IoResult<Vec<RegionGuard>> {
        let mut marks = Vec::new();
        let mut next = rows.start;
        while next < rows.end {
            marks.push(self.bitmap.enter(Stripe(next)).await?);
            let end = self.bitmap.region_range(self.bitmap.region_of(Stripe(next))).end();
            next = end.0 / self.geometry.chunk_sectors();
        }
        Ok(marks)
    }

    /// Keeps everybody else out of the rows of a window: who makes parity anew, or fills a member.
    async fn lock_moved(&self, window: &Window) -> Vec<StripeGuard> {
        let Window { new_rows, old_rows, .. } = window;
        if window.overlaps_itself() {
            return self
                .stripes
                .lock_rows(0, new_rows.start..old_rows.end, Access::Exclusive)
                .await;
        }
        let mut guards = self.stripes.lock_rows(0, new_rows.clone(), Access::Exclusive).await;
        guards.extend(self.stripes.lock_rows(0, old_rows.clone(), Access::Exclusive).await);
        guards
    }

    /// Makes durable on all members where the move is.
    async fn say_moved(self: &Rc<Self>, moving: &Moving, record: ReshapeRecord) -> IoResult<()> {
        moving.set_record(record);
        self.membership.note_change();
        self.membership.settled().await
    }

    /// One unit, a part of all its chunks after the other. What was begun before a crash is gone on with.
    async fn move_over_itself(
        self: &Rc<Self>,
        moving: &Moving,
        window: &Window,
        settled_below: u64,
    ) -> IoResult<()> {
        // What is read from now on is not in doubt after a crash, and nothing is redone over it.
        self.membership.flush(&self.members).await?;
        self.journal.note_flushed(settled_below);
        let begun = moving.record();
        let from = begun.moved_sectors + begun.staged_sectors;
        let position = window.units.start;
        let record = checkpoint(position, settled_below);
        if !begun.is_between() {
            self.check_readable(moving, window.units.clone()).await?;
        }
        if begun.staged_sectors > 0 {
            if !canary::is(Canary::StagedNotRestored) {
                self.restore_backup(moving, begun).await?;
            }
            self.end_part(moving, from, record).await?;
        }
        let unit_rows = moving.shapes().unit_rows();
        let sectors = sectors_at_once(unit_rows, self.geometry.chunk_sectors());
        for span in spans(moving, from, sectors) {
            let strip = Strip { units: window.units.clone(), span };
            let filled = self.strip_in_new_shape(moving, &strip).await?;
            if !canary::is(Canary::MovedUnstaged) {
                self.stage(position, &filled).await?;
                let (moved_sectors, staged_sectors) = (span.start, span.count());
                let staged = ReshapeRecord { moved_sectors, staged_sectors, ..record };
                self.say_moved(moving, staged).await?;
            }
            self.write_rows(&filled).await?;
            self.end_part(moving, span.end, record).await?;
        }
        Ok(())
    }

    /// A part is in place: makes it durable, then that it is.
    async fn end_part(
        self: &Rc<Self>,
        moving: &Moving,
        to: u64,
        record: ReshapeRecord,
    ) -> IoResult<()> {
        self.membership.flush(&self.members).await?;
        let is_through = to == self.geometry.chunk_sectors();
        let record = if is_through {
            ReshapeRecord { position: record.position + 1, ..record }
        } else {
            ReshapeRecord { moved_sectors: to, ..record }
        };
        self.say_moved(moving, record).await
    }

    /// Brings a unit that a crash left between the shapes to the new one, before anything is served.
    /// If that cannot be, requests for it fail, and it is tried again.
    pub(crate) async fn end_unit_between(self: &Rc<Self>) {
        let Some(moving) = &self.moving else { return };
        if moving.record().is_between() {
            moving.last_error.set(self.move_window(moving).await.err());
        }
    }
}
