//! Destaging: dirty lines go to the origin in address order, coalesced, at a rate that follows how
//! full of them the cache is.
//!
//! The cleaner sweeps the origin from its first extent to its last and begins again (C-SCAN), so a disk
//! sees ascending addresses. Only what is durable on the SSD is written out. Else a power cut could leave
//! the origin newer than the log, and an older cached copy would be served. A line is called clean when
//! the origin has flushed it, and unless a newer copy arrived meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{DriveControl, IoError, IoResult, Nanos};
use voltier_ring::{Handle, join_at_most, race};

use crate::canary::{self, Canary};
use crate::clean::destage::Destager;
use crate::clean::limit::RateLimit;
use crate::clean::pace::{Pace, Pacer};
use crate::clean::runs::{Dirty, Kept};
use crate::clean::sweep::{BATCH_LINES, Sweep};
use crate::config::Settings;
use crate::counters::{Counters, add};
use crate::devices::health::SsdHealth;
use crate::devices::origin::Origin;
use crate::devices::passage::Passage;
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::change::Change;
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::log::ordered::Age;
use crate::log::pressure::Pressure;
use crate::log::stage::Lifecycle;
use crate::map::shared::Map;
use crate::numbers::Slot;

/// Writes to the origin at once: the depth at which a disk's own reordering pays (NCQ has 32).
const RUNS_IN_FLIGHT_MAX: usize = 32;
/// Longest rest between two batches while there is something to do.
const REST_NS_MAX: u64 = 1_000_000_000;
/// Rest after the origin failed, before it is tried again.
const ERROR_REST_NS: u64 = 1_000_000_000;

/// Sweeps of an evacuation that bring nothing, after which the lines left are lost, unless a start began
/// it. With the rests between them they take three quarters of a minute. In that time a path is switched
/// over or a controller restarts.
const IDLE_SWEEPS_MAX: u32 = 7;
/// Rest after the first sweep that brought nothing; doubled after each further one of these.
const IDLE_REST_NS: u64 = 750_000_000;

/// The same where the lines left only lack a flush of the SSD: three quarters of a second.
const FLUSHLESS_SWEEPS_MAX: u32 = 2;

/// Sweeps that bring nothing, after which lines left by an evacuation are not tried again.
const SALVAGE_SWEEPS: u32 = 2;

/// The cleaner of one cache.
pub(crate) struct Cleaner<S, O> {
    handle: Handle,
    pub(super) map: Rc<Map>,
    pub(super) ssd: Rc<Ssd<S>>,
    pub(super) health: Rc<SsdHealth>,
    pub(super) passage: Rc<Passage>,
    origin: Rc<Origin<O>>,
    pub(super) log: Rc<Log<S>>,
    pub(super) damage: Rc<Damage<S>>,
    pressure: Rc<Pressure>,
    pacer: Pacer<S>,
    destager: Destager<S, O>,
    limit: RateLimit,
    settings: Rc<RefCell<Settings>>,
    counters: Rc<Counters>,
    pub(super) lifecycle: Rc<Lifecycle>,
    /// Sweeps over the whole origin, and batches that the origin refused.
    sweeps: Cell<u64>,
    destage_errors: Cell<u64>,
    evacuation: RefCell<Evacuation>,
}

/// The next step of an evacuation.
enum EvacuationStep {
    Sweep,
    /// Nothing for so long: what cannot be read now may be readable later.
    Rest(Nanos),
    /// The origin has all that can be read from the SSD.
    End,
}

/// The progress of an evacuation, looked at after every sweep.
#[derive(Default)]
struct Evacuation {
    sweeps: u64,
    errors: u64,
    dirty: u64,
    /// Sweeps in a row of which the origin refused nothing, and which left as much as the one before.
    idle_sweeps: u32,
    /// The origin has every line.
    is_complete: bool,
    /// A start began the evacuation, which could have refused the SSD: nothing is given up but by the user.
    is_of_start: bool,
}

impl Evacuation {
    /// Takes what a sweep has left.
    fn note_sweep(&mut self, sweeps: u64, errors: u64, dirty: u64) {
        let is_idle = (errors, dirty) == (self.errors, self.dirty);
        self.idle_sweeps = if is_idle { self.idle_sweeps + 1 } else { 0 };
        (self.sweeps, self.errors, self.dirty) = (sweeps, errors, dirty);
    }

    /// Whether no line that is left could be read for some time.
    fn stalls(&self) -> bool {
        self.idle_sweeps >= IDLE_SWEEPS_MAX
    }

    /// The rest before the next sweep: what cannot be read now may be readable later.
    fn rest_ns(&self) -> Option<u64> {
        let doublings = self.idle_sweeps.min(IDLE_SWEEPS_MAX - 1).checked_sub(1);
        doublings.map(|doublings| IDLE_REST_NS << doublings)
    }
}

impl<S: DriveControl, O: DriveControl> Cleaner<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>) -> Rc<Self> {
        Rc::new(Self {
            handle: ground.handle.clone(),
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            health: ground.health.clone(),
            passage: ground.passage.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            damage: ground.damage.clone(),
            pressure: ground.pressure.clone(),
            pacer: Pacer::new(ground),
            destager: Destager::new(ground),
            limit: RateLimit::default(),
            settings: ground.settings.clone(),
            counters: ground.counters.clone(),
            lifecycle: ground.lifecycle.clone(),
            sweeps: Cell::new(0),
            destage_errors: Cell::new(0),
            evacuation: RefCell::default(),
        })
    }

    /// Has an evacuation go on for as long as lines are left. A start could have refused the SSD instead,
    /// with all of them on it.
    pub(crate) fn evacuate_from_start(&self) {
        self.evacuation.borrow_mut().is_of_start = true;
    }

    /// Whether lines are left in an evacuation that could not be read for some time.
    pub(crate) fn evacuation_stalls(&self) -> bool {
        self.health.is_evacuating() && self.evacuation.borrow().stalls()
    }

    /// The task that cleans.
    pub(crate) async fn clean(self: Rc<Self>) {
        let mut sweep = Sweep::default();
        while !self.ssd.failed() && !self.lifecycle.is_stopping() {
            if let Some(share) = self.next_share().await {
                self.clean_and_rest(&mut sweep, share).await;
            }
        }
    }

    /// The share of its time that the cleaner works next; `None` after a rest, when all is to be asked again.
    async fn next_share(&self) -> Option<f64> {
        if self.log.settles() {
            self.log.progress().await;
            return None;
        }
        if self.health.is_evacuating() {
            match self.next_evacuation_step() {
                EvacuationStep::Sweep => {}
                EvacuationStep::Rest(rest_ns) => {
                    self.rest_until(self.handle.now() + rest_ns, false).await;
                    return None;
                }
                EvacuationStep::End => {
                    self.end_evacuation().await;
                    return None;
                }
            }
        }
        if self.origin.silence().is_waited_for() {
            self.rest_until(self.handle.now() + ERROR_REST_NS, false).await;
            return None;
        }
        if let Some(until_ns) = self.limit.next_ns(self.handle.now(), self.rate()) {
            // Also for the log, and for people who wait: a limit that gives way is none for those who share the line.
            self.rest_until(until_ns, false).await;
            return None;
        }
        let until_ns = match self.pace() {
            Pace::Work(share) => return Some(share),
            Pace::Rest(until_ns) => until_ns,
        };
        // Nothing is tried any more, so nobody knows whether the origin still refuses.
        self.origin.refusal().end();
        match until_ns {
            None => self.pressure.dirty_change().await,
            Some(until_ns) => self.rest_until(until_ns, true).await,
        }
        None
    }

    /// Cleans one batch, then rests for as long as its share asks.
    async fn clean_and_rest(&self, sweep: &mut Sweep, share: f64) {
        let (begun, evacuates) = (self.handle.now(), self.health.is_evacuating());
        let Some(cleaned) = self.clean_some(sweep, share).await else { return };
        self.limit.note(begun, self.destager.take_written());
        if cleaned.is_err() {
            self.note_failure(evacuates);
        } else {
            self.pressure.notify_dirty();
        }
        let now = self.handle.now();
        let rest_ns = match cleaned {
            Err(_) => ERROR_REST_NS,
            Ok(()) => (((now - begun) as f64 * (1.0 - share) / share) as u64).min(REST_NS_MAX),
        };
        if rest_ns > 0 {
            // An origin that fails is not asked more often because much is dirty.
            let until_ns = now + rest_ns;
            let until_ns = if cleaned.is_ok() { self.pacer.at_latest(until_ns) } else { until_ns };
            self.rest_until(until_ns, cleaned.is_ok()).await;
        } else {
            self.handle.yield_now().await;
        }
    }

    /// The next step of an evacuation. After each sweep, lines that could not be read get another try.
    fn next_evacuation_step(&self) -> EvacuationStep {
        let dirty = self.map.get().index().dirty_lines();
        let (sweeps, errors) = (self.sweeps.get(), self.destage_errors.get());
        let mut evacuation = self.evacuation.borrow_mut();
        if dirty == 0 {
            evacuation.is_complete = true;
            return EvacuationStep::End;
        }
        if sweeps == evacuation.sweeps {
            return EvacuationStep::Sweep;
        }
        evacuation.note_sweep(sweeps, errors, dirty);
        self.damage.clear();
        self.ssd.forget_read_errors();
        if evacuation.idle_sweeps >= FLUSHLESS_SWEEPS_MAX && self.all_left_lack_a_flush(dirty) {
            return EvacuationStep::End;
        }
        if evacuation.stalls() {
            if !evacuation.is_of_start {
                return EvacuationStep::End;
            }
            self.note_failure(true);
            evacuation.errors = self.destage_errors.get();
        }
        evacuation.rest_ns().map_or(EvacuationStep::Sweep, EvacuationStep::Rest)
    }

    /// Whether every line that is left may be missing where a replay ends, because the SSD has failed the flush
    /// for it. No later flush is believed, so a long rest brings nothing: such lines go out when the loss of
    /// the SSD is on record.
    fn all_left_lack_a_flush(&self, dirty: u64) -> bool {
        let slots = self.log.slots_not_durable();
        let contents = self.map.get();
        let is_left = |slot: &&Slot| contents.index().is_dirty(**slot);
        slots.len() as u64 >= dirty && slots.iter().filter(is_left).count() as u64 >= dirty
    }

    /// How hard to work: an evacuation waits for nobody.
    fn pace(&self) -> Pace {
        if self.health.is_evacuating() {
            Pace::Work(1.0)
        } else {
            let takes_all = self.destager.stripes().is_none();
            self.pacer.pace(self.sweeps.get(), self.destage_errors.get(), takes_all)
        }
    }

    /// The limit in bytes a second; 0 for none.
    fn rate(&self) -> u64 {
        if self.health.is_evacuating() { 0 } else { self.settings.borrow().destage_rate }
    }

    /// Lines of a batch, as far as they can be counted before.
    fn batch_lines(&self) -> usize {
        RateLimit::lines(self.rate(), self.map.geometry().line_bytes, BATCH_LINES)
    }

    /// One batch; `None` when nothing could be done, after waiting for a change of that.
    async fn clean_some(&self, sweep: &mut Sweep, share: f64) -> Option<IoResult<()>> {
        if self.health.is_evacuating() {
            // Durable versions go in their order; the batch meets the error.
            let _ = self.log.make_durable().await;
        }
        let was_at_front = sweep.is_at_front();
        let (batch, in_order) = self.next_batch(sweep, share);
        let last_sequence = in_order.unwrap_or(0);
        if batch.is_empty() && last_sequence == 0 {
            // A batch in order is none of the sweep's.
            if in_order.is_none() && sweep.is_choosy() {
                // Dirty lines can wait until more of their stripes is dirty.
                self.handle.yield_now().await;
                return None;
            }
            if in_order.is_none() && !was_at_front {
                // Only the rest of this sweep was clean: the next one begins at the front.
                self.count_sweep();
                self.pressure.notify_dirty();
                return None;
            }
            if self.log.records_in_flight() > 0 {
                // Every dirty line is on its way to the SSD: no sweep before they are there.
                self.log.progress().await;
                return None;
            }
            self.count_sweep();
            self.pressure.notify_dirty();
            if !self.pressure.is_draining() && !self.health.is_evacuating() {
                // All that is dirty is damaged: nothing to do until something changes.
                self.pressure.dirty_change().await;
                return None;
            }
        }
        let cleaned = self.clean_batch(batch, last_sequence, true).await;
        if in_order.is_none() && sweep.is_at_front() {
            self.count_sweep();
        }
        Some(cleaned)
    }

    /// The lines that go next, and the last record among them if they go in their order.
    fn next_batch(&self, sweep: &mut Sweep, share: f64) -> (Vec<Dirty>, Option<u64>) {
        let oldest = self.log.order_waits().then(|| self.oldest_epoch());
        // Of a log that has ended, versions may stay behind.
        if let Some((batch, last_sequence)) = oldest
            && (last_sequence > 0 || self.ssd.takes_writes())
        {
            return (batch, Some(last_sequence));
        }
        let dirty = self.map.get().index().dirty_lines();
        let stripes = self.destager.stripes();
        let may_choose = stripes.is_some() && share < 1.0 && !self.pacer.is_old();
        sweep.begin_batch(may_choose, dirty);
        let is_damaged = |line| self.damage.contains(line);
        (sweep.next_batch(&self.map.get(), stripes, self.batch_lines(), is_damaged), None)
    }

    /// Gives the SSD up. Lines that are left are tried once more when that is on record. A replay could
    /// have written older copies over some of them, and none can follow then. (Behind a failed flush nobody
    /// knows where a replay ends: it could serve an old copy while the origin has the newer one. So until the
    /// loss is on record only lines are written that every replay would find dirty.)
    async fn end_evacuation(&self) {
        if self.evacuation.borrow().is_complete {
            return self.health.give_up();
        }
        let is_stopping = || self.lifecycle.is_stopping();
        let Some(salvage) = self.health.begin_salvage() else { return };
        if !salvage.is_recorded(is_stopping).await {
            return;
        }
        let (mut sweep, mut idle_sweeps) = (Sweep::default(), 0);
        let mut dirty = self.map.get().index().dirty_lines();
        while dirty > 0 && idle_sweeps < SALVAGE_SWEEPS && !is_stopping() {
            let (batch, in_order) = self.next_batch(&mut sweep, 1.0);
            if self.clean_batch(batch, in_order.unwrap_or(0), true).await.is_err() {
                self.note_failure(true);
                self.rest_until(self.handle.now() + ERROR_REST_NS, false).await;
                continue;
            }
            if in_order.is_some() || !sweep.is_at_front() {
                continue;
            }
            let left = self.map.get().index().dirty_lines();
            idle_sweeps = if left == dirty { idle_sweeps + 1 } else { 0 };
            dirty = left;
            self.damage.clear();
            self.ssd.forget_read_errors();
        }
        self.evacuation.borrow_mut().is_complete = dirty == 0;
        self.pressure.notify_dirty();
    }

    /// Destaging does not go on: drains end with an error, and in an evacuation writes that wait for it.
    fn note_failure(&self, evacuates: bool) {
        self.destage_errors.set(self.destage_errors.get() + 1);
        if evacuates {
            self.health.note_failed_batch();
        }
        self.pressure.notify_dirty();
        // Writes that wait for the log may wait no more.
        self.log.wake_waiters();
    }

    /// Makes durable what was written since so many flushes of the origin had failed. A flush that failed
    /// meanwhile, whoever asked for it, may have lost lines of the batch: later flushes say nothing of them.
    async fn flush_destaged(&self, failed_flushes: u64) -> IoResult<()> {
        let flushed = self.origin.flush().await;
        if canary::is(Canary::FailedFlushForgotten) {
            return if flushed.is_err() { self.origin.flush().await } else { flushed };
        }
        flushed?;
        let is_whole = self.origin.failed_flushes() == failed_flushes;
        if is_whole { Ok(()) } else { Err(IoError::Medium) }
    }

    /// The origin took nothing of a batch.
    fn note_refused(&self) {
        self.origin.refusal().note_refused(self.handle.now());
    }

    fn count_sweep(&self) {
        self.sweeps.set(self.sweeps.get() + 1);
        self.passage.try_again();
    }

    /// The oldest epoch, or a part of it, and the last record in that.
    fn oldest_epoch(&self) -> (Vec<Dirty>, u64) {
        let Some((versions, last_sequence)) = self.log.oldest_epoch(self.batch_lines()) else {
            return (Vec::new(), 0);
        };
        let order_switches = self.log.order_switches();
        let lines = versions.into_iter().map(|(line, version)| Dirty {
            line,
            slot: version.slot,
            version: Some(Kept { version, order_switches }),
        });
        (lines.collect(), last_sequence)
    }

    /// The origin has everything of the order up to this record.
    fn order_written(&self, last_sequence: u64) {
        self.log.order_written(last_sequence);
        self.pressure.log_waits_no_longer();
        self.pressure.notify_dirty();
        self.map.ask_for_segments();
    }

    /// The age of what is dirty where there is no order, at most.
    pub(crate) fn dirty_age(&self) -> Option<Age> {
        self.pacer.dirty_age()
    }

    /// Switches ordered mode.
    ///
    /// # Errors
    /// A sentence for the user when dirty lines have no order.
    pub(crate) fn set_order(&self, ordered: bool) -> Result<(), String> {
        if ordered == self.log.is_ordered() {
            return Ok(());
        }
        let dirty = self.map.get().index().dirty_lines();
        if ordered && dirty > 0 {
            return Err(format!(
                "{dirty} dirty lines have no order yet; run 'voltier flush NAME' first, with mode=wt while \
                 clients write"
            ));
        }
        self.log.set_ordered(ordered);
        Ok(())
    }

    /// Writes lines out and calls them clean; in ordered mode they are all up to `last_sequence`. Those of a
    /// sweep let clients go first.
    pub(super) async fn clean_batch(
        &self,
        mut batch: Vec<Dirty>,
        last_sequence: u64,
        is_of_sweep: bool,
    ) -> IoResult<()> {
        if !batch.is_empty()
            && self.ssd.may_be_replayed()
            && !canary::is(Canary::DestageBeforeDurable)
            && let Err(error) = self.log.make_durable().await
        {
            if !self.health.is_evacuating() {
                return Err(error);
            }
            let not_durable = self.log.slots_not_durable();
            batch.retain(|of| of.version.is_some() || !not_durable.contains(&of.slot));
        }
        if batch.is_empty() {
            self.order_written(last_sequence);
            return Ok(());
        }
        let failed_flushes = self.origin.failed_flushes();
        let runs = self.destager.runs_of(batch).into_iter().map(|run| async move {
            let _turn = if is_of_sweep { Some(self.passage.turn().await) } else { None };
            self.destager.destage_run(run).await
        });
        let mut cleaned = Vec::new();
        let mut failed = None;
        for result in join_at_most(RUNS_IN_FLIGHT_MAX, runs).await {
            match result {
                Ok(lines) => cleaned.extend(lines),
                Err(error) => failed = Some(error),
            }
        }
        if !cleaned.is_empty() && !canary::is(Canary::CleanBeforeFlush) {
            self.flush_destaged(failed_flushes).await.inspect_err(|_| self.note_refused())?;
        }
        // In order, nothing is gained before a whole batch is there.
        let is_gained = !cleaned.is_empty() && (failed.is_none() || last_sequence == 0);
        if is_gained {
            self.origin.refusal().end();
        } else if failed.is_some() {
            self.note_refused();
        }
        if !cleaned.is_empty() {
            if failed.is_none() {
                // Before the log hears of it: it may be waiting for the space this gives.
                self.order_written(last_sequence);
            }
            add(&self.counters.cache.destaged_lines, cleaned.len() as u64);
            if self.ssd.takes_writes() {
                let news = cleaned.into_iter().map(Change::Clean);
                let number = self.log.queue_internal(news);
                self.log.news_acked(number, last_sequence).await?;
            } else {
                self.map.change().call_clean(cleaned.into_iter());
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.order_written(last_sequence);
        Ok(())
    }

    /// Rests, unless somebody is in a hurry.
    async fn rest_until(&self, until_ns: u64, ends_when_high: bool) {
        let _rest = self.pressure.rest(ends_when_high);
        let _ = race(self.pressure.hurried(), self.handle.sleep_until(until_ns)).await;
    }

    /// Writes every line that is dirty now to the origin, and makes it durable there.
    ///
    /// # Errors
    /// `Gone` when the SSD is given up, `Medium` when the origin or a damaged line stops it.
    pub(crate) async fn drain(&self) -> IoResult<()> {
        // Damaged lines are tried once more: one read may have failed, and not the line.
        self.damage.clear();
        let (sweeps, errors) = (self.sweeps.get(), self.destage_errors.get());
        let sequence = self.log.next_sequence();
        {
            let _drain = self.pressure.drain();
            self.pressure.hurry();
            self.pressure.notify_dirty();
            // Clients may go on writing: two whole sweeps later, what was dirty now has been written. An
            // evacuation tries again until it gives the lines up that are left.
            let is_past = || self.sweeps.get() >= sweeps + 2 || self.log.order_is_past(sequence);
            let done = || {
                self.ssd.failed()
                    || (self.map.get().index().dirty_lines() == 0 && !self.log.settles())
                    || (is_past() && !self.health.is_evacuating())
                    || self.destage_errors.get() != errors
            };
            self.pressure.until(done).await;
        }
        if self.ssd.failed() && !self.evacuation.borrow().is_complete {
            return self.end_drain_without_ssd().await;
        }
        self.damage.forget_mended();
        if self.destage_errors.get() != errors || !self.damage.is_empty() {
            return Err(IoError::Medium);
        }
        if self.ssd.takes_writes() {
            // The caller may count on it after a power cut. A line is clean when that news is formed.
            let is_on_record = async {
                self.log.all_acked().await?;
                self.log.make_durable().await
            };
            if let Err(error) = is_on_record.await {
                let has_failed = self.ssd.failed();
                return if has_failed { self.end_drain_without_ssd().await } else { Err(error) };
            }
        }
        Ok(())
    }

    /// Ends a drain whose SSD was given up: nothing is lost if nothing was dirty.
    async fn end_drain_without_ssd(&self) -> IoResult<()> {
        let is_lost = self.map.get().index().dirty_lines() > 0 || self.health.has_left();
        if is_lost { Err(IoError::Gone) } else { self.origin.flush().await }
    }
}
