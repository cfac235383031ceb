//! Background tasks: what a rebuild and a scrub have in common.
//!
//! A task goes over *units*, a region of the members of one group, each in *runs* of some rows. Runs begin
//! when the pace lets them (`pace`), several at once. Nothing keeps the array between two of them: a task
//! ends with it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::{Rc, Weak};

use voltier_block::{BlockDevice, IoError, IoResult, Nanos, SECTOR_BYTES};
use voltier_ring::Signal;

use crate::array::{Array, Inner};
use crate::canary::Canary;
use crate::generations::in_service;
use crate::members::member::Member;
use crate::tasks::pace::{Pace, Pacer, Progress, Turn};
use crate::tasks::rebuild::RebuildState;
use crate::tasks::replace::Spare;
use crate::tasks::scrub::ScrubState;

/// What a run reads of each member, in bytes, if a chunk is no longer: long enough for the full speed of
/// a disk, short enough for a writer that waits.
const RUN_BYTES: u64 = 512 << 10;
/// The same for a task that only keeps its floor beside requests, on drives without seeks: on eight
/// modelled D3700 200 MB/s of them add 2 % to the clients' 99th percentile, and long ones a tenth.
const SHORT_RUN_BYTES: u64 = 128 << 10;
/// How often a task looks whether its runs have ended.
const LOOK_NS: Nanos = 1_000_000;

/// A task of an array beside its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundTask {
    /// Fills members that were replaced or came back.
    Rebuild,
    /// Reads everything and holds it against its parity.
    Scrub,
}

/// A region of a group.
pub(crate) struct Unit<D> {
    pub(crate) group: usize,
    pub(crate) region: u64,
    /// Members that are filled, and with which devices.
    pub(crate) targets: Vec<(usize, Rc<D>)>,
    /// What the members of the array were when it began.
    pub(crate) generation: u64,
    pub(crate) error: Cell<Option<IoError>>,
    runs_left: Cell<usize>,
}

/// Some rows of a unit.
pub(crate) struct Run<D> {
    pub(crate) unit: Rc<Unit<D>>,
    pub(crate) rows: Range<u64>,
}

/// A task, at work or not.
pub(crate) struct TaskState<D> {
    pub(crate) pacer: Pacer,
    is_running: Cell<bool>,
    is_cancelled: Cell<bool>,
    ended: Signal,
    queue: RefCell<VecDeque<Run<D>>>,
}

impl<D> Default for TaskState<D> {
    fn default() -> Self {
        Self {
            pacer: Pacer::default(),
            is_running: Cell::default(),
            is_cancelled: Cell::default(),
            ended: Signal::new(),
            queue: RefCell::default(),
        }
    }
}

/// All background tasks of an array.
pub(crate) struct Background<D> {
    is_closing: Cell<bool>,
    tasks: [TaskState<D>; 2],
    pub(crate) rebuild: RebuildState,
    pub(crate) scrub: ScrubState,
    pub(crate) spares: RefCell<VecDeque<Spare<D>>>,
    pub(crate) is_using_spares: Cell<bool>,
}

impl<D> Background<D> {
    pub(crate) fn new() -> Self {
        Self {
            is_closing: Cell::new(false),
            tasks: Default::default(),
            rebuild: RebuildState::default(),
            scrub: ScrubState::default(),
            spares: RefCell::default(),
            is_using_spares: Cell::new(false),
        }
    }

    /// The same for an array that takes over: paces and spares.
    pub(crate) fn moved(&self) -> Self {
        let moved = Self::new();
        for (own, next) in self.tasks.iter().zip(&moved.tasks) {
            next.pacer.set_pace(own.pacer.pace());
        }
        moved.spares.swap(&self.spares);
        moved
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }
}

/// How a task goes on.
enum Step {
    Again,
    WaitUntil(Nanos),
    End,
}

impl<D: BlockDevice> Inner<D> {
    pub(crate) fn task(&self, task: BackgroundTask) -> &TaskState<D> {
        &self.background.tasks[task as usize]
    }

    pub(crate) fn is_at_work(&self, task: BackgroundTask) -> bool {
        self.task(task).is_running.get()
    }

    /// Bytes of a member in so many regions, of which the last one of all may be one.
    pub(crate) fn region_bytes(&self, count: u64, has_last: bool) -> u64 {
        let last = self.bitmap.region_range(self.bitmap.region_count() - 1).count;
        let short = if has_last { self.members.region_sectors() - last } else { 0 };
        (count * self.members.region_sectors() - short) * SECTOR_BYTES
    }

    /// Bytes of a member that were ever written.
    pub(crate) fn written_bytes(&self) -> u64 {
        let count = self.bitmap.written_count();
        let has_last = self.bitmap.is_written(self.bitmap.region_count() - 1);
        self.region_bytes(count, has_last)
    }

    pub(crate) fn progress(
        &self,
        task: BackgroundTask,
        done_bytes: u64,
        total_bytes: u64,
    ) -> Progress {
        let state = self.task(task);
        let is_running = state.is_running.get();
        state.pacer.progress(self.handle.now(), is_running, done_bytes, total_bytes)
    }
}

impl<D: BlockDevice> Inner<D> {
    /// A unit, which is begun by putting it in the task's queue.
    pub(crate) fn unit(&self, group: usize, region: u64, targets: Vec<(usize, Rc<D>)>) -> Unit<D> {
        let (runs_left, error) = (Cell::new(0), Cell::new(None));
        let generation = self.members.changes();
        Unit { group, region, targets, generation, error, runs_left }
    }

    /// Starts a task unless it runs; it ends by itself.
    pub(crate) fn begin_task(self: &Rc<Self>, task: BackgroundTask) {
        let state = self.task(task);
        state.is_cancelled.set(false);
        if self.background.is_closing() || state.is_running.replace(true) {
            return;
        }
        state.pacer.start(self.handle.now());
        let (handle, inner) = (self.handle.clone(), Rc::downgrade(self));
        drop(self.handle.spawn(async move {
            let step = async |inner: &Weak<Self>| match in_service(inner) {
                Some(inner) => inner.step(task).await,
                None => Step::End,
            };
            loop {
                match step(&inner).await {
                    Step::Again => handle.yield_now().await,
                    Step::WaitUntil(until_ns) => handle.sleep_until(until_ns).await,
                    Step::End => return,
                }
            }
        }));
    }

    async fn step(self: Rc<Self>, task: BackgroundTask) -> Step {
        let (state, now) = (self.task(task), self.handle.now());
        if state.is_cancelled.get() || self.background.is_closing() {
            for run in state.queue.take() {
                self.end_run(task, &run, Err(IoError::Gone));
            }
            if state.pacer.in_flight() > 0 {
                return Step::WaitUntil(now + LOOK_NS);
            }
            self.pause(task).await;
            return self.end_task(task);
        }
        if task == BackgroundTask::Rebuild && self.store_progress_if_due(now).await {
            return Step::Again;
        }
        if state.queue.borrow().is_empty() && !self.enqueue(task) {
            if state.pacer.in_flight() > 0 {
                return Step::WaitUntil(now + LOOK_NS);
            }
            return if self.finish(task).await { Step::Again } else { self.end_task(task) };
        }
        match state.pacer.turn(now, &self.foreground) {
            Turn::WaitUntil(until_ns) => Step::WaitUntil(until_ns),
            Turn::Go => {
                let Some(run) = state.queue.borrow_mut().pop_front() else { return Step::Again };
                state.pacer.begin(now, self.run_bytes(&run));
                let inner = self.clone();
                drop(self.handle.spawn(async move { inner.do_run(task, run).await }));
                Step::Again
            }
        }
    }

    fn end_task(&self, task: BackgroundTask) -> Step {
        let state = self.task(task);
        state.is_running.set(false);
        state.ended.notify();
        Step::End
    }

    /// Puts the runs of the next unit in the queue; whether there was one.
    fn enqueue(&self, task: BackgroundTask) -> bool {
        let unit = match task {
            BackgroundTask::Rebuild => self.next_rebuild_unit(),
            BackgroundTask::Scrub => self.next_scrub_unit(),
        };
        let Some(unit) = unit.map(Rc::new) else { return false };
        let chunk_sectors = self.geometry.chunk_sectors();
        let range = self.bitmap.region_range(unit.region);
        let (start, end) = (range.start.0 / chunk_sectors, range.end().0 / chunk_sectors);
        let mut run_bytes = self.run_bytes_max(unit.group);
        if self.task(task).pacer.wants_short_runs() {
            run_bytes = run_bytes.min(SHORT_RUN_BYTES);
        }
        let step = (run_bytes / SECTOR_BYTES / chunk_sectors).max(1);
        let mut queue = self.task(task).queue.borrow_mut();
        for row in (start..end).step_by(step as usize) {
            queue.push_back(Run { unit: unit.clone(), rows: row..(row + step).min(end) });
        }
        unit.runs_left.set(queue.len());
        true
    }

    /// What all devices of a group take at once.
    pub(crate) fn run_bytes_max(&self, group: usize) -> u64 {
        let members = self.geometry.members_of(group).map(|member| &self.members[member]);
        let device = |member: &Member<D>| {
            let beside = member.succeeding();
            [member.device().ok(), beside].into_iter().flatten()
        };
        let longest = members.flat_map(device).map(|it| it.limits().max_transfer_bytes).min();
        RUN_BYTES.min(longest.unwrap_or(u32::MAX).into())
    }

    fn run_bytes(&self, run: &Run<D>) -> u64 {
        (run.rows.end - run.rows.start) * self.geometry.chunk_sectors() * SECTOR_BYTES
    }

    async fn do_run(self: Rc<Self>, task: BackgroundTask, run: Run<D>) {
        let begun = self.handle.now();
        let (result, members) = match task {
            BackgroundTask::Rebuild => (self.rebuild_run(&run).await, run.unit.targets.len()),
            BackgroundTask::Scrub => (self.scrub_run(&run).await, self.geometry.width()),
        };
        let bytes = if result.is_ok() { self.run_bytes(&run) * members as u64 } else { 0 };
        self.task(task).pacer.end(self.handle.now(), begun, bytes);
        self.end_run(task, &run, result);
    }

    fn end_run(&self, task: BackgroundTask, run: &Run<D>, result: IoResult<()>) {
        let unit = &run.unit;
        if let Err(error) = result {
            unit.error.set(Some(error));
        }
        unit.runs_left.set(unit.runs_left.get() - 1);
        if unit.runs_left.get() == 0 {
            let is_cancelled = self.task(task).is_cancelled.get() || self.background.is_closing();
            match task {
                BackgroundTask::Rebuild => self.end_rebuild_unit(unit, is_cancelled),
                BackgroundTask::Scrub => self.end_scrub_unit(unit),
            }
        }
    }

    /// All units were tried; whether there is more to do.
    async fn finish(self: &Rc<Self>, task: BackgroundTask) -> bool {
        match task {
            BackgroundTask::Rebuild => self.finish_rebuild().await,
            BackgroundTask::Scrub => self.finish_scrub(),
        }
    }

    async fn pause(self: &Rc<Self>, task: BackgroundTask) {
        if task == BackgroundTask::Rebuild {
            self.store_progress(Canary::PositionBeforeFlush).await;
        }
    }

    /// Has all tasks end, and waits for that. None begins any more.
    pub(crate) async fn end_background(&self) {
        self.background.is_closing.set(true);
        for state in &self.background.tasks {
            state.ended.until(|| !state.is_running.get()).await;
        }
        if let Some(moving) = self.moving.clone() {
            moving.rested().await;
        }
    }
}

impl<D: BlockDevice> Array<D> {
    /// Changes the pace of a task, also while it runs.
    pub fn set_pace(&self, task: BackgroundTask, pace: Pace) {
        self.0.task(task).pacer.set_pace(pace);
    }

    /// The pace of a task.
    pub fn pace(&self, task: BackgroundTask) -> Pace {
        self.0.task(task).pacer.pace()
    }

    /// Has a task end as soon as what it has under way is done. A rebuild goes on where it was when it is
    /// started again, a scrub begins anew.
    pub fn cancel(&self, task: BackgroundTask) {
        self.0.task(task).is_cancelled.set(true);
    }

    /// Waits until a task is not running.
    pub async fn ended(&self, task: BackgroundTask) {
        let state = self.0.task(task);
        state.ended.until(|| !state.is_running.get()).await;
    }
}
