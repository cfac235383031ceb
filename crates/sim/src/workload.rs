//! Recorded workloads: clients whose every step follows from a seed, all held to one model.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, KIB, Lba, MIB, Payload, Prng, SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenError, OpenOptions, Settings};
use voltier_ring::{Executor, NoFiles};

use crate::disk::{DiskSpec, Medium, SimDisk};
use crate::model::Model;
use crate::world::World;

/// A cache over two simulated drives.
pub type SimCache = Cache<SimDisk, SimDisk>;

/// Names the cache of every scenario.
const UUID: [u8; 16] = *b"simulated cache!";
/// Longest single check, in sectors.
const CHECK_SECTORS: u64 = 512;

/// All modes.
pub const MODES: [Mode; 5] =
    [Mode::WriteBack, Mode::WriteThrough, Mode::ReadOnly, Mode::WriteOnly, Mode::PassThrough];

/// What kind of cache, drives and clients.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Bytes of a cache line.
    pub line_bytes: u64,
    /// Who leaves when the cache is full.
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
}

impl Profile {
    /// The smallest cache there can be (640 lines of 4 KiB) before an origin of 36 MiB.
    pub fn small(modes: &[Mode]) -> Self {
        Self {
            line_bytes: 4096,
            policy: PolicyKind::Lru,
            ssd: DiskSpec {
                number: 1,
                bytes: MIB + (4 + 20) * 256 * KIB,
                block_bytes: 512,
                latency_ns: 20_000,
                lies: false,
            },
            origin: DiskSpec {
                number: 2,
                bytes: 36 * MIB + 7 * 512,
                block_bytes: 512,
                latency_ns: 300_000,
                lies: false,
            },
            modes: modes.to_vec(),
            ordered: false,
            clients: 4,
            steps: 60,
            sectors_max: 160,
        }
    }

    /// The stretches that clients use: both sides of a boundary of the marks of direct writes
    /// (16 MiB), and the begin and the end of the origin. Together half as large again as the cache.
    pub fn windows(&self) -> [SectorRange; 3] {
        let end = self.origin.bytes;
        [
            SectorRange::from_bytes(0, MIB),
            SectorRange::from_bytes(15 * MIB, 2 * MIB),
            SectorRange::from_bytes(end - MIB, MIB),
        ]
    }

    /// Empty drives, the fast one with a new cache on it.
    pub fn format(&self) -> (Medium, Medium) {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let world = World::new(&executor.handle(), 0);
        let ssd = SimDisk::new(&world, &self.ssd, Medium::zeroed(self.ssd.bytes));
        let origin = SimDisk::new(&world, &self.origin, Medium::zeroed(self.origin.bytes));
        let format = FormatOptions {
            line_size: LineSize::new(self.line_bytes).expect("a line size"),
            policy: self.policy,
            uuid: UUID,
        };
        let drives = (ssd.clone(), origin.clone());
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
    let options = OpenOptions { uuid: Some(UUID), generation_min, settings, seed: 1 };
    let (ssd, origin) = drives.clone();
    let (cache, opened) = Cache::open(world.handle(), ssd, origin, options).await?;
    Ok((cache, opened.generation))
}

/// A device under test beside the model it is held to.
pub struct Bench<D> {
    /// Where it runs.
    pub world: World,
    /// What it may hold.
    pub model: Rc<RefCell<Model>>,
    /// The device.
    pub device: D,
    /// What clients use of it.
    pub windows: [SectorRange; 3],
}

impl<D: BlockDevice> Bench<D> {
    /// Reads a range and holds it to the model.
    pub async fn check(&self, range: SectorRange, when: &str) {
        let read = self.model.borrow_mut().begin_read();
        let data = self.device.read(range.start, Buf::new(range.bytes() as usize)).await;
        let data = data.unwrap_or_else(|error| panic!("{when}: reading {range}: {error}"));
        let checked = self.model.borrow_mut().end_read(read, range.start, &data);
        if let Err(violation) = checked {
            panic!("{when}: {violation}");
        }
    }

    /// Reads everything that clients use.
    pub async fn check_all(&self, when: &str) {
        for window in self.windows {
            for piece in window.split_at_multiples(CHECK_SECTORS) {
                self.check(piece, when).await;
            }
        }
    }
}

/// One client of a cache: a stream of requests that follows from its seed.
pub struct Client {
    /// What it talks to.
    pub bench: Rc<Bench<SimCache>>,
    /// Its dice.
    pub prng: Prng,
    /// Modes it may switch to.
    pub modes: Vec<Mode>,
    /// Its longest request, in sectors.
    pub sectors_max: u64,
}

impl Client {
    /// Makes `steps` requests, one after the other.
    pub async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        let range = self.range();
        match self.prng.below(32) {
            0..14 => self.write(range).await,
            14..22 => self.bench.check(range, "under load").await,
            22..25 => self.flush().await,
            25..27 => self.zero(range).await,
            27..29 => self.discard(range).await,
            29 => {
                let mode = *self.prng.pick(&self.modes);
                let settings = Settings { mode, ..self.bench.device.settings() };
                self.bench.device.configure(settings).expect("a mode switch works");
            }
            30 => self.bench.device.drain().await.expect("a drain works"),
            // Now and then long enough for the cleaner to find the cache idle.
            _ => {
                let pause_ns = *self.prng.pick(&[50_000, 3_000_000, 2_500_000_000]);
                self.bench.world.handle().sleep(pause_ns).await;
            }
        }
    }

    fn range(&mut self) -> SectorRange {
        let window = *self.prng.pick(&self.bench.windows);
        let longest = *self.prng.pick(&[1, 8, 8, 24, self.sectors_max]);
        let count = if self.prng.one_in(2) { longest } else { 1 + self.prng.below(longest) };
        // A third of the requests meet others in a small place.
        let span = if self.prng.one_in(3) { (2 * count).max(64) } else { window.count };
        let start = self.prng.below(span - count + 1);
        let start = if self.prng.one_in(2) { start / 8 * 8 } else { start };
        SectorRange::new(window.start.plus(start), count)
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
        let (data, durability) = (self.data(range), self.durability());
        let model = self.bench.model.clone();
        let write = model.borrow_mut().begin_write(range.start, &data);
        let cut = 512 * self.prng.below(range.count + 1) as usize;
        let payload = if cut > 0 && cut < data.len() && self.prng.one_in(2) {
            Payload::Many(vec![data.slice(0..cut), data.slice(cut..data.len())])
        } else {
            Payload::One(data)
        };
        let written = self.bench.device.write(range.start, payload, durability).await;
        written.unwrap_or_else(|error| panic!("writing {range}: {error}"));
        model.borrow_mut().end_write(write, durability == Durability::Durable);
    }

    async fn zero(&mut self, range: SectorRange) {
        let durability = self.durability();
        let model = self.bench.model.clone();
        let write = model.borrow_mut().begin_zeroes(range);
        let zeroed = self.bench.device.write_zeroes(range, durability).await;
        zeroed.unwrap_or_else(|error| panic!("zeroing {range}: {error}"));
        model.borrow_mut().end_write(write, durability == Durability::Durable);
    }

    async fn discard(&mut self, range: SectorRange) {
        let model = self.bench.model.clone();
        let write = model.borrow_mut().begin_discard(range);
        let discarded = self.bench.device.discard(range).await;
        discarded.unwrap_or_else(|error| panic!("discarding {range}: {error}"));
        model.borrow_mut().end_write(write, false);
    }

    async fn flush(&mut self) {
        let model = self.bench.model.clone();
        let flush = model.borrow_mut().begin_flush();
        self.bench.device.flush().await.expect("a flush works");
        model.borrow_mut().end_flush(flush);
    }
}

/// Runs the clients of a profile at once, for `steps` steps each.
pub async fn run_clients(bench: &Rc<Bench<SimCache>>, profile: &Profile, steps: u64) {
    let clients: Vec<_> = (0..profile.clients)
        .map(|_| {
            let client = Client {
                bench: bench.clone(),
                prng: bench.world.prng(),
                modes: profile.modes.clone(),
                sectors_max: profile.sectors_max,
            };
            bench.world.handle().spawn(client.run(steps))
        })
        .collect();
    for client in clients {
        client.await;
    }
}

/// A bench for a plain drive: what is left when the cache is gone.
pub fn plain_bench(like: &Bench<SimCache>, drive: SimDisk) -> Bench<SimDisk> {
    let Bench { world, model, windows, .. } = like;
    Bench { world: world.clone(), model: model.clone(), device: drive, windows: *windows }
}

/// Whether one of the ranges has this sector.
pub fn is_in(ranges: &[SectorRange], sector: u64) -> bool {
    let one = SectorRange::new(Lba(sector), 1);
    ranges.iter().any(|range| range.contains(one))
}
