//! A volume: what a name stands for while it is served.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, Asked, BlockDevice, Buf, DriveControl, Durability, Figures, IoError, IoResult,
    Lba, Limits, Meter, MeterCounts, Payload, SECTOR_BYTES, SectorRange,
};
use voltier_cache::{
    Cache, DeviceBytes, FormatOptions, Mode, OpenError, OpenOptions, Opened, RequestCounts,
    Settings, Side, SilentDrive, Status,
};
use voltier_ring::{Handle, RangeGuard, RangeLocks, RangeMode, race};

use crate::canary::{self, Canary};
use crate::gate::{Closed, Gate, Inside};
use crate::steps::Steps;

/// Longest request that a volume takes from an export, in bytes: the largest of NBD's payloads.
const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Longest piece that goes down the stack at once. The piece is as long as the disk likes, and so short
/// that a request does not hold every line lock of a neighbour's.
const PIECE_SECTORS: u64 = 2048;
/// Most that a request without data does inside the gate at once: as much as the longest write.
const STEP_SECTORS: u64 = REQUEST_BYTES_MAX as u64 / SECTOR_BYTES;

/// Where longer requests to a device are cut, at multiples of this: its stripes stay whole.
fn piece_sectors(device: &Limits) -> u64 {
    let Some(shape) = device.stripe else { return PIECE_SECTORS };
    let stripe = u64::from(shape.data_bytes) / SECTOR_BYTES;
    if stripe <= PIECE_SECTORS {
        PIECE_SECTORS / stripe * stripe
    } else if shape.data_bytes <= device.max_transfer_bytes {
        stripe
    } else {
        PIECE_SECTORS
    }
}

/// Why the cache of a volume cannot be changed: one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// There is one already.
    #[error("the volume has a cache already; detach it first")]
    HasCache,
    /// There is none.
    #[error("the volume has no cache; attach one with 'voltier attach NAME -s SSD'")]
    NoCache,
    /// The cache does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A drive has answered nothing for the deadline, and what was asked for needs the drive.
    #[error("{}", silent_text(.0))]
    Silent(SilentDrive),
    /// A device failed meanwhile.
    #[error("{what}: {error}")]
    Io {
        /// The operation under way.
        what: &'static str,
        /// The device's error.
        error: IoError,
    },
}

fn silent_text(silent: &SilentDrive) -> String {
    let drive = match silent.side {
        Side::Ssd => "SSD",
        Side::Origin => "backing disk",
    };
    format!("its {drive} has not answered for {} s", silent.silent_ns / 1_000_000_000)
}

enum Stack<D> {
    Plain,
    Cached(Cache<D, Rc<D>>),
}

struct Inner<D> {
    handle: Handle,
    origin: Rc<D>,
    limits: Limits,
    /// The limits over a cache that came back before an origin that has grown since.
    limits_of_cache: OnceCell<Limits>,
    piece_sectors: u64,
    steps: Steps,
    stack: RefCell<Stack<D>>,
    gate: Rc<Gate>,
    /// Order among changes that overlap.
    changes: RangeLocks,
    /// Closed while everything is written back and the cache is about to go.
    quiesced: RefCell<Option<Closed>>,
    plain: PlainCounts,
    /// Requests of clients.
    meter: Meter,
    /// The origin may have lost writes past a cache that is gone, and the next flush says so.
    owes_flush_error: Cell<bool>,
    /// Becomes true when another host takes the origin away.
    taken_away: OnceCell<Rc<Cell<bool>>>,
}

/// Counters of requests that meet no cache.
#[derive(Default)]
struct PlainCounts {
    reads: Cell<RequestCounts>,
    writes: Cell<RequestCounts>,
}

/// Counters and gauges of a volume.
#[derive(Clone, Debug)]
pub struct VolumeFigures {
    /// Size, in bytes.
    pub size_bytes: u64,
    /// Read requests.
    pub reads: RequestCounts,
    /// Write requests.
    pub writes: RequestCounts,
    /// Requests of clients, with the time they take.
    pub meter: MeterCounts,
    /// Bytes moved on the drives.
    pub device_bytes: DeviceBytes,
    /// The cache, if there is one.
    pub cache: Option<Status>,
}

/// A volume in service. Clones are the same volume.
pub struct Volume<D>(Rc<Inner<D>>);

impl<D> Clone for Volume<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Waits for a step that may need both drives of a cache. The step is dropped when one of them is silent.
async fn unless_silent<D: DriveControl, T>(
    cache: &Cache<D, Rc<D>>,
    step: impl Future<Output = T>,
) -> Result<T, VolumeError> {
    race(step, cache.silence()).await.map_err(VolumeError::Silent)
}

impl<D: DriveControl> Volume<D> {
    /// A volume without a cache.
    pub fn plain(handle: &Handle, origin: D) -> Self {
        let limits = Limits {
            block_bytes: 512,
            max_transfer_bytes: REQUEST_BYTES_MAX,
            // A cache may come in front at any time, and it leaves parts of lines as they were.
            after_discard: AfterDiscard::Anything,
            preferred_bytes: origin.limits().preferred_bytes.max(4096),
            ..origin.limits().clone()
        };
        Self(Rc::new(Inner {
            handle: handle.clone(),
            piece_sectors: piece_sectors(origin.limits()),
            steps: Steps::new(),
            origin: Rc::new(origin),
            limits,
            limits_of_cache: OnceCell::new(),
            stack: RefCell::new(Stack::Plain),
            gate: Rc::new(Gate::default()),
            changes: RangeLocks::default(),
            quiesced: RefCell::new(None),
            plain: PlainCounts::default(),
            meter: Meter::new(handle.clock()),
            owes_flush_error: Cell::new(false),
            taken_away: OnceCell::new(),
        }))
    }

    /// Serves nothing any more from the moment when this becomes true: another host has taken the origin away. A cache
    /// in front of it would go on with what is old, and take writes that nobody will see. Once for a volume, before it
    /// is served.
    pub fn serve_until(&self, taken_away: Rc<Cell<bool>>) {
        // The second time changes nothing.
        let _ = self.0.taken_away.set(taken_away);
    }

    fn is_taken_away(&self) -> bool {
        let is_taken = self.0.taken_away.get().is_some_and(|taken| taken.get());
        is_taken && !canary::is(Canary::TakenAwayServed)
    }

    /// Lets a request in.
    async fn enter(&self) -> IoResult<Inside> {
        let inside = self.0.gate.enter().await?;
        if self.is_taken_away() { Err(IoError::Gone) } else { Ok(inside) }
    }

    /// The cache in front, if there is one.
    pub fn cache(&self) -> Option<Cache<D, Rc<D>>> {
        match &*self.0.stack.borrow() {
            Stack::Plain => None,
            Stack::Cached(cache) => Some(cache.clone()),
        }
    }

    /// The device behind everything.
    pub fn origin(&self) -> &D {
        &self.0.origin
    }

    /// A snapshot of counters and gauges.
    pub fn status(&self) -> VolumeFigures {
        let PlainCounts { reads, writes } = &self.0.plain;
        let [mut reads, mut writes] = [reads.get(), writes.get()]
            .map(|plain| RequestCounts { bypassed: plain.requests, ..plain });
        let mut device_bytes = DeviceBytes {
            origin_read: reads.bytes,
            origin_written: writes.bytes,
            ..DeviceBytes::default()
        };
        let cache = self.cache().map(|cache| cache.status());
        if let Some(cache) = &cache {
            reads.add(&cache.reads);
            writes.add(&cache.writes);
            device_bytes.add(&cache.device_bytes);
        }
        let (size_bytes, meter) = (self.limits().bytes(), self.0.meter.counts());
        VolumeFigures { size_bytes, reads, writes, meter, device_bytes, cache }
    }

    /// Makes an empty cache on `ssd` and puts it in front, while clients do I/O.
    ///
    /// # Errors
    /// When there is one already, the SSD does not take it, or there is no memory for it (nothing was written
    /// then); the volume is then as before.
    pub async fn attach_new(
        &self,
        ssd: D,
        format: &FormatOptions,
        options: OpenOptions,
    ) -> Result<Opened, VolumeError> {
        if self.cache().is_some() {
            return Err(VolumeError::HasCache);
        }
        let admission = options.settings.admission;
        let (ssd_bytes, sectors) = (ssd.limits().bytes(), self.0.origin.limits().sectors);
        voltier_cache::ask_for_new(&options.memory, format, admission, ssd_bytes, sectors)?;
        Cache::<D, Rc<D>>::format(&ssd, &self.0.origin, format).await?;
        self.attach_existing(ssd, options).await
    }

    /// Brings back the cache that is on `ssd`: before any client is served. The volume keeps the size that
    /// the cache was made for, also if the origin has grown since.
    ///
    /// # Errors
    /// When the cache is not the expected one, or does not fit; nothing is changed then.
    pub async fn attach_existing(
        &self,
        ssd: D,
        options: OpenOptions,
    ) -> Result<Opened, VolumeError> {
        if self.cache().is_some() {
            return Err(VolumeError::HasCache);
        }
        // Direct writes under way would not be known to the cache: it opens behind a closed gate.
        let _closed = self.0.gate.close().await;
        let origin = self.0.origin.clone();
        let (cache, opened) = Cache::open(&self.0.handle, ssd, origin, options).await?;
        let sectors = cache.limits().sectors;
        if sectors < self.0.limits.sectors {
            let limits = Limits { sectors, ..self.0.limits.clone() };
            self.0.limits_of_cache.set(limits).map_err(|_| VolumeError::HasCache)?;
        }
        self.0.stack.replace(Stack::Cached(cache));
        Ok(opened)
    }

    /// Changes settings of the cache while it serves. When the call returns, no request is under way that
    /// still writes back by a mode that does so no more. All that is dirty then is all there will be.
    ///
    /// # Errors
    /// A sentence for the user; nothing is changed then.
    pub async fn configure(&self, settings: Settings) -> Result<(), String> {
        let cache = self.cache().ok_or_else(|| VolumeError::NoCache.to_string())?;
        let before = cache.settings();
        let ends = before.mode.writes_back() && !settings.mode.writes_back();
        cache.configure(settings)?;
        if ends && self.0.quiesced.borrow().is_none() {
            let closed = unless_silent(&cache, self.close_now()).await;
            if let Err(silent) = closed {
                cache.configure(before)?;
                return Err(silent.to_string());
            }
        }
        Ok(())
    }

    /// Closes the gate, and waits until all requests have ended. Those that wait for the evacuation of an SSD
    /// would wait for ever where the control plane waits for this: they end with an error.
    async fn close_now(&self) -> Closed {
        let _released = self.release_waits();
        self.0.gate.close().await
    }

    /// While the answer is kept, no request waits for the evacuation of an SSD or the record of a loss.
    /// Requests that would wait end with an error.
    #[must_use]
    pub fn release_waits(&self) -> Option<impl Drop + use<D>> {
        self.cache().map(|cache| cache.release_waits())
    }

    /// Has `gate` run, and waited for, when the SSD is given up and before the origin changes. Then
    /// `salvaged` is called if lines that were left have been tried, and fewer may be lost now.
    pub fn on_ssd_failure(
        &self,
        gate: impl FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + 'static,
        salvaged: impl FnOnce() + 'static,
    ) {
        if let Some(cache) = self.cache() {
            cache.on_failure(gate, salvaged);
        }
    }

    /// Has clients change the origin while the SSD is evacuated: see
    /// [`Cache::on_passing`](voltier_cache::Cache::on_passing).
    pub fn on_passing(
        &self,
        record: impl Fn(Vec<SectorRange>) -> Pin<Box<dyn Future<Output = bool>>> + 'static,
    ) {
        if let Some(cache) = self.cache() {
            cache.on_passing(record);
        }
    }

    /// Writes back what is dirty now; clients go on.
    ///
    /// # Errors
    /// When there is no cache, or a device fails.
    pub async fn drain(&self) -> Result<(), VolumeError> {
        let cache = self.cache().ok_or(VolumeError::NoCache)?;
        let drained = unless_silent(&cache, cache.drain()).await?;
        drained.map_err(|error| VolumeError::Io { what: "writing back", error })
    }

    /// Quiesces the volume, with nothing dirty any more: writes everything back while clients go on, then
    /// has them wait and writes back the rest. Clients wait until [`detach`](Self::detach) or
    /// [`resume`](Self::resume): meanwhile whoever keeps the books can note that the cache is void.
    ///
    /// # Errors
    /// When there is no cache, or not everything could be written back: all is as before then.
    pub async fn quiesce(&self) -> Result<(), VolumeError> {
        let cache = self.cache().ok_or(VolumeError::NoCache)?;
        if self.0.quiesced.borrow().is_some() {
            return Ok(());
        }
        let before = cache.settings();
        // No new dirty lines but onto lines that still are: the first pass gets nearly all.
        let settings = Settings { mode: Mode::PassThrough, ..before.clone() };
        drop(cache.configure(settings));
        let failed = match unless_silent(&cache, self.quiesce_behind_gate(&cache)).await {
            Ok(Ok(closed)) => {
                drop(self.0.quiesced.replace(Some(closed)));
                return Ok(());
            }
            Ok(Err(error)) => VolumeError::Io { what: "writing back", error },
            Err(silent) => silent,
        };
        drop(cache.configure(before));
        Err(failed)
    }

    async fn quiesce_behind_gate(&self, cache: &Cache<D, Rc<D>>) -> IoResult<Closed> {
        // In order, clients' writes queue up behind what is dirty: a pass would end with more.
        if !cache.settings().ordered {
            cache.drain().await?;
        }
        // Writes under way when the mode changed may be dirty still, or only now.
        let closed = self.close_now().await;
        if cache.status().lines.dirty > 0 {
            cache.drain().await?;
        }
        Ok(closed)
    }

    /// Lets clients go on after [`quiesce`](Self::quiesce), with the cache still in front.
    pub fn resume(&self) {
        self.0.quiesced.take();
    }

    /// Takes the cache away while clients do I/O. With `write_back`, first everything dirty goes to
    /// the origin; without, it is given up. The SSD is no cache afterwards.
    ///
    /// # Errors
    /// When there is none, or not everything could be written back: it stays then.
    pub async fn detach(&self, write_back: bool) -> Result<(), VolumeError> {
        let cache = self.cache().ok_or(VolumeError::NoCache)?;
        if write_back {
            self.quiesce().await?;
        } else {
            cache.give_up_silent_ssd();
        }
        let _closed = self.close_gate().await;
        let dissolved = cache.dissolve().await;
        if cache.status().origin_loss_untold {
            self.0.owes_flush_error.set(true);
        }
        self.0.stack.replace(Stack::Plain);
        dissolved.map_err(|error| VolumeError::Io { what: "erasing the cache's label", error })
    }

    /// The gate closed, by whoever quiesced the volume or now.
    async fn close_gate(&self) -> Closed {
        let quiesced = self.0.quiesced.take();
        match quiesced {
            Some(closed) => closed,
            None => self.close_now().await,
        }
    }

    /// Stops the volume in order: requests end, the cache is checkpointed and comes back warm.
    /// Requests that come later wait for ever: the exports are closed before. A request without data that
    /// is between two steps ends with an error.
    ///
    /// # Errors
    /// When a device does not take the last writes, or answers nothing for the deadline. The next start is
    /// one after a crash then.
    pub async fn stop(&self) -> IoResult<()> {
        if let Some(cache) = self.cache() {
            cache.leave_silent_drives();
        }
        let closed = self.close_gate().await;
        let stopped = match self.cache() {
            Some(cache) => cache.stop().await,
            None => self.0.origin.flush().await,
        };
        closed.for_ever();
        stopped
    }

    fn check(&self, range: SectorRange) -> IoResult<()> {
        let fits = self.limits().accepts(range);
        if fits && range.bytes() <= u64::from(REQUEST_BYTES_MAX) {
            Ok(())
        } else {
            Err(IoError::OutOfRange)
        }
    }

    /// Where long requests are cut. A cache takes no more than the usual piece at once.
    fn piece_sectors(&self) -> u64 {
        let of_origin = self.0.piece_sectors;
        match &*self.0.stack.borrow() {
            Stack::Cached(_) if of_origin > PIECE_SECTORS => PIECE_SECTORS,
            _ => of_origin,
        }
    }

    fn count_plain(&self, of: &Cell<RequestCounts>, bytes: u64) {
        let mut counts = of.get();
        counts.requests += 1;
        counts.bytes += bytes;
        of.set(counts);
    }

    async fn read_piece(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        match self.cache() {
            Some(cache) => cache.read(at, into).await,
            None => {
                self.count_plain(&self.0.plain.reads, into.len() as u64);
                self.0.origin.read(at, into).await
            }
        }
    }

    async fn write_piece(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        match self.cache() {
            Some(cache) => {
                cache.write(at, data, durability).await?;
                // Taken away while it waited: nothing is acknowledged any more.
                if self.is_taken_away() { Err(IoError::Gone) } else { Ok(()) }
            }
            None => {
                self.count_plain(&self.0.plain.writes, data.len() as u64);
                self.0.origin.write(at, data, durability).await
            }
        }
    }
}

impl<D: DriveControl> BlockDevice for Volume<D> {
    fn limits(&self) -> &Limits {
        self.0.limits_of_cache.get().unwrap_or(&self.0.limits)
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = SectorRange::new(at, into.len() as u64 / SECTOR_BYTES);
        self.check(range)?;
        let _begun = self.0.meter.begin(Asked::Read, range.bytes());
        let _inside = self.enter().await?;
        if range.count <= PIECE_SECTORS {
            return if range.is_empty() { Ok(into) } else { self.read_piece(at, into).await };
        }
        let mut parts = Vec::with_capacity((range.count / PIECE_SECTORS) as usize + 1);
        for piece in range.split_at_multiples(self.piece_sectors()) {
            let part = into.split_to(piece.bytes() as usize);
            parts.push(self.read_piece(piece.start, part).await?);
        }
        Ok(Buf::put_together(parts))
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let bytes = data.len() as u64;
        let range = SectorRange::new(at, bytes / SECTOR_BYTES);
        self.check(range)?;
        if self.0.limits.read_only {
            return Err(IoError::ReadOnly);
        }
        let _begun = self.0.meter.begin(Asked::Write, bytes);
        let held = self.hold(range).await;
        let _inside = self.enter().await?;
        if range.count <= PIECE_SECTORS {
            return if range.is_empty() {
                Ok(())
            } else {
                self.write_piece(at, data, durability).await
            };
        }
        for piece in range.split_at_multiples(self.piece_sectors()) {
            let from = ((piece.start.0 - at.0) * SECTOR_BYTES) as usize;
            let part = data.slice(from..from + piece.bytes() as usize);
            self.write_piece(piece.start, part, durability).await?;
            held.advance(piece.end());
        }
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        let _begun = self.0.meter.begin(Asked::Flush, 0);
        let _inside = self.enter().await?;
        // A cache attached since knows nothing of that.
        if self.0.owes_flush_error.replace(false) {
            return Err(IoError::Medium);
        }
        match self.cache() {
            Some(cache) => cache.flush().await,
            None => self.0.origin.flush().await,
        }
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.check_extent(range)?;
        let _begun = self.0.meter.begin(Asked::Discard, range.bytes());
        let held = self.hold(range).await;
        let mut rest = range;
        while !rest.is_empty() {
            rest = self.take_step(rest, &held, async |step| self.discard_step(step).await).await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.zero_steps(range, durability, async |step, durability| match self.cache() {
            Some(cache) => cache.write_zeroes(step, durability).await,
            None => self.0.origin.write_zeroes(step, durability).await,
        })
        .await
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.zero_steps(range, durability, async |step, durability| match self.cache() {
            Some(cache) => cache.zero_in_place(step, durability).await,
            None => self.0.origin.zero_in_place(step, durability).await,
        })
        .await
    }
}

impl<D: DriveControl> Volume<D> {
    /// Requests without data may be as long as the volume.
    fn check_extent(&self, range: SectorRange) -> IoResult<()> {
        if self.0.limits.read_only {
            return Err(IoError::ReadOnly);
        }
        if self.limits().accepts(range) { Ok(()) } else { Err(IoError::OutOfRange) }
    }

    /// Does the first step of a range; what is left of the range.
    async fn take_step(
        &self,
        range: SectorRange,
        held: &RangeGuard<'_>,
        take: impl AsyncFnOnce(SectorRange) -> IoResult<()>,
    ) -> IoResult<SectorRange> {
        let _inside = self.enter().await?;
        let unit = self.step_sectors();
        let step = self.0.steps.first_of(range, unit);
        let begun = self.0.handle.now();
        take(step).await?;
        self.0.steps.took(step, unit, self.0.handle.now() - begun);
        held.advance(step.end());
        Ok(SectorRange::new(step.end(), range.count - step.count))
    }

    /// Where requests without data are cut at the most. The gate opens between two steps, so nobody waits for a
    /// step longer than for a client's longest write, or for long.
    fn step_sectors(&self) -> u64 {
        let piece_sectors = self.piece_sectors();
        (STEP_SECTORS / piece_sectors).max(1) * piece_sectors
    }

    async fn discard_step(&self, step: SectorRange) -> IoResult<()> {
        let discarded = match self.cache() {
            Some(cache) => cache.discard(step).await,
            None => self.0.origin.discard(step).await,
        };
        match discarded {
            // A discard is advice: a device that cannot take it keeps its content.
            Err(IoError::Unsupported) => Ok(()),
            done => done,
        }
    }

    /// Waits for earlier changes of any of these sectors to end. A drive that hangs in one of them may do it
    /// long after its client has gone, and then over what was acknowledged since.
    ///
    /// A cache keeps its own order among requests of one piece, which may join there. Only longer ones wait
    /// here for each other and for all others. The wait is outside the gate: a request that has its range may
    /// need the gate once more.
    async fn hold(&self, range: SectorRange) -> RangeGuard<'_> {
        let is_long = range.count > PIECE_SECTORS;
        loop {
            // Behind a closed gate the cache may go.
            let is_ordered = !canary::is(Canary::ChangesUnordered);
            let is_alone = || is_ordered && (is_long || self.is_plain() || self.0.gate.is_closed());
            let mode = if is_alone() { RangeMode::Exclusive } else { RangeMode::Shared };
            let held = self.0.changes.lock(range, mode).await;
            if mode == RangeMode::Exclusive || !is_alone() {
                return held;
            }
        }
    }

    fn is_plain(&self) -> bool {
        matches!(*self.0.stack.borrow(), Stack::Plain)
    }

    async fn zero_steps(
        &self,
        range: SectorRange,
        durability: Durability,
        zero: impl AsyncFn(SectorRange, Durability) -> IoResult<()>,
    ) -> IoResult<()> {
        self.check_extent(range)?;
        let _begun = self.0.meter.begin(Asked::Discard, range.bytes());
        let held = self.hold(range).await;
        let take = async |step: SectorRange| {
            let is_all = step.count == range.count;
            zero(step, if is_all { durability } else { Durability::Cached }).await
        };
        let mut rest = self.take_step(range, &held, &take).await?;
        if rest.is_empty() {
            return Ok(());
        }
        while !rest.is_empty() {
            rest = self.take_step(rest, &held, &take).await?;
        }
        drop(held);
        match durability {
            Durability::Cached => Ok(()),
            Durability::Durable => self.flush().await,
        }
    }
}
