//! Recorded workloads: clients whose every step follows from a seed, all held to one model.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, DriveControl, Durability, IoError, IoResult, KIB, Lba, MIB, Payload,
    Prng, SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{
    Cache, FormatOptions, Health, LineSize, Mode, OpenError, OpenOptions, Opened, Settings,
};
use voltier_ring::{Executor, NoFiles};

use crate::disk::SimDisk;
use crate::disk_spec::DiskSpec;
use crate::fault::FaultMix;
use crate::medium::Medium;
use crate::model::{Model, Write};
use crate::origin::SimDrive;
use crate::world::{SSD, World};

/// A cache over two simulated drives.
pub type SimCache = Cache<SimDisk, SimDrive>;

/// Names the cache of every scenario.
pub(crate) const UUID: [u8; 16] = *b"simulated cache!";
/// Longest single check, in sectors.
const CHECK_SECTORS: u64 = 512;

/// Shorter runs of zeroes are data for every cache.
const LONG_SECTORS_MIN: u64 = 128;
/// One request in so many is such a run, where clients make them.
const LONG_ZEROES_ONE_IN: u64 = 4;

/// One step in so many is a stream, where clients write them: its requests, at most, and their lengths. Shorter ones
/// are none to a cache.
const STREAM_ONE_IN: u64 = 3;
const STREAM_REQUESTS: u64 = 20;
const STREAM_SECTORS: [u64; 4] = [128, 128, 130, 200];

/// All modes, in the order in which seeds draw them: a seed that is on record stays the same life.
pub const MODES: [Mode; Mode::ALL.len()] = {
    let mut modes = Mode::ALL;
    modes.swap(0, 1);
    modes
};

/// The kind of cache, drives and clients.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Bytes of a cache line.
    pub line_bytes: u64,
    /// The replacement policy.
    pub policy: PolicyKind,
    /// The fast drive.
    pub ssd: DiskSpec,
    /// The slow drive.
    pub origin: DiskSpec,
    /// Modes in use; more than one are switched while serving.
    pub modes: Vec<Mode>,
    /// Whether destaging keeps the order of flushes.
    pub ordered: bool,
    /// Clients at once.
    pub clients: u64,
    /// Steps of each client in one session.
    pub steps: u64,
    /// Longest request in sectors.
    pub sectors_max: u64,
    /// Sectors that many requests are aligned to.
    pub align_sectors: u64,
    /// Bytes of each of the three extents that clients use.
    pub window_bytes: u64,
    /// All settings but mode and order.
    pub settings: Settings,
    /// Whether clients zero and discard long ranges among their other requests.
    pub zeroes: bool,
    /// Whether clients write streams that are longer than the SSD has room for.
    pub streams: bool,
    /// Whether clients flush after each write.
    pub syncs: bool,
    /// Whether drives answer nothing for a time, now and then.
    pub hangs: bool,
    /// Whether the origin is an export of a server, behind a network.
    pub remote: bool,
    /// Whether that network is cut for long, and the server answers twice, now and then.
    pub bad_network: bool,
    /// The faults of the fast drive.
    pub ssd_faults: FaultMix,
    /// The faults of the slow drive.
    pub origin_faults: FaultMix,
}

impl Profile {
    /// The smallest cache there can be (640 lines of 4 KiB) before an origin of 36 MiB.
    pub fn small(modes: &[Mode]) -> Self {
        Self {
            line_bytes: 4096,
            policy: PolicyKind::Lru,
            ssd: DiskSpec {
                number: SSD,
                bytes: MIB + (4 + 20) * 256 * KIB,
                block_bytes: 512,
                latency_ns: 20_000,
                model: None,
                lies: false,
                zeroing_discards: false,
                stripe: None,
            },
            origin: DiskSpec {
                number: 2,
                bytes: 36 * MIB + 7 * 512,
                block_bytes: 512,
                latency_ns: 300_000,
                model: None,
                lies: false,
                zeroing_discards: false,
                stripe: None,
            },
            modes: modes.to_vec(),
            ordered: false,
            clients: 4,
            steps: 60,
            sectors_max: 160,
            align_sectors: 8,
            window_bytes: 2 * MIB,
            settings: Settings::default(),
            zeroes: false,
            streams: false,
            syncs: false,
            hangs: false,
            remote: false,
            bad_network: false,
            ssd_faults: FaultMix::default(),
            origin_faults: FaultMix::default(),
        }
    }

    /// The settings to open with.
    pub fn settings(&self, mode: Mode) -> Settings {
        Settings { mode, ordered: self.ordered, ..self.settings.clone() }
    }

    /// The extents that clients use: both sides of a boundary of the intent regions (16 MiB). The
    /// begin and the end of the origin are the others. Together half as large again as the cache.
    pub fn windows(&self) -> [SectorRange; 3] {
        let (end, whole) = (self.origin.bytes, self.window_bytes);
        let half = whole / 2;
        [
            SectorRange::from_bytes(0, half),
            SectorRange::from_bytes(16 * MIB - half, whole),
            SectorRange::from_bytes(end - half, half),
        ]
    }

    /// Empty drives, the fast one with a new cache on it.
    pub fn format(&self) -> (Medium, Medium) {
        self.format_as(UUID, Medium::zeroed(self.origin.bytes))
    }

    /// A new cache of this name before an origin.
    pub(crate) fn format_as(&self, uuid: [u8; 16], origin: Medium) -> (Medium, Medium) {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let world = World::new(&executor.handle(), 0);
        let ssd = SimDisk::new(&world, &self.ssd, Medium::zeroed(self.ssd.bytes));
        let origin = SimDisk::new(&world, &self.origin, origin);
        let format = FormatOptions {
            line_size: LineSize::new(self.line_bytes).expect("a line size"),
            policy: self.policy,
            uuid,
        };
        let drives = (ssd.clone(), origin.clone());
        let origin = SimDrive::any_sector(origin);
        executor.block_on(async move {
            SimCache::format(&ssd, &origin, &format).await.expect("the SSD takes a cache");
        });
        (drives.0.medium(), drives.1.medium())
    }

    /// The model of an origin of zeroes.
    pub fn model(&self) -> Model {
        Model::new(self.origin.bytes / 512)
    }
}

/// Opens the cache on two drives, refusing anything older than `generation_min`.
///
/// # Errors
/// The cache's own.
pub async fn open(
    world: &World,
    drives: &(SimDisk, SimDisk),
    settings: Settings,
    generation_min: u64,
) -> Result<(SimCache, u64), OpenError> {
    let (cache, opened) = open_as(UUID, world, drives, settings, generation_min).await?;
    Ok((cache, opened.generation))
}

/// The same for the cache of this name.
pub(crate) async fn open_as(
    uuid: [u8; 16],
    world: &World,
    drives: &(SimDisk, SimDisk),
    settings: Settings,
    generation_min: u64,
) -> Result<(SimCache, Opened), OpenError> {
    open_passed(uuid, world, drives, settings, generation_min, Vec::new()).await
}

/// The same where an evacuation has let clients pass the SSD.
pub(crate) async fn open_passed(
    uuid: [u8; 16],
    world: &World,
    drives: &(SimDisk, SimDisk),
    settings: Settings,
    generation_min: u64,
    passed: Vec<SectorRange>,
) -> Result<(SimCache, Opened), OpenError> {
    let uuid = Some(uuid);
    let wall_clock = world.wall_clock();
    let options =
        OpenOptions { uuid, generation_min, passed, wall_clock, ..OpenOptions::with(settings) };
    let (ssd, origin) = drives.clone();
    Cache::open(world.handle(), ssd, SimDrive::in_world(world, origin), options).await
}

/// A device under test beside the model it is held to.
pub struct DeviceUnderTest<D> {
    /// The world of the device.
    pub world: World,
    /// The contents that the device may have.
    pub model: Rc<RefCell<Model>>,
    /// The device.
    pub device: D,
    /// The ranges that clients use.
    pub windows: Vec<SectorRange>,
}

impl<D: BlockDevice> DeviceUnderTest<D> {
    /// Reads a range and holds it to the model.
    pub async fn check(&self, range: SectorRange, when: &str) {
        let read = self.model.borrow_mut().begin_read();
        let data = self.device.read(range.start, Buf::new(range.bytes() as usize)).await;
        let data = match data {
            Ok(data) => data,
            Err(error) => {
                self.model.borrow_mut().fail_read(read);
                return self.forgive(error, when, || format!("reading {range}"));
            }
        };
        let checked = self.model.borrow_mut().end_read(read, range.start, &data);
        if let Err(violation) = checked {
            panic!("{when}: {violation}");
        }
    }

    /// An error is one that a fault of this world explains.
    pub(crate) fn forgive(&self, error: IoError, when: &str, what: impl Fn() -> String) {
        assert!(self.world.is_excused(), "{when}: {}: {error}, and nothing is wrong", what());
        self.world.tell(|| format!("client: {}: {error}", what()));
    }

    /// Reads everything that clients use.
    pub async fn check_all(&self, when: &str) {
        for &window in &self.windows {
            for piece in window.split_at_multiples(CHECK_SECTORS) {
                self.check(piece, when).await;
            }
        }
    }
}

/// One client of a cache: a stream of requests that follows from its seed.
pub struct Client<S, O> {
    /// The device that the client uses.
    pub dut: Rc<DeviceUnderTest<Cache<S, O>>>,
    /// The dice of the client.
    pub prng: Prng,
    /// Modes it may switch to.
    pub modes: Vec<Mode>,
    /// The longest request of the client, in sectors.
    pub sectors_max: u64,
    /// Sectors that half of its requests are aligned to.
    pub align_sectors: u64,
    /// Whether the client zeroes and discards long ranges among other requests.
    pub zeroes: bool,
    /// Whether the client writes long streams among other requests.
    pub streams: bool,
    /// Whether the client flushes after each write.
    pub syncs: bool,
}

impl<S: DriveControl, O: DriveControl> Client<S, O> {
    /// Makes `steps` requests, one after the other.
    pub async fn run(mut self, steps: u64) {
        let world = self.dut.world.clone();
        for _ in 0..steps {
            world.within("what a client asked for", self.step()).await;
        }
    }

    async fn step(&mut self) {
        if self.zeroes && self.prng.one_in(LONG_ZEROES_ONE_IN) {
            let range = self.long_range();
            return match self.prng.below(4) {
                0 => self.discard(range).await,
                _ => self.zero(range).await,
            };
        }
        if self.streams && self.prng.one_in(STREAM_ONE_IN) {
            return self.stream().await;
        }
        let range = self.range();
        match self.prng.below(32) {
            0..14 if self.syncs => self.write_and_sync(range).await,
            0..14 => self.write(range).await,
            14..22 => self.dut.check(range, "under load").await,
            22..25 => self.flush().await,
            25..27 => self.zero(range).await,
            27..29 => self.discard(range).await,
            29 => {
                let mode = *self.prng.pick(&self.modes);
                let settings = Settings { mode, ..self.dut.device.settings() };
                self.dut.device.configure(settings).expect("a mode switch works");
            }
            // Nobody helps the log of a client that syncs.
            _ if self.syncs => self.write_and_sync(range).await,
            30 => {
                if let Err(error) = self.dut.device.drain().await {
                    self.dut.forgive(error, "under load", || "a drain".to_owned());
                }
            }
            // Now and then long enough for the cleaner to find the cache idle.
            _ => {
                let pause_ns = *self.prng.pick(&[50_000, 3_000_000, 2_500_000_000]);
                self.dut.world.handle().sleep(pause_ns).await;
            }
        }
    }

    async fn write_and_sync(&mut self, range: SectorRange) {
        self.write(range).await;
        self.flush().await;
    }

    fn range(&mut self) -> SectorRange {
        let window = *self.prng.pick(&self.dut.windows);
        let longest = *self.prng.pick(&[1, 8, 8, 24, self.sectors_max]);
        let longest = longest.min(self.sectors_max);
        let count = if self.prng.one_in(2) { longest } else { 1 + self.prng.below(longest) };
        // A third of the requests meet others in a small place.
        let span = if self.prng.one_in(3) { (2 * count).max(64) } else { window.count };
        let span = span.min(window.count);
        let start = self.prng.below(span - count + 1);
        let align = self.align_sectors;
        let start = if self.prng.one_in(2) { start / align * align } else { start };
        SectorRange::new(window.start.plus(start), count)
    }

    /// A range of which a cache has some lines, and most of which it may not have.
    fn long_range(&mut self) -> SectorRange {
        let window = *self.prng.pick(&self.dut.windows);
        let count = (LONG_SECTORS_MIN + self.prng.below(window.count)).min(window.count);
        let start = self.prng.below(window.count - count + 1);
        let align = if self.prng.one_in(2) { self.align_sectors } else { 1 };
        SectorRange::new(window.start.plus(start / align * align), count)
    }

    /// Writes requests one behind the other, at the begin of which nothing may be aligned.
    async fn stream(&mut self) {
        let window = *self.prng.pick(&self.dut.windows);
        let sectors = *self.prng.pick(&STREAM_SECTORS);
        let first = if self.prng.one_in(2) { self.prng.below(window.count / 2) } else { 0 };
        let mut at = if self.prng.one_in(2) { first } else { first / 128 * 128 };
        for _ in 0..1 + self.prng.below(STREAM_REQUESTS) {
            if at + sectors > window.count {
                return;
            }
            let range = SectorRange::new(window.start.plus(at), sectors);
            self.write_as(range, Durability::Cached).await;
            at += sectors;
        }
    }

    fn durability(&mut self) -> Durability {
        if self.prng.one_in(8) { Durability::Durable } else { Durability::Cached }
    }

    fn data(&mut self, range: SectorRange) -> Bytes {
        let mut data = Buf::new(range.bytes() as usize);
        self.prng.fill(&mut data);
        data.freeze()
    }

    async fn write(&mut self, range: SectorRange) {
        let data = self.data(range);
        let durability = self.durability();
        self.write_data(range, data, durability).await;
    }

    async fn write_as(&mut self, range: SectorRange, durability: Durability) {
        let data = self.data(range);
        self.write_data(range, data, durability).await;
    }

    async fn write_data(&mut self, range: SectorRange, data: Bytes, durability: Durability) {
        let model = self.dut.model.clone();
        let write = model.borrow_mut().begin_write(range.start, &data);
        let cut = 512 * self.prng.below(range.count + 1) as usize;
        let payload = if cut > 0 && cut < data.len() && self.prng.one_in(2) {
            Payload::Many(vec![data.slice(0..cut), data.slice(cut..data.len())])
        } else {
            Payload::One(data)
        };
        self.dut.world.tell(|| format!("client: write {range}, {durability:?}"));
        let written = self.dut.device.write(range.start, payload, durability).await;
        self.end(write, written, durability, "writing");
    }

    async fn zero(&mut self, range: SectorRange) {
        let durability = self.durability();
        let model = self.dut.model.clone();
        let write = model.borrow_mut().begin_zeroes(range);
        self.dut.world.tell(|| format!("client: zero {range}, {durability:?}"));
        // No draw of its own: a seed that is on record stays the same life.
        let keeps_space = range.start.0 / 8 % 2 == 1;
        let mut zeroed = Err(IoError::Unsupported);
        if keeps_space {
            zeroed = self.dut.device.zero_in_place(range, durability).await;
        }
        if zeroed == Err(IoError::Unsupported) {
            zeroed = self.dut.device.write_zeroes(range, durability).await;
        }
        self.end(write, zeroed, durability, "zeroing");
    }

    async fn discard(&mut self, range: SectorRange) {
        let model = self.dut.model.clone();
        let write = model.borrow_mut().begin_discard(range);
        self.dut.world.tell(|| format!("client: discard {range}"));
        let discarded = self.dut.device.discard(range).await;
        self.end(write, discarded, Durability::Cached, "discarding");
    }

    fn end(&self, write: Write, done: IoResult<()>, durability: Durability, what: &str) {
        let (range, durable) = (write.range, durability == Durability::Durable);
        let mut model = self.dut.model.borrow_mut();
        self.dut.world.tell(|| format!("client: {what} {range} has ended"));
        let writes_back = self.modes.iter().all(|mode| mode.writes_back());
        if done.is_ok() && writes_back && what != "discarding" {
            check_bound(&self.dut.device);
        }
        match done {
            Ok(()) => model.end_write(write, durable),
            Err(error) => {
                if self.dut.world.keeps_failed_writes() {
                    model.fail_write_in_log(write);
                } else {
                    model.fail_write(write);
                }
                if durable {
                    model.fail_flush();
                }
                drop(model);
                self.dut.forgive(error, "under load", || format!("{what} {range}"));
            }
        }
    }

    async fn flush(&mut self) {
        let model = self.dut.model.clone();
        let flush = model.borrow_mut().begin_flush();
        match self.dut.device.flush().await {
            Ok(()) => {
                model.borrow_mut().end_flush(flush);
                self.dut.world.tell(|| "client: a flush has completed".to_owned());
            }
            Err(error) => {
                model.borrow_mut().fail_flush();
                self.dut.forgive(error, "under load", || "a flush".to_owned());
            }
        }
    }
}

/// Holds what the origin lacks to the bound, as a write is acknowledged. What is damaged on the SSD counts for
/// nothing: it never reaches the origin.
pub(crate) fn check_bound<S: DriveControl, O: DriveControl>(cache: &Cache<S, O>) {
    let (bound, status) = (cache.settings().max_unshipped, cache.status());
    let found = status.unshipped;
    if !bound.is_any() || status.health != Health::Online || !cache.damaged_ranges().is_empty() {
        return;
    }
    let age_ns = found.age.map_or(0, |age| age.ns);
    assert!(
        bound.age_ns == 0 || age_ns <= bound.age_ns,
        "acknowledged beyond {bound:?}: {found:?}"
    );
    assert!(
        bound.bytes == 0 || found.bytes <= bound.bytes,
        "more is dirty than {bound:?}: {found:?}"
    );
}

/// Runs the clients of a profile at once, for `steps` steps each.
pub async fn run_clients<S: DriveControl, O: DriveControl>(
    dut: &Rc<DeviceUnderTest<Cache<S, O>>>,
    profile: &Profile,
    steps: u64,
) {
    let clients: Vec<_> = (0..profile.clients)
        .map(|_| {
            let client = Client {
                dut: dut.clone(),
                prng: dut.world.prng(),
                modes: profile.modes.clone(),
                sectors_max: profile.sectors_max,
                align_sectors: profile.align_sectors,
                zeroes: profile.zeroes,
                streams: profile.streams,
                syncs: profile.syncs,
            };
            dut.world.handle().spawn(client.run(steps))
        })
        .collect();
    for client in clients {
        client.await;
    }
}

/// A dut for a plain drive: what is left when the cache is gone.
pub fn plain_dut(like: &DeviceUnderTest<SimCache>, drive: SimDisk) -> DeviceUnderTest<SimDrive> {
    let DeviceUnderTest { world, model, windows, .. } = like;
    let device = SimDrive::in_world(world, drive);
    DeviceUnderTest { world: world.clone(), model: model.clone(), device, windows: windows.clone() }
}

/// Whether one of the ranges has this sector.
pub fn is_in(ranges: &[SectorRange], sector: u64) -> bool {
    let one = SectorRange::new(Lba(sector), 1);
    ranges.iter().any(|range| range.contains(one))
}
