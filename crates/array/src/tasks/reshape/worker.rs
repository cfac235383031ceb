//! Moves the array window by window from its old shape to the new one.
//!
//! A window is closed to requests, and what the journal has for the window is brought in place. The
//! worker writes the window's rows where nothing is needed any more, and flushes. Then the superblocks
//! say that the frontier is behind the window. Until all of them do, the rows that the worker read are
//! as they were. The first sections lie over what they are moved to: all members keep these sections
//! (`backup_area`) before the worker writes them.

use std::ops::Range;
use std::rc::{Rc, Weak};

use voltier_block::{DriveControl, Durability, IoResult, Nanos, SECTOR_BYTES, SectorRange};
use voltier_ring::Handle;

use crate::bitmap::write_intent::{Bitmap, RegionGuard};
use crate::canary::{self, Canary};
use crate::format::reshape_record::ReshapeRecord;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{GroupIndex, Region, Row, Section};
use crate::geometry::shapes::Window;
use crate::journal::transaction::Journal;
use crate::members::at_once::together;
use crate::members::clear::Clear;
use crate::members::member::Member;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::foreground::Foreground;
use crate::stripe::ground::Ground;
use crate::stripe::mend::Mender;
use crate::stripe::stripes::{Access, StripeGuard, Stripes};
use crate::stripe::two_shapes::TwoShapes;
use crate::tasks::background::{Closing, Step};
use crate::tasks::pace::Pacing;
use crate::tasks::rebuild::RebuildTask;
use crate::tasks::reshape::backup_area::{BackupArea, sectors_at_once};
use crate::tasks::reshape::strips::{Restriper, Strip, spans, strips};
use crate::tasks::reshape::{Moving, ReshapeWait};
use crate::tasks::resync::Resync;

/// The bytes that a window writes to each member at most, if a section is no longer.
const WINDOW_BYTES: u64 = 8 << 20;
/// How often a move that waits looks again.
const WAIT_NS: Nanos = 1_000_000_000;
/// How often a move that could not go on tries again.
const RETRY_NS: Nanos = 10_000_000_000;

/// Sections of the next window that has something in it.
fn sections_at_once(two: &TwoShapes) -> u64 {
    let section_bytes =
        two.shapes().section_rows() * two.shapes().before.chunk_sectors() * SECTOR_BYTES;
    let apart = two.shapes().sections_apart(two.frontier());
    (WINDOW_BYTES / section_bytes).min(apart).max(1)
}

fn record_at(frontier: Section, redo_from: u64) -> ReshapeRecord {
    ReshapeRecord { frontier, redo_from, ..ReshapeRecord::default() }
}

/// The worker of a capacity expansion.
pub(crate) struct Reshape<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    bitmap: Rc<Bitmap<D>>,
    journal: Rc<Journal<D>>,
    stripes: Rc<Stripes<D>>,
    foreground: Rc<Foreground>,
    closing: Closing,
    rebuild: Rc<RebuildTask<D>>,
    resync: Rc<Resync<D>>,
    restriper: Rc<Restriper<D>>,
    backup: Rc<BackupArea<D>>,
    moving: Rc<Moving>,
}

/// The tasks that a move waits for, and the requests beside it.
pub(crate) struct Beside<'a, D> {
    pub(crate) foreground: &'a Rc<Foreground>,
    pub(crate) closing: &'a Closing,
    pub(crate) rebuild: &'a Rc<RebuildTask<D>>,
    pub(crate) resync: &'a Rc<Resync<D>>,
}

impl<D: DriveControl> Reshape<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        mender: &Rc<Mender<D>>,
        beside: &Beside<'_, D>,
        moving: Rc<Moving>,
    ) -> Rc<Self> {
        let restriper = Restriper::new(ground, stripes, mender);
        let backup = BackupArea::new(ground);
        let Ground { handle, geometry, members, membership, bitmap, journal, .. } = ground.clone();
        Rc::new(Self {
            handle,
            geometry,
            members,
            membership,
            bitmap,
            journal,
            stripes: stripes.clone(),
            foreground: beside.foreground.clone(),
            closing: beside.closing.clone(),
            rebuild: beside.rebuild.clone(),
            resync: beside.resync.clone(),
            restriper,
            backup,
            moving,
        })
    }

    /// The state of the move.
    pub(crate) fn moving(&self) -> &Rc<Moving> {
        &self.moving
    }

    pub(crate) fn now(&self) -> Nanos {
        self.handle.now()
    }

    /// Starts the move, unless it goes on already. When all is moved, `end` has another array take over.
    pub(crate) fn begin(self: &Rc<Self>, end: impl AsyncFn() -> IoResult<Step> + 'static) {
        if self.closing.is_begun() || !self.moving.start(self.handle.now()) {
            return;
        }
        let (handle, moving, worker) =
            (self.handle.clone(), self.moving.clone(), Rc::downgrade(self));
        drop(self.handle.spawn(async move {
            loop {
                moving.is_stepping.set(true);
                let next = step(&worker, &end).await;
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

    async fn step(&self, end: &impl AsyncFn() -> IoResult<Step>) -> Step {
        let (moving, now) = (&*self.moving, self.handle.now());
        if self.closing.is_begun() {
            return Step::End;
        }
        let is_between = moving.record().is_between();
        moving.waits_for.set(self.waits_for());
        if moving.waits_for.get().is_some() && !is_between {
            return Step::WaitUntil(now + WAIT_NS);
        }
        if moving.frontier() == moving.shapes().end() {
            return end().await.unwrap_or_else(|error| {
                moving.last_error.set(Some(error));
                Step::WaitUntil(now + RETRY_NS)
            });
        }
        moving.pacer.set_pace_if_new(self.rebuild.pace());
        if let Pacing::WaitUntil(until_ns) = moving.pacer.pacing(now, &self.foreground) {
            return Step::WaitUntil(until_ns);
        }
        moving.pacer.begin(now, self.window_bytes(moving));
        let moved = self.move_window(moving).await;
        moving.last_error.set(moved.as_ref().err().copied());
        let ended = self.handle.now();
        moving.pacer.end(ended, now, *moved.as_ref().unwrap_or(&0));
        if moved.is_ok() { Step::Again } else { Step::WaitUntil(ended + RETRY_NS) }
    }

    /// The condition of the array that the move waits for before it goes on.
    pub(crate) fn waits_for(&self) -> Option<ReshapeWait> {
        let is_whole = self.members.iter().all(Member::is_undisturbed);
        if !is_whole || self.rebuild.is_running() {
            return Some(ReshapeWait::Members);
        }
        if self.bitmap.next_to_resync(Region(0)).is_some() || self.resync.is_running() {
            return Some(ReshapeWait::Resync);
        }
        let has_failed = self.journal.check().is_err();
        let has_failed = has_failed || self.stripes.has_any_half_written();
        has_failed.then_some(ReshapeWait::FailedWrites)
    }

    /// The bytes that the next window writes to each member.
    fn window_bytes(&self, moving: &Moving) -> u64 {
        let rows = sections_at_once(moving) * moving.shapes().section_rows();
        rows * self.geometry.chunk_sectors() * SECTOR_BYTES
    }

    /// So many sections from the frontier on were never written, and nothing was where they go: there is
    /// nothing to move.
    fn blank_sections(&self, moving: &Moving) -> u64 {
        let (shapes, frontier) = (moving.shapes(), moving.frontier());
        let row_of =
            |region: Region| self.geometry.row_at(self.bitmap.regions().sectors_of(region).start);
        let last = Row(shapes.before.stripe_count() - 1);
        let next_written = |row: Row| {
            let region =
                self.bitmap.region_of(self.geometry.stripe_of(GroupIndex::FIRST, row.min(last)));
            self.bitmap.next_written(region).map(row_of)
        };
        let first = shapes.window(frontier, 1);
        let behind = first.old_rows.start;
        let Some(old) = next_written(behind) else {
            // Nothing is left to be moved; where it goes to there may be something still.
            let Some(new) = next_written(first.new_rows.start) else {
                return shapes.end() - frontier;
            };
            return new.0.saturating_sub(first.new_rows.start.0) / shapes.section_rows();
        };
        let new = next_written(first.new_rows.start).unwrap_or(old);
        let room = new.0.saturating_sub(first.new_rows.start.0) / shapes.section_rows();
        room.min(old.0.saturating_sub(behind.0) / (shapes.section_rows() + 1))
    }

    /// Moves the next sections; the bytes of the volume that were written.
    async fn move_window(&self, moving: &Moving) -> IoResult<u64> {
        let blank = self.blank_sections(moving);
        let is_blank = blank > 0 && !moving.record().is_between();
        let sections = if is_blank { blank } else { sections_at_once(moving) };
        let window = moving.shapes().window(moving.frontier(), sections);
        moving.fence().close(window.range).await;
        let moved = self.move_closed(moving, &window, is_blank).await;
        match moved {
            Err(error) if moving.record().is_between() => moving.fence().fail(error),
            _ => moving.fence().open(),
        }
        moved
    }

    async fn move_closed(&self, moving: &Moving, window: &Window, is_blank: bool) -> IoResult<u64> {
        if is_blank && self.blank_sections(moving) < window.sections.end - window.sections.start {
            // Somebody was faster.
            return Ok(0);
        }
        let (mut _entered, mut _locks) = (Vec::new(), Vec::new());
        if !is_blank {
            _entered = self.enter_rows(window.new_rows.clone()).await?;
            _locks = self.lock_moved(window).await;
        }
        let drained = self.journal.drain().await?;
        if self.waits_for().is_some() && !moving.record().is_between() {
            // A member went meanwhile, or a successor came, which would lack what the backup areas hold.
            return Ok(0);
        }
        let redo_from = if canary::is(Canary::MovedRedone) { 0 } else { drained };
        let next = record_at(window.sections.end, redo_from);
        if !is_blank && window.overlaps_itself() {
            self.move_over_itself(moving, window, redo_from).await?;
        } else {
            if !is_blank {
                for strip in strips(moving, window.sections.clone()) {
                    let filled = self.restriper.strip_in_new_shape(moving, &strip).await?;
                    self.restriper.write_rows(&filled).await?;
                }
            }
            if !canary::is(Canary::MovedBeforeFlush) {
                self.membership.flush(&self.members).await?;
            }
            self.journal.note_flushed(redo_from);
            self.say_moved(moving, next).await?;
        }
        moving.set_frontier(window.sections.end);
        Ok(if is_blank { 0 } else { window.range.bytes() })
    }

    /// Has all regions of some rows called written, and kept so: they are zero where they were not.
    async fn enter_rows(&self, rows: Range<Row>) -> IoResult<Vec<RegionGuard>> {
        let mut entered = Vec::new();
        let mut next = rows.start;
        while next < rows.end {
            let stripe = self.geometry.stripe_of(GroupIndex::FIRST, next);
            entered.push(self.bitmap.enter(stripe).await?);
            let end = self.bitmap.regions().sectors_of(self.bitmap.region_of(stripe)).end();
            next = self.geometry.row_at(end);
        }
        Ok(entered)
    }

    /// Keeps everybody else out of the rows of a window: who makes parity anew, or fills a member.
    async fn lock_moved(&self, window: &Window) -> Vec<StripeGuard> {
        let Window { new_rows, old_rows, .. } = window;
        if window.overlaps_itself() {
            return self
                .stripes
                .lock_rows(GroupIndex::FIRST, new_rows.start..old_rows.end, Access::Exclusive)
                .await;
        }
        let mut guards =
            self.stripes.lock_rows(GroupIndex::FIRST, new_rows.clone(), Access::Exclusive).await;
        guards.extend(
            self.stripes.lock_rows(GroupIndex::FIRST, old_rows.clone(), Access::Exclusive).await,
        );
        guards
    }

    /// Makes durable on all members where the move is.
    async fn say_moved(&self, moving: &Moving, record: ReshapeRecord) -> IoResult<()> {
        moving.set_record(record);
        self.membership.note_change();
        self.membership.recorded().await
    }

    /// One section, a part of all its chunks after the other. The worker goes on with a section that was
    /// begun before a crash.
    async fn move_over_itself(
        &self,
        moving: &Moving,
        window: &Window,
        redo_from: u64,
    ) -> IoResult<()> {
        // Regions that are read from now on need no resync after a crash, and nothing is redone over
        // them.
        self.membership.flush(&self.members).await?;
        self.journal.note_flushed(redo_from);
        let begun = moving.record();
        let from = begun.moved_sectors + begun.backed_up_sectors;
        let frontier = window.sections.start;
        let record = record_at(frontier, redo_from);
        if !begun.is_between() {
            self.restriper.check_readable(moving, window.sections.clone()).await?;
        }
        if begun.backed_up_sectors > 0 {
            if !canary::is(Canary::BackupNotRestored) {
                self.backup.restore(moving, begun).await?;
            }
            self.end_part(moving, from, record).await?;
        }
        let section_rows = moving.shapes().section_rows();
        let sectors = sectors_at_once(section_rows, self.geometry.chunk_sectors());
        for span in spans(moving, from, sectors) {
            let strip = Strip { sections: window.sections.clone(), span };
            let filled = self.restriper.strip_in_new_shape(moving, &strip).await?;
            if !canary::is(Canary::MovedWithoutBackup) {
                self.backup.keep(frontier, &filled).await?;
                let (moved_sectors, backed_up_sectors) = (span.start, span.count());
                let kept = ReshapeRecord { moved_sectors, backed_up_sectors, ..record };
                self.say_moved(moving, kept).await?;
            }
            self.restriper.write_rows(&filled).await?;
            self.end_part(moving, span.end, record).await?;
        }
        Ok(())
    }

    /// A part is in place: makes it durable, then that it is.
    async fn end_part(&self, moving: &Moving, to: u64, record: ReshapeRecord) -> IoResult<()> {
        self.membership.flush(&self.members).await?;
        let is_through = to == self.geometry.chunk_sectors();
        let record = if is_through {
            ReshapeRecord { frontier: record.frontier + 1, ..record }
        } else {
            ReshapeRecord { moved_sectors: to, ..record }
        };
        self.say_moved(moving, record).await
    }

    /// Brings a section that a crash left between the shapes to the new one, before anything is served.
    /// When the section cannot be moved, requests for the section fail, and the worker tries again.
    pub(crate) async fn end_section_between(&self) {
        let moving = &*self.moving;
        if moving.record().is_between() {
            moving.last_error.set(self.move_window(moving).await.err());
        }
    }

    /// Rows behind those that were moved have parity of the old shape, or none: they become zero, whole
    /// regions by being called never written.
    pub(crate) async fn clear_behind(&self) -> IoResult<()> {
        let row = self.moving.shapes().new_rows(self.moving.shapes().end());
        let (start, stripe) =
            (self.geometry.lba_of_row(row), self.geometry.stripe_of(GroupIndex::FIRST, row));
        if start.0 >= self.geometry.member_sectors() {
            return Ok(());
        }
        let region = self.bitmap.region_of(stripe);
        let range = self.bitmap.regions().sectors_of(region);
        let is_cut = range.start < start;
        if is_cut && self.bitmap.is_written(region) {
            let _entered = self.bitmap.enter(stripe).await?;
            let rest = SectorRange::new(start, range.end().0 - start.0);
            let clear = Clear::Zeroes(Durability::Cached);
            let members = self.members.indexes();
            let clears = members.map(|member| self.members.clone().clear(member, rest, clear));
            let results = together(&self.handle, clears.collect()).await;
            results.into_iter().collect::<IoResult<()>>()?;
            self.membership.flush(&self.members).await?;
        }
        let first = if is_cut { region + 1 } else { region };
        self.bitmap.forget_written_from(first).await
    }
}

/// A step of a worker that nothing keeps between two of them.
async fn step<D: DriveControl>(
    worker: &Weak<Reshape<D>>,
    end: &impl AsyncFn() -> IoResult<Step>,
) -> Step {
    match worker.upgrade() {
        Some(worker) => worker.step(end).await,
        None => Step::End,
    }
}
