//! The cache as a block device, and what its parts share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoResult, Lba, Limits, Payload, SectorRange,
};
use voltier_ring::{Handle, JoinHandle, Signal};

use crate::admission::Admission;
use crate::clean::stripes::Stripes;
use crate::config::Settings;
use crate::devices::health::Health;
use crate::format::geometry::Geometry;
use crate::format::superblock::Superblock;
use crate::log::form::State;
use crate::log::intents::Intents;
use crate::log::recover::{insert_into_policy, policy_for, policy_number};
use crate::map::locks::LineLocks;
use crate::policy::PolicyKind;
use crate::serve::coalescing::Turns;
use crate::serve::idle_origin::Congestion;
use crate::serve::shared_reads::SharedReads;
use crate::status::{Counters, Status};
use crate::stream::StreamDetector;

/// Called once when the SSD is given up; requests wait for it before they touch the origin.
type FailureGate = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>>>;

/// What all parts of one cache share. Fields are borrowed for moments, never across a wait.
pub(crate) struct Inner<S, O> {
    pub(crate) me: Weak<Inner<S, O>>,
    pub(crate) handle: Handle,
    pub(crate) ssd: S,
    pub(crate) origin: O,
    pub(crate) limits: Limits,
    pub(crate) geometry: Geometry,
    /// None if the origin has none that matter.
    pub(crate) stripes: Option<Stripes>,
    pub(crate) superblock: RefCell<Superblock>,
    pub(crate) state: RefCell<State>,
    pub(crate) settings: RefCell<Settings>,
    pub(crate) admission: RefCell<Admission>,
    pub(crate) streams: RefCell<StreamDetector>,
    /// Order among clients' requests for a line.
    pub(crate) locks: Rc<LineLocks>,
    /// Long reads that are under way, for others that want the same.
    pub(crate) shared_reads: SharedReads,
    /// Writes that wait for their lines, or for the log.
    pub(crate) turns: Turns,
    /// Whether hits wait long for the SSD while the origin rests.
    pub(crate) congestion: Congestion,
    /// Order among writes of a line to the origin: the cleaner's and direct ones.
    pub(crate) origin_locks: Rc<LineLocks>,
    pub(crate) intents: Intents,
    pub(crate) counters: Counters,
    /// Dirty lines whose data on the SSD is not what was written.
    pub(crate) damaged: RefCell<BTreeSet<u64>>,
    /// Sweeps of the cleaner over the whole origin, and batches that the origin refused.
    pub(crate) sweeps: Cell<u64>,
    pub(crate) destage_errors: Cell<u64>,
    pub(crate) health: Cell<Health>,
    /// The SSD was given up with acknowledged writes that no flush had covered.
    pub(crate) unflushed_loss: Cell<bool>,
    /// Ends a rest of the cleaner.
    pub(crate) hurry: Signal,
    pub(crate) failure_gate: RefCell<Option<FailureGate>>,
    pub(crate) gate_open: Cell<bool>,
    pub(crate) gate_opened: Signal,
    /// Something was queued, or a record finished: the log may go on.
    pub(crate) log_work: Signal,
    /// Records were acknowledged, or the SSD was given up.
    pub(crate) log_progress: Signal,
    pub(crate) reclaim_work: Signal,
    pub(crate) dirty_changed: Signal,
    pub(crate) flushed: Signal,
    pub(crate) flushing: Cell<bool>,
    /// Changes of the origin that have completed, and how many of them its flushes cover.
    pub(crate) origin_changes: Cell<u64>,
    pub(crate) origin_durable: Cell<u64>,
    pub(crate) origin_flushing: Cell<bool>,
    pub(crate) origin_flushed: Signal,
    /// Records since the last checkpoint.
    pub(crate) records_since_checkpoint: Cell<u64>,
    /// Entries of all records when the last checkpoint began.
    pub(crate) entries_at_checkpoint: Cell<u64>,
    /// More of the map is loaded.
    pub(crate) loading_progress: Signal,
    pub(crate) checkpointing: Cell<bool>,
    /// A person asked for everything to be written back.
    pub(crate) draining: Cell<u32>,
    /// The log finds no space until versions that wait for their order are written out.
    pub(crate) log_waits_for_cleaner: Cell<bool>,
    /// Requests when the cleaner last looked, and when they had last grown.
    pub(crate) requests_seen: Cell<(u64, u64)>,
    /// The cleaner rests, and much that is dirty may end it.
    pub(crate) resting: Cell<bool>,
    pub(crate) stopping: Cell<bool>,
    /// Nothing will be queued any more: the log ends when all is out.
    pub(crate) log_ending: Cell<bool>,
    pub(crate) tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// First and last line of a range that is not empty.
    pub(crate) fn lines_of(&self, range: SectorRange) -> (u64, u64) {
        let sectors = self.geometry.line_sectors();
        (range.start.0 / sectors, (range.end().0 - 1) / sectors)
    }

    /// The sectors of a line that the origin has: the last line may be short.
    pub(crate) fn line_range(&self, line: u64) -> SectorRange {
        let sectors = self.geometry.line_sectors();
        let start = line * sectors;
        SectorRange::new(Lba(start), sectors.min(self.geometry.origin_sectors - start))
    }

    /// One bit for every sector of the line that the origin has.
    pub(crate) fn line_mask(&self, line: u64) -> u128 {
        mask_of(0, self.line_range(line).count)
    }

    /// Runs of valid sectors of a line: all of it, or what the mask says.
    pub(crate) fn valid_runs(&self, line: u64, mask: Option<u128>) -> Vec<SectorRange> {
        let whole = self.line_range(line);
        let Some(mask) = mask else { return vec![whole] };
        let mut runs: Vec<SectorRange> = Vec::new();
        for sector in (0..whole.count).filter(|sector| mask & 1 << sector != 0) {
            let at = whole.start.plus(sector);
            match runs.last_mut() {
                Some(last) if last.end() == at => last.count += 1,
                _ => runs.push(SectorRange::new(at, 1)),
            }
        }
        runs
    }
}

/// `count` bits from bit `first` on.
pub(crate) fn mask_of(first: u64, count: u64) -> u128 {
    let bits = if count == 128 { u128::MAX } else { (1 << count) - 1 };
    bits << first
}

/// A cache in service. Clones are the same cache.
pub struct Cache<S, O>(pub(crate) Rc<Inner<S, O>>);

impl<S, O> Clone for Cache<S, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: BlockDevice, O: BlockDevice> Cache<S, O> {
    /// Starts the background tasks of a loaded cache.
    pub(crate) fn start(inner: Rc<Inner<S, O>>) -> Self {
        let handle = inner.handle.clone();
        let tasks = vec![
            // In the order in which `end_tasks` needs them, last first.
            handle.spawn(inner.clone().load_rest()),
            handle.spawn(inner.clone().reclaim()),
            handle.spawn(inner.clone().write_log()),
            handle.spawn(inner.clone().clean()),
        ];
        inner.tasks.replace(tasks);
        Self(inner)
    }

    /// A snapshot of its counters and gauges.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.0.settings.borrow().clone()
    }

    /// Changes settings while it serves. A mode that writes through takes effect at once; lines
    /// that are dirty then are served from the cache until the cleaner has written them.
    ///
    /// # Errors
    /// A sentence for the user when they make no sense together; nothing is changed then.
    pub fn configure(&self, settings: Settings) -> Result<(), String> {
        settings.check()?;
        let inner = &self.0;
        inner.set_order(settings.ordered)?;
        if settings.admission != inner.admission.borrow().kind() {
            let admission = Admission::new(settings.admission, inner.geometry.capacity_lines());
            inner.admission.replace(admission);
        }
        inner.settings.replace(settings);
        inner.hurry.notify();
        inner.dirty_changed.notify();
        Ok(())
    }

    /// What the SSD's superblock was made with: the device the cache stands on.
    pub fn ssd(&self) -> &S {
        &self.0.ssd
    }

    /// Has another policy choose who leaves, from now on. What the old one had learned is forgotten:
    /// the new one begins with the lines in the order of their slots.
    ///
    /// The next checkpoint records the choice on the SSD.
    pub fn set_policy(&self, kind: PolicyKind) {
        let inner = &self.0;
        let mut state = inner.state.borrow_mut();
        if state.policy.kind() == kind {
            return;
        }
        let seed = state.next_sequence;
        state.policy = policy_for(kind, &inner.geometry, seed);
        insert_into_policy(&mut state);
        inner.superblock.borrow_mut().policy = policy_number(kind).into();
    }

    /// The device behind the cache.
    pub fn origin(&self) -> &O {
        &self.0.origin
    }

    /// Has `gate` run and waited for if the SSD is given up, before the origin is changed again.
    pub fn on_failure(&self, gate: impl FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + 'static) {
        self.0.failure_gate.replace(Some(Box::new(gate)));
    }

    /// Ranges whose newest content was on a lost SSD, merged; at most `count_max`.
    pub fn lost_ranges(&self, count_max: usize) -> Vec<SectorRange> {
        if self.0.failed() { self.0.lost_ranges(count_max) } else { Vec::new() }
    }

    /// Ranges of dirty lines whose data on the SSD was found damaged.
    pub fn damaged_ranges(&self) -> Vec<SectorRange> {
        self.0.forget_mended();
        self.0.damaged.borrow().iter().map(|line| self.0.line_range(*line)).collect()
    }

    /// Waits until the map of a cache that was opened is in memory: until then, what it had cached is
    /// not all served from it.
    pub async fn loaded(&self) {
        self.0.loaded().await;
    }

    /// Writes every line that is dirty now to the origin, and makes it durable there.
    ///
    /// # Errors
    /// The error of the device that stops it; lines not written stay dirty.
    pub async fn drain(&self) -> IoResult<()> {
        self.0.drain().await
    }

    /// Stops the cache so that it comes back warm: what is dirty stays dirty, on the SSD.
    ///
    /// No request may be under way. The cache serves nothing afterwards.
    ///
    /// # Errors
    /// When the SSD does not take the checkpoint: the next start is one after an unclean stop.
    pub async fn stop(&self) -> IoResult<()> {
        self.0.clone().stop().await
    }

    /// Ends the cache as a kill of its process would: nothing more is written, nothing is said
    /// goodbye to. For worlds in which a process dies and its devices live on.
    pub fn kill(&self) {
        self.0.stopping.set(true);
        self.0.fail_ssd();
    }

    /// Stops the cache and erases its superblock, so that nobody takes it for one again.
    ///
    /// Call [`drain`](Self::drain) first unless what is dirty shall be lost.
    ///
    /// # Errors
    /// When the SSD does not take the writes.
    pub async fn dissolve(&self) -> IoResult<()> {
        self.0.clone().dissolve().await
    }
}

impl<S: BlockDevice, O: BlockDevice> BlockDevice for Cache<S, O> {
    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.0.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.0.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.0.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.0.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.0.write_zeroes(range, durability).await
    }
}

/// The limits of a cache over an origin: the origin's, in 512-byte sectors at any rate.
pub(crate) fn limits_over(origin: &Limits, line_bytes: u64) -> Limits {
    Limits {
        sectors: origin.sectors,
        block_bytes: 512,
        preferred_bytes: line_bytes as u32,
        max_transfer_bytes: 1 << 20,
        stripe: None,
        after_discard: AfterDiscard::Anything,
        volatile_cache: true,
        read_only: origin.read_only,
    }
}
