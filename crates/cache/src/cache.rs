//! The cache as a block device: what clients and the control plane ask of its parts.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoError, IoResult, Lba, Limits, Payload,
    SectorRange,
};
use voltier_deadline::Guarded;
use voltier_ring::{Handle, JoinHandle, race};

use crate::admission::{Admission, AdmissionKind};
use crate::clean::cleaner::Cleaner;
use crate::clean::passing::Opener;
use crate::config::{FormatOptions, Settings};
use crate::counters::{CacheCounts, LineCounts, OriginCounts};
use crate::devices::origin::Space;
use crate::devices::silence::{OnSilence, Silence};
use crate::devices::ssd::erase_superblock;
use crate::ground::Ground;
use crate::hung;
use crate::log::open::{Label, OpenError, OpenOptions, Opened, UnwritableSsd, ssd_error};
use crate::log::recover;
use crate::log::stage::Stage;
use crate::map::contents::{must, policy_bytes};
use crate::memory::NoMemory;
use crate::needs::memory_of;
use crate::policy::PolicyKind;
use crate::serve::discard::Discarder;
use crate::serve::flush::Flusher;
use crate::serve::part_writes::PartWrites;
use crate::serve::read::Reader;
use crate::serve::route::Router;
use crate::serve::write::{DirectWriter, Writer};
use crate::status::{Side, SilentDrive, Status, Unshipped};

/// The time that a stop waits for a map that is being loaded: the map of a terabyte comes within it.
const STOP_LOAD_WAIT_NS: u64 = 10_000_000_000;

/// A cache in service. Clones are the same cache.
pub struct Cache<S, O>(Rc<Service<Guarded<S>, Guarded<O>>>);

/// The parts of a cache that are asked from outside, and the tasks that work on them.
struct Service<S, O> {
    ground: Rc<Ground<S, O>>,
    cleaner: Rc<Cleaner<S, O>>,
    reader: Reader<S, O>,
    writer: Rc<Writer<S, O>>,
    flusher: Rc<Flusher<S, O>>,
    discarder: Discarder<S, O>,
    /// Tasks, in the reverse of the order in which an end needs them.
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl<S, O> Clone for Cache<S, O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Whether a cache whose SSD refused the first writes is opened all the same.
fn may_evacuate<S, O>(ground: &Ground<S, O>, unwritable: UnwritableSsd) -> bool {
    !ground.health.failed() && unwritable != UnwritableSsd::Refuse
}

impl<S: DriveControl, O: DriveControl> Cache<S, O> {
    /// Lays an empty cache out on the SSD. All older content of the SSD is lost.
    ///
    /// # Errors
    /// When the SSD is too small, the line size does not fit its blocks, or it fails.
    pub async fn format(ssd: &S, origin: &O, options: &FormatOptions) -> Result<(), OpenError> {
        recover::format(ssd, origin.limits(), options).await
    }

    /// Reads the label of the cache on an SSD; `None` if the SSD holds none.
    ///
    /// # Errors
    /// When there is one, but not whole or not of this version.
    pub async fn probe(ssd: &S) -> Result<Option<Label>, OpenError> {
        recover::probe(ssd).await
    }

    /// The memory that an open cache needs with these settings, in bytes, and how much more it needs while it
    /// changes to them.
    pub fn memory_with(&self, policy: PolicyKind, admission: AdmissionKind) -> (u64, u64) {
        let ground = self.ground();
        let geometry = ground.map.geometry();
        let (now, judge) = (ground.map.get().policy_kind(), ground.admission.borrow().kind());
        let mut more = 0;
        if policy != now {
            more += policy_bytes(geometry, policy);
        }
        if admission != judge {
            more += Admission::bytes_for(admission, geometry.capacity_lines());
        }
        (memory_of(geometry, policy, admission), more)
    }

    /// Erases the superblock of a cache that is not open: nobody takes the SSD for a cache again.
    ///
    /// # Errors
    /// When the SSD does not take the writes.
    pub async fn erase(ssd: &S) -> IoResult<()> {
        erase_superblock(ssd).await
    }

    /// Brings the cache on `ssd` back in front of `origin`.
    ///
    /// # Errors
    /// When the SSD holds another cache, does not fit, or is damaged; nothing is changed then.
    pub async fn open(
        handle: &Handle,
        ssd: S,
        origin: O,
        options: OpenOptions,
    ) -> Result<(Self, Opened), OpenError> {
        let deadline_ns = options.settings.deadline_ns;
        let ssd = hung::guard(handle, ssd, deadline_ns);
        let origin = hung::guard(handle, origin, deadline_ns);
        let recovered = recover::recover(&ssd, &origin, &options).await;
        let origin_silent = || hung::silent_or(&origin, "the backing disk", deadline_ns);
        let recovered = match recovered {
            // An origin that fails may be served before, but not one whose requests have all ended at the deadline:
            // it would be gone for good.
            Ok(recovered) => origin_silent().map_or(Ok(recovered), Err)?,
            Err(error) => {
                let silent = hung::silent_or(&ssd, "the SSD", deadline_ns);
                return Err(silent.or_else(origin_silent).unwrap_or(error));
            }
        };
        let (mut opened, superblock) = (recovered.opened, recovered.superblock);
        let (has_new_bits, has_passed) = (recovered.has_new_bits, !recovered.passed.is_empty());
        let ground =
            Ground::new(handle, ssd, origin, recovered, options.settings, options.wall_clock)?;
        match ground.begin_generation(superblock, has_new_bits).await {
            Ok(()) => opened.generation = ground.log.generation(),
            Err(error) if !may_evacuate(&ground, options.unwritable) => {
                let silent = hung::silent_or(ground.ssd.device(), "the SSD", deadline_ns);
                return Err(silent.unwrap_or_else(|| ssd_error(error)));
            }
            Err(_) => {}
        }
        let cache = Self::start(ground);
        if (opened.origin_changed || has_passed) && cache.ground().health.takes_writes() {
            // No intent bit tells the next start that these lines were dropped: a checkpoint does.
            let silence = cache.ground().ssd.silence();
            silence.set_on_silence(OnSilence::Leave);
            if let Err(error) = cache.ground().checkpointer.checkpoint().await
                && !may_evacuate(cache.ground(), options.unwritable)
            {
                cache.kill();
                cache.end_tasks().await;
                // The error of the SSD is told, whatever comes of this.
                let _ = hung::await_rest(cache.ground()).await;
                return Err(ssd_error(error));
            }
            silence.set_on_silence(OnSilence::Wait);
        }
        opened.evacuates = !cache.ground().health.takes_writes();
        if !opened.evacuates {
            // The SSD has forgotten what was passed, and takes newer lines there.
            cache.ground().passage.close();
            cache.start_cleaner();
        }
        Ok((cache, opened))
    }

    /// Puts the upper parts on the lower ones, and starts the background tasks but the cleaner.
    fn start(ground: Ground<Guarded<S>, Guarded<O>>) -> Self {
        let ground = Rc::new(ground);
        hung::install(&ground);
        let router = Rc::new(Router::new(&ground));
        let flusher = Rc::new(Flusher::new(&ground));
        let parts = Rc::new(PartWrites::new(&ground));
        let direct = Rc::new(DirectWriter::new(&ground));
        let reader = Reader::new(&ground, router.clone());
        let writer = Writer::new(&ground, router.clone(), parts, direct.clone(), flusher.clone());
        let writer = Rc::new(writer);
        let discarder = Discarder::new(&ground, router, writer.clone(), direct);
        let cleaner = Cleaner::new(&ground);
        let handle = &ground.handle;
        let tasks = vec![
            handle.spawn(ground.loader().load_rest()),
            handle.spawn(ground.reclaimer().reclaim()),
            handle.spawn(ground.log_writer().write_log()),
        ];
        let tasks = RefCell::new(tasks);
        Self(Rc::new(Service { ground, cleaner, reader, writer, flusher, discarder, tasks }))
    }

    fn start_cleaner(&self) {
        let handle = &self.ground().handle;
        let opener = handle.spawn(Opener::new(&self.0.cleaner).run());
        let cleaner = handle.spawn(self.0.cleaner.clone().clean());
        self.0.tasks.borrow_mut().extend([opener, cleaner]);
    }

    /// Lets the dirty lines of a cache whose opening [said that it evacuates](Opened::evacuates) go to the
    /// origin. The caller has the evacuation on record before: a start that finds the origin changed since a
    /// clean stop must know why. Lines that cannot be read are tried again for as long as the cache serves.
    pub fn begin_evacuation(&self) {
        self.0.cleaner.evacuate_from_start();
        self.start_cleaner();
    }

    fn ground(&self) -> &Ground<Guarded<S>, Guarded<O>> {
        &self.0.ground
    }

    /// A snapshot of the cache's counters and gauges.
    pub fn status(&self) -> Status {
        let ground = self.ground();
        let (contents, counters) = (ground.map.get(), &ground.counters);
        let memory = contents.memory_bytes()
            + ground.log.memory_bytes()
            + ground.admission.borrow().memory_bytes()
            + ground.locks.memory_bytes()
            + ground.origin.locks().memory_bytes();
        let geometry = ground.map.geometry();
        Status {
            mode: ground.settings.borrow().mode,
            policy: contents.policy_kind(),
            line_bytes: geometry.line_bytes,
            uuid: ground.log.uuid(),
            generation: ground.log.generation(),
            health: ground.health.health(),
            evacuation_stalls: self.0.cleaner.evacuation_stalls(),
            ssd_silent_ns: ground.ssd.silence().silent_ns(),
            origin_silent_ns: ground.origin.silence().silent_ns(),
            origin_loss_untold: ground.origin.has_untold_loss(),
            origin_refuses_ns: ground.origin.refusal().lasted_ns(ground.handle.now()),
            lines: LineCounts {
                total: geometry.capacity_lines(),
                used: contents.lines_expected(),
                dirty: contents.index().dirty_lines(),
                loading: contents.loading().map_or(0, |loading| loading.lines_left()),
            },
            unshipped: self.unshipped(),
            reads: counters.reads.get(),
            writes: counters.writes.get(),
            device_bytes: counters.device_bytes.map(Cell::get),
            counts: CacheCounts {
                memory_bytes: memory as u64,
                suspect_lines: contents.suspect_lines(),
                evictions: contents.evictions(),
                ..counters.cache.map(Cell::get)
            },
            origin: OriginCounts {
                failed_flushes: ground.origin.failed_flushes(),
                ..counters.origin.map(Cell::get)
            },
            segments: (geometry.segment_count, contents.segments().free_count() as u32),
        }
    }

    /// What the origin lacks.
    fn unshipped(&self) -> Unshipped {
        let ground = self.ground();
        let bytes = ground.bound.bytes();
        let age = match ground.log.is_ordered() {
            true => ground.bound.oldest_age(),
            false => self.0.cleaner.dirty_age(),
        };
        Unshipped {
            bytes,
            age: age.filter(|_| bytes > 0),
            waiting_writes: ground.bound.waiting(),
            shipped_flush: ground.log.shipped_flush(),
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.ground().settings.borrow().clone()
    }

    /// Changes settings while it serves. A mode that writes through takes effect at once; lines
    /// that are dirty then are served from the cache until the cleaner has written them. The next checkpoint
    /// records mode and order on the SSD.
    ///
    /// # Errors
    /// A sentence for the user when the settings contradict each other, or the system gives no memory for
    /// them; nothing is changed then.
    pub fn configure(&self, settings: Settings) -> Result<(), String> {
        settings.check()?;
        let ground = self.ground();
        let mut admission = None;
        if settings.admission != ground.admission.borrow().kind() {
            let capacity = ground.map.geometry().capacity_lines();
            let judge = Admission::new(settings.admission, capacity);
            admission = Some(judge.map_err(|error| format!("admission: {error}"))?);
        }
        self.0.cleaner.set_order(settings.ordered)?;
        if let Some(admission) = admission {
            ground.admission.replace(admission);
        }
        ground.ssd.set_owner_settings(&settings);
        ground.settings.replace(settings);
        hung::set_deadline(ground);
        ground.pressure.hurry();
        ground.pressure.notify_dirty();
        Ok(())
    }

    /// The device that holds the cache: its superblock is there.
    pub fn ssd(&self) -> &S {
        self.ground().ssd.device().device()
    }

    /// Has another policy choose who leaves, from now on. The knowledge of the old policy is forgotten:
    /// the new one begins with the lines in the order of their slots.
    ///
    /// The next checkpoint records the choice on the SSD.
    ///
    /// # Errors
    /// When the system gives no memory for it; nothing is changed then.
    pub fn set_policy(&self, kind: PolicyKind) -> Result<(), NoMemory> {
        let ground = self.ground();
        let mut contents = ground.map.change();
        if contents.policy_kind() != kind {
            contents.set_policy(kind, ground.log.next_sequence())?;
            ground.checkpointer.set_policy(kind);
        }
        Ok(())
    }

    /// The device behind the cache.
    pub fn origin(&self) -> &O {
        self.ground().origin.device().device()
    }

    /// Has `gate` run and waited for if the SSD is given up, before the origin is changed again. Then
    /// `salvaged` is called if lines that were left have been tried, and fewer may be lost now.
    pub fn on_failure(
        &self,
        gate: impl FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + 'static,
        salvaged: impl FnOnce() + 'static,
    ) {
        self.ground().health.set_gate(Box::new(gate), Box::new(salvaged));
    }

    /// While the answer is kept, requests end with an error instead of a wait for the SSD's dirty lines
    /// to reach the origin. The same holds for a wait for the record of the SSD's loss. So do waits for an
    /// origin that refuses all that is written back. Callers that wait for all requests to end need that.
    #[must_use]
    pub fn release_waits(&self) -> impl Drop + use<S, O> {
        let ground = self.ground();
        let released = ground.health.release_waits();
        // So do writes that wait for an origin which takes nothing.
        ground.pressure.notify_dirty();
        ground.log.wake_waiters();
        released
    }

    /// Whether the SSD is given up because it went away, with all that was dirty on it. Until the loss is on
    /// record nothing but its dirty lines has reached the origin: the same SSD may be opened again.
    pub fn ssd_is_gone(&self) -> bool {
        self.ground().health.is_gone()
    }

    /// Completes when a drive has answered nothing for the deadline, and requests wait for it.
    pub async fn silence(&self) -> SilentDrive {
        let ground = self.ground();
        let _ = race(ground.ssd.silence().begun(), ground.origin.silence().begun()).await;
        self.silent_drive().expect("a silence has begun")
    }

    /// A drive that has answered nothing for the deadline, and for which requests wait; the SSD if both are
    /// such.
    pub fn silent_drive(&self) -> Option<SilentDrive> {
        self.first_drive(Silence::is_waited_for)
    }

    /// A drive [without which](Self::leave_silent_drives) the cache has ended.
    pub fn left_drive(&self) -> Option<SilentDrive> {
        self.first_drive(Silence::has_left)
    }

    fn first_drive(&self, is_it: impl Fn(&Silence) -> bool) -> Option<SilentDrive> {
        let ground = self.ground();
        let lines_dirty = ground.map.get().index().dirty_lines();
        let (ssd, origin) = (ground.ssd.silence(), ground.origin.silence());
        let both = [(Side::Ssd, ssd), (Side::Origin, origin)];
        let (side, silence) = both.into_iter().find(|(_, silence)| is_it(silence))?;
        Some(SilentDrive { side, silent_ns: silence.silent_ns()?, lines_dirty })
    }

    /// Has `tell` called whenever a drive begins to answer nothing (true), or answers again.
    pub fn on_silence(&self, tell: impl Fn(Side, bool) + Clone + 'static) {
        let (ground, of_origin) = (self.ground(), tell.clone());
        ground.ssd.silence().on_change(move |has_begun| tell(Side::Ssd, has_begun));
        ground.origin.silence().on_change(move |has_begun| of_origin(Side::Origin, has_begun));
    }

    /// Has `tell` called with the number of dirty lines when the SSD begins to be evacuated (true), because it
    /// takes no writes any more, and when that has ended.
    pub fn on_evacuation(&self, tell: impl Fn(bool, u64) + 'static) {
        let map = self.ground().map.clone();
        let told = move |has_begun| tell(has_begun, map.get().index().dirty_lines());
        self.ground().health.on_evacuation(told);
    }

    /// Has clients change the origin while the SSD is evacuated. `record` puts ranges on record in which nothing
    /// that the SSD has counts any more, for [the next start](OpenOptions::passed), instead of those that it got
    /// before. It says false if it cannot, or does not end. Without it, and in ordered mode, changes wait for the
    /// end of the evacuation.
    pub fn on_passing(
        &self,
        record: impl Fn(Vec<SectorRange>) -> Pin<Box<dyn Future<Output = bool>>> + 'static,
    ) {
        self.ground().passage.set_recorder(Box::new(record));
    }

    /// From now on the cache ends without a drive that answers nothing for the deadline, as the end of the
    /// process would. The loss of the SSD is on record nowhere, and its dirty lines stay on it. Requests that
    /// wait for the drive end with an error, and so does [`stop`](Self::stop).
    pub fn leave_silent_drives(&self) {
        let ground = self.ground();
        ground.ssd.silence().set_on_silence(OnSilence::Leave);
        ground.origin.silence().set_on_silence(OnSilence::Leave);
        hung::judge_ssd(ground);
        hung::judge_origin(ground);
    }

    /// From now on an SSD that answers nothing for the deadline is given up, whatever is dirty on it. The
    /// caller has it on record that the cache is void.
    pub fn give_up_silent_ssd(&self) {
        let ground = self.ground();
        ground.health.forgo_record();
        ground.ssd.silence().set_on_silence(OnSilence::GiveUp);
        hung::judge_ssd(ground);
    }

    /// Ranges whose newest content was on a lost SSD, merged; at most `count_max`.
    pub fn lost_ranges(&self, count_max: usize) -> Vec<SectorRange> {
        let ground = self.ground();
        if ground.health.failed() { ground.map.get().dirty_ranges(count_max) } else { Vec::new() }
    }

    /// Ranges of dirty lines whose data on the SSD was found damaged.
    pub fn damaged_ranges(&self) -> Vec<SectorRange> {
        let ground = self.ground();
        ground.damage.forget_mended();
        let geometry = ground.map.geometry();
        ground.damage.lines().into_iter().map(|line| geometry.line_range(line)).collect()
    }

    /// Waits until the map of a cache that was opened is in memory: until then, what it had cached is
    /// not all served from it.
    pub async fn loaded(&self) {
        let ground = self.ground();
        ground.map.loaded(|| ground.health.failed()).await;
    }

    /// Writes every line that is dirty now to the origin, and makes it durable there.
    ///
    /// # Errors
    /// The error of the device that stops it; lines not written stay dirty.
    pub async fn drain(&self) -> IoResult<()> {
        self.0.cleaner.drain().await
    }

    /// Ends the background tasks after what is queued has gone out.
    async fn end_tasks(&self) {
        let ground = self.ground();
        // The cleaner ends first, then the log when all is out, then reclaiming, which the log may
        // need until then. Nobody waits for fills any more.
        ground.lifecycle.advance_to(Stage::Stopping);
        ground.log.forget_fills();
        ground.wake_all();
        // The cleaner may wait for the record of a loss.
        drop(ground.health.release_waits());
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        for task in tasks.into_iter().rev() {
            ground.wake_all();
            task.await;
            // The cleaner has ended: what it had under way is queued.
            ground.lifecycle.advance_to(Stage::LogEnding);
            ground.log.open_reserve();
        }
    }

    /// Stops the cache so that it comes back warm: what is dirty stays dirty, on the SSD. To write it back
    /// would take minutes where a shutdown has seconds. A map that is still being loaded is waited for, ten
    /// seconds at most. The next start is one after an unclean stop then, but knows its origin by a
    /// fingerprint.
    ///
    /// No request may be under way. The cache serves nothing afterwards, and its drives have nothing to do.
    ///
    /// # Errors
    /// When the SSD does not take the checkpoint, or a loss of writes past the log is untold. The next start
    /// is one after an unclean stop then. `Gone` when a drive does not end what it has within its deadline.
    pub async fn stop(&self) -> IoResult<()> {
        let stopped = match self.is_loaded_in_time().await {
            true => self.stop_loaded().await,
            false => self.stop_while_loading().await,
        };
        // A log that ended early has left its writes behind.
        stopped.and(hung::await_rest(self.ground()).await)
    }

    /// Stops a cache whose map is in memory.
    async fn stop_loaded(&self) -> IoResult<()> {
        let ground = self.ground();
        self.end_tasks().await;
        if ground.health.has_left() {
            return Err(IoError::Gone);
        }
        let has_ssd = !ground.health.failed();
        if has_ssd {
            ground.log.make_durable().await?;
        }
        ground.origin.flush().await?;
        if ground.origin.has_untold_loss() {
            return Err(IoError::Medium);
        }
        if !has_ssd {
            return Ok(());
        }
        if ground.health.is_evacuating() {
            // The next start finds the lines that are left, as after a crash.
            return Err(IoError::ReadOnly);
        }
        ground.checkpointer.checkpoint_at_stop().await
    }

    /// Waits for the map, which a checkpoint has whole; false when the map takes longer than a stop may.
    async fn is_loaded_in_time(&self) -> bool {
        self.ground().handle.timeout(STOP_LOAD_WAIT_NS, self.loaded()).await.is_ok()
    }

    /// Makes durable what the log holds, and ends the cache as the end of the process would: a start copes
    /// with that. A fingerprint of the origin is recorded.
    async fn stop_while_loading(&self) -> IoResult<()> {
        let ground = self.ground();
        ground.log.forget_fills();
        // The loader finds segments for the log until then.
        let durable = ground.log.make_durable().await;
        let flushed = ground.origin.flush().await;
        let (has_left, is_evacuating) = (ground.health.has_left(), ground.health.is_evacuating());
        // Nothing more is written, and no loss is recorded.
        ground.health.leave();
        // The map may take much longer, and its readers keep the SSD open.
        ground.lifecycle.drop_unneeded();
        self.end_tasks().await;
        match (durable, flushed) {
            _ if has_left => Err(IoError::Gone),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ if ground.origin.has_untold_loss() => Err(IoError::Medium),
            _ if is_evacuating => Err(IoError::ReadOnly),
            _ => {
                hung::await_rest(ground).await?;
                ground.record_fingerprint().await
            }
        }
    }

    /// Ends the cache as a kill of its process would: nothing more is written, nothing is said
    /// goodbye to. For worlds in which a process dies and its devices live on.
    pub fn kill(&self) {
        self.ground().lifecycle.advance_to(Stage::Stopping);
        self.ground().health.give_up();
        drop(self.ground().health.release_waits());
    }

    /// Stops the cache and erases its superblock, so that nobody takes it for one again.
    ///
    /// Call [`drain`](Self::drain) first unless what is dirty shall be lost.
    ///
    /// # Errors
    /// When the SSD does not take the writes.
    pub async fn dissolve(&self) -> IoResult<()> {
        let dissolved = self.end_and_erase().await;
        // Of a drive that hangs now there is nothing to say: it is not needed any more.
        let _ = hung::await_rest(self.ground()).await;
        dissolved
    }

    async fn end_and_erase(&self) -> IoResult<()> {
        let ground = self.ground();
        self.end_tasks().await;
        ground.origin.flush().await?;
        if ground.health.failed() {
            return Ok(());
        }
        let erased = ground.ssd.erase_superblock().await;
        // An SSD that takes no writes keeps its label.
        if ground.health.takes_writes() { erased } else { Ok(()) }
    }

    /// Checks that a cache which has been stopped or ended, and whose requests are over, holds
    /// nothing, and that its books balance. Walks all slots and locks: for tests.
    ///
    /// # Errors
    /// A sentence that names the first account that does not balance.
    pub fn audit(&self) -> Result<(), String> {
        let ground = self.ground();
        for (name, locks) in [("clients'", &*ground.locks), ("the origin's", ground.origin.locks())]
        {
            let (held, waiting) = locks.in_use();
            must(held == 0, || format!("{held} of {name} locks are held"))?;
            must(waiting == 0, || format!("{waiting} of {name} locks are waited for"))?;
        }
        let direct = ground.intents.busy();
        must(direct == 0, || format!("{direct} regions count a direct write under way"))?;
        must(!ground.pressure.is_draining(), || "a drain is under way".to_owned())?;
        ground.map.get().segments().audit_pins()?;
        ground.log.audit()?;
        if !ground.health.takes_writes() {
            // The index is the list of lines that only the SSD has, and no write follows it any more.
            return Ok(());
        }
        ground.map.get().audit()
    }
}

impl<S: DriveControl, O: DriveControl> BlockDevice for Cache<S, O> {
    fn limits(&self) -> &Limits {
        &self.0.ground.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.0.reader.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.0.writer.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.0.flusher.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.0.discarder.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.0.discarder.write_zeroes(range, durability, Space::Given).await
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.0.discarder.write_zeroes(range, durability, Space::Kept).await
    }
}
