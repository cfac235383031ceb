//! I/Os of an array's drives for each line that a cache in front of it destages: one JSON line a case.
//!
//! The peer is the same cache over the same array that does not say what its stripes are. Modelled drives
//! in virtual time: the same figures in every run.

use std::cell::Cell;
use std::rc::Rc;

use voltier_array::{Array, Geometry, Layout, Level};
use voltier_bench::{emit_digits, new_cache};
use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, KIB, Lba, Limits, MIB, Payload, Prng,
    SECTOR_BYTES, SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, LineSize};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const MEMBERS: usize = 12;
const CHUNK_BYTES: u64 = 64 * KIB;
const MEMBER_BYTES: u64 = 16 * MIB;
const LINE_BYTES: u64 = 4 * KIB;
const DEPTH: u64 = 64;

type Drives = Array<ModelDevice<MemoryDevice>>;
type TestCache = Cache<ModelDevice<MemoryDevice>, Origin>;

/// An array that keeps its stripes to itself, or not.
struct Origin {
    array: Drives,
    limits: Limits,
}

impl BlockDevice for Origin {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.array.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.array.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.array.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.array.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.array.write_zeroes(range, durability).await
    }
}

impl InMemory for Origin {}

/// How lines become dirty.
#[derive(Clone, Copy)]
enum Work {
    /// This share of all lines once, in percent, in random order; then they are destaged.
    Once(u64),
    /// Random lines again and again, three times all there are, destaged meanwhile.
    Random,
    /// The same by streams, each in an extent of its own.
    Streams(u64),
}

fn drive(handle: &Handle, profile: &str, bytes: u64) -> ModelDevice<MemoryDevice> {
    let profile = Profile::find(profile).expect("a profile");
    ModelDevice::new(handle.clone(), profile, MemoryDevice::new(bytes))
}

/// I/Os of the members for each line.
fn ios_per_line(work: Work, ssd_bytes: u64, has_stripes: bool) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let sectors = MEMBER_BYTES / SECTOR_BYTES;
        let geometry =
            Geometry::new(Level::Raid6, Layout::default(), MEMBERS, CHUNK_BYTES, sectors);
        let members = (0..MEMBERS).map(|_| Some(drive(&handle, "ssd-d3700", MEMBER_BYTES)));
        let array = Array::new(&handle, geometry.expect("possible"), members.collect());
        let array = array.expect("possible");
        let mut limits = array.limits().clone();
        limits.stripe = limits.stripe.filter(|_| has_stripes);
        let origin = Origin { array: array.clone(), limits };
        let ssd = drive(&handle, "ssd-pcie", ssd_bytes);
        let cache = new_cache(&handle, ssd, origin, LineSize::DEFAULT, PolicyKind::Lru).await;
        let before = array.counts();
        write_lines(&handle, &cache, work).await;
        if matches!(work, Work::Once(_)) {
            cache.drain().await.expect("everything is written back");
        }
        let counts = array.counts();
        let ios = counts.member_reads + counts.member_writes
            - (before.member_reads + before.member_writes);
        ios as f64 / cache.status().counts.destaged_lines as f64
    })
}

/// The lines to be written, in their order.
fn order(work: Work, lines: u64) -> Vec<u64> {
    let mut dice = Prng::new(5);
    match work {
        Work::Once(percent) => {
            let mut all: Vec<u64> = (0..lines).filter(|_| dice.below(100) < percent).collect();
            for last in (1..all.len()).rev() {
                all.swap(last, dice.below(last as u64 + 1) as usize);
            }
            all
        }
        Work::Random => (0..3 * lines).map(|_| dice.below(lines)).collect(),
        Work::Streams(streams) => {
            let share = lines / streams;
            let next = |step: u64| step % streams * share + step / streams % share;
            (0..3 * lines).map(next).collect()
        }
    }
}

async fn write_lines(handle: &Handle, cache: &TestCache, work: Work) {
    let lines = cache.origin().limits().bytes() / LINE_BYTES;
    let order = Rc::new(order(work, lines));
    let next = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..DEPTH)
        .map(|_| {
            let (cache, order, next) = (cache.clone(), order.clone(), next.clone());
            handle.spawn(async move {
                while let Some(line) = order.get(next.replace(next.get() + 1)) {
                    let at = Lba::from_bytes(line * LINE_BYTES);
                    let data = Buf::zeroed(LINE_BYTES as usize).into();
                    cache.write(at, data, Durability::Cached).await.expect("a write works");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

fn main() {
    // An SSD in which all fits, and one of which clients' writes keep most lines dirty.
    let (large, small) = (1024 * MIB, 96 * MIB);
    for (name, work, ssd_bytes) in [
        ("all lines once, random order", Work::Once(100), large),
        ("80 % of the lines once, random order", Work::Once(80), large),
        ("30 % of the lines once, random order", Work::Once(30), large),
        ("8 streams, destaged meanwhile", Work::Streams(8), small),
        ("random lines, destaged meanwhile", Work::Random, small),
    ] {
        let [ours, theirs] = [true, false].map(|it| ios_per_line(work, ssd_bytes, it));
        let case = format!("destaged to RAID 6 10+2: {name}");
        emit_digits(3, &case, "I/Os of drives a 4k line", ours, "stripes not known", theirs);
    }
}
