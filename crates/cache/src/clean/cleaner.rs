//! Destaging: dirty lines go to the origin in address order, coalesced, at a rate that follows how
//! full of them the cache is.
//!
//! The cleaner sweeps the origin from its first stretch to its last and begins again (C-SCAN), so a
//! disk sees ascending addresses. Only what is durable on the SSD is written out: else a power cut
//! could leave the origin newer than the log, and an older cached copy would be served. A line is
//! called clean when the origin has flushed it, and unless a newer copy arrived meanwhile.

use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, IoResult};
use voltier_ring::join_at_most;

use crate::cache::Inner;
use crate::canary::{self, Canary};
use crate::clean::destage::Dirty;
use crate::log::form::State;
use crate::log::ordered::OrderedQueue;
use crate::map::index::LINES_PER_STRETCH;
use crate::status::add;

/// Lines of one batch, which ends with a flush of the origin: enough that a disk's flush (a
/// rotation or two) is small beside its writes, small enough to follow the thresholds.
const BATCH_LINES: usize = 1024;
/// Stretches that a choosy sweep looks at before others have their turn.
const CHOOSY_STRETCHES: u64 = 256;
/// Sweeps that take everything after one that chose and found little.
const PLAIN_SWEEPS: u32 = 3;
/// Writes to the origin at once: the depth at which a disk's own reordering pays (NCQ has 32).
const RUNS_IN_FLIGHT_MAX: usize = 32;
/// Least share of the time between the thresholds.
const SHARE_MIN: f64 = 0.05;
/// Clients' data that waits for the log: from here on the SSD is what they wait for, and below the
/// high threshold the cleaner's reads of it can wait.
const BACKLOG_BYTES: usize = 256 << 10;
/// Below the low threshold the cleaner works only when no request came for this long.
const IDLE_NS: u64 = 2_000_000_000;
/// Longest rest between two batches while there is something to do.
const REST_NS_MAX: u64 = 1_000_000_000;
/// Rest after the origin failed, before it is tried again.
const ERROR_REST_NS: u64 = 1_000_000_000;

/// How hard the cleaner works.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pace {
    /// Not at all, until something changes or (with a time) the clients are idle.
    Rest(Option<u64>),
    /// This share of the time, above 0 and at most 1.
    Work(f64),
}

/// A sweep over the origin.
#[derive(Default)]
struct Sweep {
    /// Where it goes on; 0 when the next one begins.
    line: u64,
    /// Dirty lines when it began, and those that it took.
    dirty: u64,
    taken: u64,
    /// Whether it is one that leaves stripes of which little is dirty for later: more of them may become
    /// dirty until then. Nobody must be waiting.
    has_choice: bool,
    is_choosy: bool,
    /// So many sweeps will not be.
    plain_left: u32,
}

impl Sweep {
    fn begin_batch(&mut self, may_choose: bool, dirty: u64) {
        if self.line == 0 {
            self.plain_left = if self.has_choice && self.taken * 4 < self.dirty {
                PLAIN_SWEEPS
            } else {
                self.plain_left.saturating_sub(1)
            };
            self.has_choice = may_choose && self.plain_left == 0;
            (self.dirty, self.taken) = (dirty, 0);
        }
        self.is_choosy = self.has_choice && may_choose;
    }
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// The task that cleans.
    pub(crate) async fn clean(self: Rc<Self>) {
        let mut sweep = Sweep::default();
        loop {
            if self.failed() || self.stopping.get() {
                return;
            }
            let share = match self.pace() {
                Pace::Work(share) => share,
                Pace::Rest(None) => {
                    self.dirty_changed.wait().await;
                    continue;
                }
                Pace::Rest(Some(until_ns)) => {
                    self.resting.set(true);
                    self.rest_until(until_ns).await;
                    continue;
                }
            };
            let begun = self.handle.now();
            let Some(cleaned) = self.clean_some(&mut sweep, share).await else { continue };
            if cleaned.is_err() {
                self.destage_errors.set(self.destage_errors.get() + 1);
            }
            self.dirty_changed.notify();
            let now = self.handle.now();
            let rest_ns = match cleaned {
                Err(_) => ERROR_REST_NS,
                Ok(()) => (((now - begun) as f64 * (1.0 - share) / share) as u64).min(REST_NS_MAX),
            };
            if rest_ns > 0 {
                // An origin that fails is not asked more often because much is dirty.
                self.resting.set(cleaned.is_ok());
                self.rest_until(now + rest_ns).await;
            } else {
                self.handle.yield_now().await;
            }
        }
    }

    /// One batch; `None` when nothing could be done, after waiting for a change of that.
    async fn clean_some(self: &Rc<Self>, sweep: &mut Sweep, share: f64) -> Option<IoResult<()>> {
        let in_order = self.order_waits();
        let from = sweep.line;
        let (batch, last_sequence) = if in_order {
            self.oldest_epoch()
        } else {
            let dirty = self.state.borrow().index.dirty_lines();
            sweep.begin_batch(self.stripes.is_some() && share < 1.0, dirty);
            (self.gather_batch(sweep), 0)
        };
        if batch.is_empty() && last_sequence == 0 {
            if sweep.is_choosy {
                // What there is can wait for more of its stripes.
                self.handle.yield_now().await;
                return None;
            }
            if from > 0 {
                // Only the rest of this sweep was clean: the next one begins at the front.
                self.sweeps.set(self.sweeps.get() + 1);
                self.dirty_changed.notify();
                return None;
            }
            if self.state.borrow().records_in_flight() > 0 {
                // Every dirty line is on its way to the SSD: no sweep before they are there.
                self.log_progress.wait().await;
                return None;
            }
            self.sweeps.set(self.sweeps.get() + 1);
            self.dirty_changed.notify();
            if self.draining.get() == 0 {
                // All that is dirty is damaged: nothing to do until something changes.
                self.dirty_changed.wait().await;
                return None;
            }
        }
        let cleaned = self.clean_batch(batch, last_sequence).await;
        if !in_order && sweep.line == 0 {
            self.sweeps.set(self.sweeps.get() + 1);
        }
        Some(cleaned)
    }

    fn pace(&self) -> Pace {
        let dirty = self.state.borrow().index.dirty_lines();
        if dirty == 0 {
            // After a start the order may still name versions that the origin has: they cost nothing.
            return if self.order_waits() { Pace::Work(1.0) } else { Pace::Rest(None) };
        }
        let settings = self.settings.borrow();
        let pressed = self.draining.get() > 0 || self.log_waits_for_cleaner.get();
        if pressed || !settings.mode.writes_back() {
            return Pace::Work(1.0);
        }
        let capacity = self.geometry.capacity_lines() as f64;
        let percent = dirty as f64 * 100.0 / capacity;
        let (low, high) =
            (f64::from(settings.dirty_low_percent), f64::from(settings.dirty_high_percent));
        if percent > low {
            let share = ((percent - low) / (high - low)).clamp(SHARE_MIN, 1.0);
            let behind = self.state.borrow().user.bytes() >= BACKLOG_BYTES;
            return Pace::Work(if behind && percent < high { SHARE_MIN } else { share });
        }
        let idle_at = self.busy_until_ns() + IDLE_NS;
        if self.handle.now() >= idle_at { Pace::Work(1.0) } else { Pace::Rest(Some(idle_at)) }
    }

    /// When clients were last seen to send something, as far as the cleaner looked.
    fn busy_until_ns(&self) -> u64 {
        let requests = self.counters.reads.get().requests + self.counters.writes.get().requests;
        let (seen, at) = self.requests_seen.get();
        if requests == seen {
            return at;
        }
        let now = self.handle.now();
        self.requests_seen.set((requests, now));
        now
    }

    /// Dirty lines of one stretch that are on the SSD, in order.
    pub(crate) fn dirty_in_stretch(&self, state: &State, stretch: u64) -> Vec<(u64, u32)> {
        let first = stretch * LINES_PER_STRETCH;
        let end = (first + LINES_PER_STRETCH).min(self.geometry.origin_lines());
        self.dirty_among(state, first..end)
    }

    fn dirty_among(&self, state: &State, lines: Range<u64>) -> Vec<(u64, u32)> {
        let dirty = |line| {
            let slot = state.index.lookup(line)?;
            let ready = state.index.is_dirty(slot) && !state.index.is_pending(slot);
            ready.then_some((line, slot))
        };
        lines.filter_map(dirty).collect()
    }

    /// The next lines of the sweep, windows of stripes never in parts.
    fn gather_batch(&self, sweep: &mut Sweep) -> Vec<Dirty> {
        let state = self.state.borrow();
        let damaged = self.damaged.borrow();
        let window_of = |line| match &self.stripes {
            Some(stripes) => stripes.window_of(line),
            None => line..line + 1,
        };
        let mut batch = Vec::new();
        let mut stretches = 0;
        while let Some(found) = state.index.next_dirty_stretch(sweep.line / LINES_PER_STRETCH) {
            let last = ((found + 1) * LINES_PER_STRETCH).min(self.geometry.origin_lines()) - 1;
            let start = window_of(sweep.line.max(found * LINES_PER_STRETCH)).start;
            let lines = start..window_of(last).end;
            sweep.line = lines.end;
            let mut dirty = self.dirty_among(&state, lines);
            dirty.retain(|(line, _)| !damaged.contains(line));
            if let (true, Some(stripes)) = (sweep.is_choosy, &self.stripes) {
                dirty = stripes.mostly_dirty(dirty);
            }
            batch.extend(dirty.into_iter().map(|(line, slot)| Dirty { line, slot, version: None }));
            stretches += 1;
            if sweep.line == self.geometry.origin_lines() {
                break;
            }
            if batch.len() >= BATCH_LINES || (sweep.is_choosy && stretches == CHOOSY_STRETCHES) {
                sweep.taken += batch.len() as u64;
                return batch;
            }
        }
        sweep.taken += batch.len() as u64;
        sweep.line = 0;
        batch
    }

    pub(crate) fn order_waits(&self) -> bool {
        self.state.borrow().ordered.as_ref().is_some_and(|ordered| !ordered.is_empty())
    }

    /// The oldest epoch, or a part of it, and the last record in that.
    fn oldest_epoch(&self) -> (Vec<Dirty>, u64) {
        let state = self.state.borrow();
        let ordered = state.ordered.as_ref();
        let Some(batch) =
            ordered.and_then(|ordered| ordered.batch(state.acked_sequence, BATCH_LINES))
        else {
            return (Vec::new(), 0);
        };
        let versions = batch.versions.into_iter();
        let lines =
            versions.map(|(line, kept)| Dirty { line, slot: kept.slot, version: Some(kept) });
        (lines.collect(), batch.last_sequence)
    }

    /// Whether the origin has every version of records before this one, while later ones wait: in
    /// order there are no sweeps as long as clients write.
    fn order_is_past(&self, sequence: u64) -> bool {
        let state = self.state.borrow();
        let oldest = state.ordered.as_ref().and_then(OrderedQueue::oldest);
        oldest.is_some_and(|(oldest, _)| oldest >= sequence)
    }

    /// The origin has everything of the order up to this record.
    fn order_written(&self, last_sequence: u64) {
        if let Some(ordered) = &mut self.state.borrow_mut().ordered {
            ordered.written(last_sequence);
        }
        self.log_waits_for_cleaner.set(false);
        self.reclaim_work.notify();
    }

    /// Switches ordered mode.
    pub(crate) fn set_order(&self, ordered: bool) -> Result<(), String> {
        let mut state = self.state.borrow_mut();
        if ordered == state.ordered.is_some() {
            return Ok(());
        }
        if ordered && state.index.dirty_lines() > 0 {
            return Err(format!(
                "{} dirty lines have no order yet; run 'voltier flush NAME' first, with mode=wt while \
                 clients write",
                state.index.dirty_lines()
            ));
        }
        state.ordered = ordered.then(OrderedQueue::default);
        Ok(())
    }

    /// Writes lines out and calls them clean; in ordered mode they are all up to `last_sequence`.
    async fn clean_batch(self: &Rc<Self>, batch: Vec<Dirty>, last_sequence: u64) -> IoResult<()> {
        if batch.is_empty() {
            self.order_written(last_sequence);
            return Ok(());
        }
        if !canary::is(Canary::DestageBeforeDurable) {
            self.make_durable().await?;
        }
        let runs = self.runs_of(batch).into_iter().map(|run| self.destage_run(run));
        let mut cleaned = Vec::new();
        let mut failed = None;
        for result in join_at_most(RUNS_IN_FLIGHT_MAX, runs).await {
            match result {
                Ok(lines) => cleaned.extend(lines),
                Err(error) => failed = Some(error),
            }
        }
        if !cleaned.is_empty() {
            if !canary::is(Canary::CleanBeforeFlush) {
                self.flush_origin().await?;
            }
            if failed.is_none() {
                // Before the log hears of it: it may be waiting for the space this gives.
                self.order_written(last_sequence);
            }
            add(&self.counters.destaged_lines, cleaned.len() as u64);
            let number = self.queue_internal(cleaned);
            self.internal_acked(number).await?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.order_written(last_sequence);
        Ok(())
    }

    /// Ends a rest of the cleaner when much is dirty: a small cache fills up within one.
    pub(crate) fn rest_no_longer(&self) {
        if self.resting.get() {
            let capacity = self.geometry.capacity_lines();
            let high = capacity * u64::from(self.settings.borrow().dirty_high_percent) / 100;
            if self.state.borrow().index.dirty_lines() >= high {
                self.hurry.notify();
            }
        }
    }

    /// Rests, unless somebody is in a hurry.
    async fn rest_until(&self, until_ns: u64) {
        let mut hurried = std::pin::pin!(self.hurry.wait());
        let mut slept = std::pin::pin!(self.handle.sleep_until(until_ns));
        std::future::poll_fn(|context| {
            if hurried.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            slept.as_mut().poll(context)
        })
        .await;
        self.resting.set(false);
    }

    pub(crate) async fn drain(&self) -> IoResult<()> {
        // What is damaged is tried once more: it may have been one read that failed, not the line.
        self.damaged.borrow_mut().clear();
        let (sweeps, errors) = (self.sweeps.get(), self.destage_errors.get());
        let sequence = self.state.borrow().next_sequence;
        self.draining.set(self.draining.get() + 1);
        self.hurry.notify();
        self.dirty_changed.notify();
        // Clients may go on writing: two whole sweeps later, what was dirty now has been written.
        let done = || {
            self.failed()
                || self.state.borrow().index.dirty_lines() == 0
                || self.sweeps.get() >= sweeps + 2
                || self.order_is_past(sequence)
                || self.destage_errors.get() != errors
        };
        self.dirty_changed.until(done).await;
        self.draining.set(self.draining.get() - 1);
        if self.failed() {
            return Err(IoError::Gone);
        }
        self.forget_mended();
        if self.destage_errors.get() != errors || !self.damaged.borrow().is_empty() {
            return Err(IoError::Medium);
        }
        Ok(())
    }
}
