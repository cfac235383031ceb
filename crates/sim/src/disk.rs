//! A drive that forgets: what no flush covered is in a volatile cache, and a power cut keeps any
//! part of that, block by block. And a drive that fails: see [`FaultKind`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, DriveControl, Durability, IoError, IoResult, Lba, Limits, Nanos,
    Payload, Prng, SectorRange, UnderWay,
};
use voltier_drive::model::ModelOp;

use crate::delays::Delays;
use crate::disk_spec::DiskSpec;
use crate::fault::{FaultKind, FaultMix, Request};
use crate::inject::{Injector, Refused, Stored, Told};
use crate::mechanism::Mechanism;
use crate::medium::{Cut, Medium, Snapshot, Written};
use crate::world::{Event, SSD, World, drive_name};

/// One request in so many takes long, and how many times as long: it overtakes nothing, everything
/// overtakes it.
const SLOW_ONE_IN: u64 = 40;
const SLOW_FACTOR: u64 = 25;
/// How much longer than that a request takes that meets a latency spike.
const SPIKE_FACTOR: u64 = 400;
/// After this long the kernel gives up a request that a drive does not answer.
const TIMEOUT_NS: Nanos = 30_000_000_000;
/// The answers of a drive that hung come within so many times as long as a request takes.
const LATE_ANSWERS: u64 = 500;
/// How often a stuck request looks whether its drive is gone or mended.
const STUCK_LOOK_NS: Nanos = 1_000_000_000;

struct Inner {
    world: World,
    spec: DiskSpec,
    limits: Limits,
    medium: RefCell<Medium>,
    in_flight: RefCell<BTreeMap<u64, Written>>,
    /// Numbers submissions and completions alike.
    order: Cell<u64>,
    flushes: Cell<u64>,
    gone: Cell<bool>,
    injector: RefCell<Injector>,
    mechanism: Option<Mechanism>,
    /// Requests that it has, also those that nobody waits for any more.
    requests: Rc<Cell<usize>>,
    /// Until then it answers nothing.
    hung_until: Cell<Nanos>,
    /// A flush has lost something, and nobody has seen to that; who is told of the writes in question.
    flush_failed: Cell<bool>,
    on_flush_loss: RefCell<Option<Told>>,
    delays: RefCell<Option<Delays>>,
}

/// A request that the drive has.
struct Held(Rc<Cell<usize>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A simulated drive. Clones are the same drive.
#[derive(Clone)]
pub struct SimDisk(Rc<Inner>);

impl SimDisk {
    /// A drive in `world` with this medium in it.
    pub fn new(world: &World, spec: &DiskSpec, medium: Medium) -> Self {
        let mechanism = spec.model.map(|name| Mechanism::new(world, name, spec.bytes));
        Self(Rc::new(Inner {
            world: world.clone(),
            spec: spec.clone(),
            limits: spec.limits(),
            order: Cell::new(medium.next_order()),
            flushes: Cell::new(0),
            medium: RefCell::new(medium),
            in_flight: RefCell::new(BTreeMap::new()),
            gone: Cell::new(false),
            injector: RefCell::default(),
            mechanism,
            requests: Rc::default(),
            hung_until: Cell::new(0),
            flush_failed: Cell::new(false),
            on_flush_loss: RefCell::default(),
            delays: RefCell::default(),
        }))
    }

    /// The medium after `cut` at this moment. The drive itself goes on.
    pub fn after(&self, cut: Cut, prng: &mut Prng) -> Medium {
        let inner = &self.0;
        let numbers = (u64::from(inner.spec.block_bytes), inner.order.get());
        let in_flight = inner.in_flight.borrow();
        let (medium, damage) = inner.medium.borrow().after(cut, &in_flight, numbers, prng);
        inner.world.ledger().count(|counts| {
            counts.faults[FaultKind::TornWrite as usize] += damage.torn;
            counts.faults[FaultKind::LostWrite as usize] += damage.lost;
        });
        medium
    }

    /// Everything under way is done in part or not at all, as after this cut, and changes nothing any more: its sender
    /// was shut out by the drive's owner.
    pub(crate) fn settle(&self, cut: Cut, prng: &mut Prng) {
        let inner = &self.0;
        let medium = self.after(cut, prng);
        inner.in_flight.borrow_mut().clear();
        inner.order.set(inner.order.get().max(medium.next_order()) + 1);
        inner.medium.replace(medium);
    }

    /// The medium when all that is under way has reached the drive's cache.
    pub(crate) fn after_its_work(&self) -> Medium {
        let inner = &self.0;
        let mut medium = self.medium();
        let (block_bytes, mut order) = (u64::from(inner.spec.block_bytes), inner.order.get());
        for written in inner.in_flight.borrow().values() {
            medium.take_in(&mut order, written, block_bytes);
        }
        medium
    }

    /// The medium as it is now, with every completed write.
    pub fn medium(&self) -> Medium {
        self.0.medium.borrow().clone()
    }

    /// A copy of what reads return now, apart from later writes. The copy costs little.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.0.medium.borrow().snapshot()
    }

    /// Reads without a request.
    pub fn peek(&self, at: Lba, into: &mut [u8]) {
        self.0.medium.borrow().peek(at, into);
    }

    /// Puts something else on the medium than was written, past everybody.
    pub(crate) fn overwrite(&self, byte: u64, data: &[u8]) {
        self.0.medium.borrow_mut().overwrite(byte, data);
    }

    /// Writes, zeroes and discards that were submitted and are not complete.
    pub fn writes_under_way(&self) -> usize {
        self.0.in_flight.borrow().len()
    }

    /// Grows with every request that may change what is read.
    pub(crate) fn changes(&self) -> u64 {
        self.0.order.get() - self.0.flushes.get()
    }

    /// Whether it is the SSD of a cache.
    pub(crate) fn is_ssd(&self) -> bool {
        self.0.spec.number == SSD
    }

    /// Whether this is the same drive.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// The world of the drive.
    pub(crate) fn world(&self) -> &World {
        &self.0.world
    }

    /// Any part of what no flush has covered is lost, and nobody is told: a server in front of the drive has died.
    pub(crate) fn forget_unflushed(&self) {
        let mut prng = self.0.world.prng();
        let block_bytes = u64::from(self.0.spec.block_bytes);
        let lost = self.0.medium.borrow_mut().lose_unflushed(block_bytes, &mut prng);
        self.tell(|| format!("has lost {} writes, in part", lost.len()));
        self.next_order();
    }

    /// From now on every request fails with `Gone`.
    pub fn lose(&self) {
        if !self.0.gone.replace(true) {
            self.0.world.fault(FaultKind::DriveLoss);
            self.tell(|| "is gone".to_owned());
        }
    }

    /// Whether the drive is gone.
    pub fn is_gone(&self) -> bool {
        self.0.gone.get()
    }

    /// The drive answers nothing for so long. Then the drive does all that it was asked for, in any order.
    pub fn hang(&self, time_ns: Nanos) {
        self.0.hung_until.set(self.0.world.handle().now() + time_ns);
        self.0.world.fault(FaultKind::HungDrive);
        self.tell(|| format!("answers nothing for {} ms", time_ns / 1_000_000));
    }

    /// Has requests take longer from now on.
    pub(crate) fn delay(&self, delays: Delays) {
        self.0.delays.replace(Some(delays));
    }

    /// Lets the time pass by which a request takes longer.
    async fn linger(&self, range: SectorRange, is_change: bool) {
        let delays = *self.0.delays.borrow();
        if let Some(delays) = delays {
            delays.pass(&self.0.world, range, is_change).await;
        }
    }

    /// Whether the drive answers nothing, or has not done all that it was asked for meanwhile.
    pub fn is_hung(&self) -> bool {
        self.0.world.handle().now() < self.0.hung_until.get()
    }

    /// Does a request to its end whoever waits for it.
    async fn held<T: 'static>(
        &self,
        request: impl AsyncFnOnce(SimDisk) -> IoResult<T> + 'static,
    ) -> IoResult<T> {
        let (disk, held) = (self.clone(), Held(self.0.requests.clone()));
        held.0.set(held.0.get() + 1);
        let ended = async move {
            let result = request(disk).await;
            drop(held);
            result
        };
        self.0.world.handle().finish(ended).await
    }

    /// Waits while the drive hangs; the answers come one after the other then.
    async fn answer(&self) {
        let world = &self.0.world;
        let until = self.0.hung_until.get();
        if world.handle().now() < until {
            world.handle().sleep_until(until).await;
            world.pass(world.below(LATE_ANSWERS * self.0.spec.latency_ns)).await;
        }
    }

    /// Reads that touch `range` fail.
    pub fn fail_reads(&self, range: SectorRange) {
        self.0.injector.borrow_mut().fail_reads(range, FaultKind::ReadErrorRange);
    }

    /// Writes, discards and zeroes that touch `range` fail and change nothing.
    pub fn fail_writes(&self, range: SectorRange) {
        let mut injector = self.0.injector.borrow_mut();
        injector.fail_writes(range, FaultKind::WriteErrorRange, Stored::Nothing);
    }

    /// Writes, discards and zeroes that touch `range` fail, and have changed all the same what they were to
    /// change.
    pub fn fail_stored_writes(&self, range: SectorRange) {
        let mut injector = self.0.injector.borrow_mut();
        injector.fail_writes(range, FaultKind::WriteErrorRange, Stored::All);
    }

    /// Requests of these kinds fail for so long. What a change stores that fails is drawn.
    pub(crate) fn refuse(&self, refused: Refused, time_ns: Nanos) {
        let stored = [Stored::Nothing, Stored::AnyPart, Stored::All];
        let stored = stored[self.0.world.below(stored.len() as u64) as usize];
        let until = self.0.world.handle().now() + time_ns;
        self.0.injector.borrow_mut().refuse(refused, stored, until);
        self.tell(|| {
            format!("refuses {refused:?} for {} ms, and stores {stored:?}", time_ns / 1_000_000)
        });
    }

    /// Puts another medium in, as somebody does who writes a copy over the drive. Nothing is under way.
    pub(crate) fn put_in(&self, medium: Medium) {
        assert!(self.0.requests.get() == 0, "a drive is written over that has requests");
        self.0.medium.replace(medium);
        self.next_order();
    }

    /// Has `told` called with the range of each write that a failed flush may have lost.
    pub(crate) fn on_flush_loss(&self, told: Told) {
        self.0.on_flush_loss.replace(Some(told));
    }

    /// A flush fails, and any part of what it was for is lost. The kernel says so once.
    fn lose_unflushed(&self) -> IoError {
        self.0.flush_failed.set(true);
        let mut prng = self.0.world.prng();
        let block_bytes = u64::from(self.0.spec.block_bytes);
        let lost = self.0.medium.borrow_mut().lose_unflushed(block_bytes, &mut prng);
        self.tell(|| format!("may lose {} writes", lost.len()));
        // Reads return something else from now on.
        self.next_order();
        if let Some(told) = self.0.on_flush_loss.borrow().clone() {
            lost.iter().for_each(|written| told(written.range()));
        }
        self.failed(FaultKind::FlushLoss, "flush", SectorRange::default())
    }

    /// Flushes fail and make nothing durable.
    pub fn fail_flushes(&self) {
        self.0.injector.borrow_mut().flushes_fail = true;
    }

    /// From now on faults of this mix happen by chance. `damaged` is told of sectors that no longer
    /// hold what was written there, at the moment it happens.
    pub fn inject(&self, mix: &FaultMix, damaged: impl Fn(SectorRange) + 'static) {
        let prng = self.0.world.prng();
        self.0.injector.replace(Injector::new(mix.clone(), prng, Rc::new(damaged)));
    }

    /// Goes on with another mix of faults.
    pub(crate) fn change_mix(&self, mix: &FaultMix) {
        self.0.injector.borrow_mut().change_mix(mix.clone());
    }

    /// Ends all faults of reads, writes and flushes. A drive that is gone stays away.
    pub fn mend(&self) {
        self.0.injector.borrow_mut().mend();
    }

    /// Whether damage is so new that no durable record behind it proves it (see `inject.rs`).
    pub(crate) fn has_fresh_damage(&self) -> bool {
        self.0.injector.borrow().has_fresh_damage()
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        let number = self.0.spec.number;
        self.0.world.tell(|| format!("fault: {} {}", drive_name(number), what()));
    }

    fn next_order(&self) -> u64 {
        self.0.order.replace(self.0.order.get() + 1)
    }

    fn event(&self, event: Event, operation: &str, range: SectorRange) {
        self.0.world.event(event, self.0.spec.number, operation, range);
    }

    /// Draws what goes wrong with a request. A fault that lasts, or strikes the medium, happens here; a
    /// fault of this request alone is returned.
    fn strike(&self, request: Request, range: SectorRange) -> Option<FaultKind> {
        let kind = self.0.injector.borrow_mut().draw(request)?;
        let bytes = self.0.spec.bytes;
        match kind {
            FaultKind::ReadErrorRange | FaultKind::ReadErrorForEver => {
                let mut injector = self.0.injector.borrow_mut();
                let range = injector.around(range, kind, bytes);
                injector.fail_reads(range, kind);
                drop(injector);
                self.tell(|| format!("fails reads of {range} from now on"));
            }
            FaultKind::WriteErrorRange | FaultKind::WriteErrorForEver => {
                let mut injector = self.0.injector.borrow_mut();
                let range = injector.around(range, kind, bytes);
                let stored = injector.draw_stored(self.0.spec.number);
                injector.fail_writes(range, kind, stored);
                drop(injector);
                self.tell(|| format!("fails writes to {range} from now on"));
            }
            FaultKind::BitRot => {
                let (byte, bit) = self.0.injector.borrow_mut().bit_rot_place(bytes);
                self.0.medium.borrow_mut().flip_bit(byte, bit);
                self.0.world.fault(kind);
                self.tell(|| format!("bit {bit} of byte {byte} turns over"));
                self.damaged(SectorRange::new(Lba(byte / 512), 1), false);
            }
            FaultKind::DriveLoss => self.lose(),
            _ => return Some(kind),
        }
        None
    }

    fn damaged(&self, range: SectorRange, always_fresh: bool) {
        let told = self.0.injector.borrow_mut().note_damage(range, always_fresh);
        if let Some(told) = told {
            told(range);
        }
    }

    /// Lets the time of a request pass.
    async fn work(
        &self,
        op: ModelOp,
        range: SectorRange,
        trouble: Option<FaultKind>,
    ) -> IoResult<()> {
        let inner = &self.0;
        let spike =
            trouble.filter(|kind| matches!(kind, FaultKind::LatencySpike | FaultKind::SlowRead));
        if let Some(mechanism) = &inner.mechanism {
            mechanism.work(&inner.world, op, range).await;
        }
        if inner.mechanism.is_none() || spike.is_some() {
            let fastest_ns = inner.spec.latency_ns;
            let mut time_ns = fastest_ns + inner.world.below(4 * fastest_ns);
            if inner.world.below(SLOW_ONE_IN) == 0 {
                time_ns *= SLOW_FACTOR;
            }
            if let Some(kind) = spike {
                time_ns = time_ns.saturating_mul(SPIKE_FACTOR);
                inner.world.fault(kind);
                inner.world.note_slow(time_ns);
                self.tell(|| format!("takes {} ms", time_ns / 1_000_000));
            }
            inner.world.pass(time_ns).await;
        }
        self.answer().await;
        if trouble == Some(FaultKind::StuckIo) && !inner.gone.get() {
            return self.stick().await;
        }
        if inner.gone.get() { Err(IoError::Gone) } else { Ok(()) }
    }

    /// A request that is not answered: until the drive is gone, or the kernel has had enough.
    async fn stick(&self) -> IoResult<()> {
        let world = &self.0.world;
        world.fault(FaultKind::StuckIo);
        self.tell(|| "does not answer a request".to_owned());
        let until = world.handle().now() + TIMEOUT_NS;
        while world.handle().now() < until && self.0.injector.borrow().is_active() {
            world.pass(STUCK_LOOK_NS).await;
            if self.0.gone.get() {
                return Err(IoError::Gone);
            }
        }
        Err(IoError::Medium)
    }

    /// The error of a fault that takes effect now.
    fn failed(&self, kind: FaultKind, operation: &str, range: SectorRange) -> IoError {
        self.0.world.fault(kind);
        if self.0.spec.number == SSD && matches!(operation, "flush" | "read") {
            self.0.world.keep_failed_writes();
        }
        self.tell(|| format!("{operation} {range} fails: {}", kind.name()));
        IoError::Medium
    }

    async fn put(
        &self,
        operation: &str,
        at: Lba,
        data: Bytes,
        durability: Durability,
    ) -> IoResult<()> {
        let range = SectorRange::from_bytes(at.bytes(), data.len() as u64);
        assert!(self.0.limits.accepts(range), "{range} is not a request for this drive");
        if self.0.gone.get() {
            return Err(IoError::Gone);
        }
        let request = if operation == WRITE { Request::Write } else { Request::Give };
        let trouble = self.strike(request, range);
        let mut failing = self.0.injector.borrow().failing_write(range);
        if trouble == Some(FaultKind::WriteErrorOnce) {
            failing = Some((FaultKind::WriteErrorOnce, Stored::AnyPart));
        }
        let now = self.0.world.handle().now();
        if let Some(stored) = self.0.injector.borrow().refused_change(now) {
            failing = Some((FaultKind::Refusal, stored));
        }
        let submitted = self.next_order();
        let written = Written { at: at.bytes(), data };
        let may_change = failing.is_none_or(|failing| failing.1 != Stored::Nothing);
        if may_change {
            self.0.in_flight.borrow_mut().insert(submitted, written.clone());
        }
        self.event(Event::Submitted, operation, range);
        let op = match (operation, durability) {
            (DISCARD, _) => ModelOp::Discard,
            (_, Durability::Cached) => ModelOp::Write,
            (_, Durability::Durable) => ModelOp::WriteDurable,
        };
        self.linger(range, true).await;
        let worked = self.work(op, range, trouble).await;
        let is_there = self.0.in_flight.borrow_mut().remove(&submitted).is_some();
        if may_change && !is_there {
            return Err(IoError::Gone);
        }
        if let Some((kind, stored)) = failing {
            match stored {
                Stored::Nothing => {}
                Stored::AnyPart => self.put_in_part(&written),
                Stored::All => self.complete(None, written, Durability::Cached, range),
            }
            worked?;
            return Err(self.failed(kind, operation, range));
        }
        if worked.is_err() && trouble == Some(FaultKind::StuckIo) {
            self.put_in_part(&written);
        }
        worked?;
        self.complete(trouble, written, durability, range);
        self.event(Event::Completed, operation, range);
        Ok(())
    }

    fn complete(
        &self,
        trouble: Option<FaultKind>,
        mut written: Written,
        durability: Durability,
        range: SectorRange,
    ) {
        let block_bytes = u64::from(self.0.spec.block_bytes);
        let elsewhere = if trouble == Some(FaultKind::MisdirectedWrite) {
            let limits = &self.0.limits;
            self.0.injector.borrow_mut().elsewhere(range, limits.bytes(), block_bytes)
        } else {
            None
        };
        if let Some(at) = elsewhere {
            written.at = at.bytes();
            self.0.world.fault(FaultKind::MisdirectedWrite);
            self.tell(|| format!("write of {range} goes to {at}"));
            self.damaged(range, true);
            self.damaged(SectorRange::new(at, range.count), true);
        }
        let completed = self.next_order();
        self.0.injector.borrow_mut().note_write(written.at, written.data.len() as u64);
        self.0.medium.borrow_mut().complete(completed, written, durability);
    }

    async fn get(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = SectorRange::from_bytes(at.bytes(), into.len() as u64);
        assert!(self.0.limits.accepts(range), "{range} is not a request for this drive");
        if self.0.gone.get() {
            return Err(IoError::Gone);
        }
        let trouble = self.strike(Request::Read, range);
        let once = trouble.filter(|kind| *kind == FaultKind::ReadErrorOnce);
        let now = self.0.world.handle().now();
        let is_refused = self.0.injector.borrow().is_read_refused(now);
        let failing = self.0.injector.borrow().failing_read(range).or(once);
        let failing = if is_refused { Some(FaultKind::Refusal) } else { failing };
        self.event(Event::Submitted, "read", range);
        // The content of some moment between begin and end.
        let early = self.0.world.below(2) == 0;
        if early {
            self.0.medium.borrow().peek(at, &mut into);
        }
        self.linger(range, false).await;
        self.work(ModelOp::Read, range, trouble).await?;
        if let Some(kind) = failing {
            return Err(self.failed(kind, "read", range));
        }
        if !early {
            self.0.medium.borrow().peek(at, &mut into);
        }
        self.0.world.ledger().count(|counts| counts.requests += 1);
        Ok(into)
    }

    async fn sync(&self) -> IoResult<()> {
        if self.0.gone.get() {
            return Err(IoError::Gone);
        }
        let trouble = self.strike(Request::Flush, SectorRange::default());
        let once = trouble == Some(FaultKind::FlushError);
        let fails = once || self.0.injector.borrow().flushes_fail;
        let covers = self.next_order();
        self.0.flushes.set(self.0.flushes.get() + 1);
        self.event(Event::Submitted, "flush", SectorRange::default());
        self.work(ModelOp::Flush, SectorRange::default(), trouble).await?;
        if trouble == Some(FaultKind::FlushLoss) {
            return Err(self.lose_unflushed());
        }
        if self.0.injector.borrow().is_flush_refused(self.0.world.handle().now()) {
            self.failed(FaultKind::Refusal, "flush", SectorRange::default());
            return Err(self.lose_unflushed());
        }
        if self.0.flush_failed.get() {
            return Err(IoError::Medium);
        }
        if fails {
            return Err(self.failed(FaultKind::FlushError, "flush", SectorRange::default()));
        }
        if !self.0.spec.lies {
            let flushed = self.0.medium.borrow_mut().flush(covers);
            self.0.injector.borrow_mut().note_flush(flushed);
        }
        self.event(Event::Completed, "flush", SectorRange::default());
        Ok(())
    }

    /// A failing write may have changed any of its blocks.
    fn put_in_part(&self, written: &Written) {
        let mut prng = self.0.world.prng();
        let block_bytes = u64::from(self.0.spec.block_bytes);
        for run in written.survivors(block_bytes, 1, &mut prng) {
            for block in run.blocks(block_bytes) {
                let completed = self.next_order();
                self.0.medium.borrow_mut().complete(completed, block, Durability::Cached);
            }
        }
    }
}

const WRITE: &str = "write";
const DISCARD: &str = "discard";

impl BlockDevice for SimDisk {
    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.held(async move |disk: SimDisk| disk.get(at, into).await).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let mut whole = Buf::new(data.len());
        let mut filled = 0;
        for piece in data.pieces() {
            whole[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
        let whole = whole.freeze();
        self.held(async move |disk: SimDisk| disk.put(WRITE, at, whole, durability).await).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.held(async move |disk: SimDisk| disk.sync().await).await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let mut content = Buf::new(range.bytes() as usize);
        match if self.0.spec.zeroing_discards { 1 } else { self.0.world.below(3) } {
            0 => self.0.medium.borrow().peek(range.start, &mut content),
            1 => content.fill(0),
            _ => content.fill(0xd5),
        }
        let (content, at) = (content.freeze(), range.start);
        let put =
            async move |disk: SimDisk| disk.put(DISCARD, at, content, Durability::Cached).await;
        self.held(put).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let zeroes = Buf::zeroed(range.bytes() as usize).freeze();
        self.held(async move |disk: SimDisk| {
            disk.put("zero", range.start, zeroes, durability).await
        })
        .await
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        match self.0.spec.zeroing_discards {
            true => self.write_zeroes(range, durability).await,
            false => Err(IoError::Unsupported),
        }
    }
}

impl DriveControl for SimDisk {
    fn under_way(&self) -> UnderWay {
        let requests = self.0.requests.clone();
        UnderWay::of(move || requests.get())
    }

    /// A drive that hangs ends nothing early, whoever gives it up.
    fn abandon(&self) {}

    fn forget_failed_flush(&self) {
        self.0.flush_failed.set(false);
    }

    fn patience_ns(&self) -> Nanos {
        0
    }
}
