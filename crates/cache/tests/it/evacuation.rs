//! Goal: a client hardly notices that an SSD which takes no writes any more is evacuated, and what was written
//! past the SSD is there after a crash. Method: virtual time, an SSD that fails its writes, and a disk that does
//! one request after the other.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, MIB, Nanos, Payload, Prng,
    SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, Health, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_filter::{Fault, FaultDevice, Faults};
use voltier_ring::{Executor, Handle, NoFiles};

const MS_NS: Nanos = 1_000_000;
/// The time of each request of the disk.
const SERVICE_NS: Nanos = 8 * MS_NS;
/// The time in which a range is put on record.
const RECORD_NS: Nanos = 10 * MS_NS;
const LINE: usize = 4096;
const ORIGIN_BYTES: u64 = 48 * MIB;
const LINES: u64 = ORIGIN_BYTES / LINE as u64;
/// Every such line is dirty before the SSD fails: no two of them go to the disk together.
const DIRTY_ONE_IN: u64 = 4;

/// A disk that does one request after the other.
#[derive(Clone)]
struct Disk {
    memory: MemoryDevice,
    handle: Handle,
    free_ns: Rc<Cell<Nanos>>,
}

impl Disk {
    async fn work(&self) {
        let done_ns = self.free_ns.get().max(self.handle.now()) + SERVICE_NS;
        self.free_ns.set(done_ns);
        self.handle.sleep_until(done_ns).await;
    }
}

impl BlockDevice for Disk {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.work().await;
        self.memory.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.work().await;
        self.memory.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.work().await;
        self.memory.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.work().await;
        self.memory.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.work().await;
        self.memory.write_zeroes(range, durability).await
    }
}

impl InMemory for Disk {}

type TestCache = Cache<FaultDevice<MemoryDevice>, Disk>;

/// What a kill leaves.
struct Left {
    ssd: MemoryDevice,
    disk: Disk,
    passed: Vec<SectorRange>,
    expected: Vec<u8>,
}

/// A cache whose SSD is being evacuated.
struct World {
    handle: Handle,
    ssd: MemoryDevice,
    disk: Disk,
    faults: Faults,
    cache: TestCache,
    /// Ranges on record, and how often they were recorded.
    passed: Rc<RefCell<Vec<SectorRange>>>,
    records: Rc<Cell<u64>>,
    /// The byte of each line.
    expected: Vec<u8>,
    prng: Prng,
}

fn options(passed: Vec<SectorRange>) -> OpenOptions {
    let settings = Settings {
        mode: Mode::WriteBack,
        dirty_high_percent: 80,
        dirty_low_percent: 70,
        ..Settings::default()
    };
    OpenOptions { passed, ..OpenOptions::with(settings) }
}

async fn open(
    handle: &Handle,
    ssd: &MemoryDevice,
    disk: &Disk,
    faults: &Faults,
    options: OpenOptions,
) -> TestCache {
    let ssd = FaultDevice::new(handle.clone(), ssd.clone(), faults.clone());
    Cache::open(handle, ssd, disk.clone(), options).await.expect("it opens").0
}

/// Runs a test of a cache whose evacuation has just begun.
fn evacuating<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F + 'static) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let ssd = MemoryDevice::new(48 * MIB);
        let free_ns = Rc::new(Cell::new(0));
        let disk =
            Disk { memory: MemoryDevice::new(ORIGIN_BYTES), handle: handle.clone(), free_ns };
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [6; 16] };
        Cache::format(&ssd, &disk, &format).await.expect("the SSD takes a cache");
        let faults = Faults::new();
        let cache = open(&handle, &ssd, &disk, &faults, options(Vec::new())).await;
        let (expected, prng) = (vec![0; LINES as usize], Prng::new(5));
        let (passed, records) = (Rc::default(), Rc::default());
        let handle = handle.clone();
        let mut world = World { handle, ssd, disk, faults, cache, passed, records, expected, prng };
        for line in (0..LINES).step_by(DIRTY_ONE_IN as usize) {
            world.write(line, 1).await;
        }
        world.cache.flush().await.expect("a flush works");
        world.fail_ssd().await;
        test(world).await;
    });
}

impl World {
    /// Has the SSD fail its writes, until its evacuation has begun.
    async fn fail_ssd(&mut self) {
        let (on_record, counted) = (self.passed.clone(), self.records.clone());
        let clock = self.handle.clone();
        self.cache.on_passing(move |ranges| {
            let (on_record, counted, clock) = (on_record.clone(), counted.clone(), clock.clone());
            Box::pin(async move {
                clock.sleep(RECORD_NS).await;
                on_record.replace(ranges);
                counted.set(counted.get() + 1);
                true
            })
        });
        let range = SectorRange::from_bytes(0, 48 * MIB);
        self.faults.inject(Fault::WriteError { range, times: u32::MAX });
        // The SSD is tried for some seconds.
        self.write(0, 1).await;
        assert!(self.is_evacuating());
    }

    /// Writes a line; how long that takes.
    async fn write(&mut self, line: u64, byte: u8) -> Nanos {
        let mut data = Buf::new(LINE);
        data.fill(byte);
        let begun = self.handle.now();
        let at = Lba::from_bytes(line * LINE as u64);
        let written = self.cache.write(at, data.into(), Durability::Cached).await;
        written.expect("the disk takes it");
        self.expected[line as usize] = byte;
        self.handle.now() - begun
    }

    async fn read(&self, line: u64) -> u8 {
        let at = Lba::from_bytes(line * LINE as u64);
        let data = self.cache.read(at, Buf::new(LINE)).await.expect("a read works");
        assert!(data.iter().all(|byte| *byte == data[0]), "line {line} is torn");
        data[0]
    }

    fn is_evacuating(&self) -> bool {
        self.cache.status().health == Health::Evacuating
    }

    async fn evacuated(&self) {
        while self.is_evacuating() {
            self.handle.sleep(100 * MS_NS).await;
        }
        assert_eq!(self.cache.lost_ranges(usize::MAX), []);
    }

    async fn check_disk(&self) {
        let data = self.disk.memory.read(Lba(0), Buf::new(ORIGIN_BYTES as usize)).await.unwrap();
        for (line, content) in data.chunks_exact(LINE).enumerate() {
            let byte = self.expected[line];
            assert!(content.iter().all(|found| *found == byte), "line {line}");
        }
    }

    /// What a kill at this moment leaves.
    async fn left_by_a_kill(&self) -> Left {
        assert!(self.is_evacuating(), "the loss of the SSD is not on record");
        let copy = async |from: &MemoryDevice| {
            let bytes = from.limits().bytes();
            let copy = MemoryDevice::new(bytes);
            let content = from.read(Lba(0), Buf::new(bytes as usize)).await.unwrap();
            copy.write(Lba(0), content.into(), Durability::Cached).await.unwrap();
            copy
        };
        let (ssd, memory) = (copy(&self.ssd).await, copy(&self.disk.memory).await);
        let disk = Disk { memory, ..self.disk.clone() };
        let (passed, expected) = (self.passed.borrow().clone(), self.expected.clone());
        Left { ssd, disk, passed, expected }
    }

    /// What was left, started once more with an SSD that takes writes.
    async fn on(&self, left: Left) -> Self {
        let Left { ssd, disk, passed, expected } = left;
        let (handle, prng) = (self.handle.clone(), self.prng.clone());
        let faults = Faults::new();
        let cache = open(&handle, &ssd, &disk, &faults, options(passed)).await;
        let (passed, records) = (Rc::default(), Rc::default());
        Self { handle, ssd, disk, faults, cache, passed, records, expected, prng }
    }

    async fn check(&self) {
        for line in 0..LINES {
            assert_eq!(self.read(line).await, self.expected[line as usize], "line {line}");
        }
    }
}

#[test]
fn writes_in_an_evacuation_take_about_as_long_as_those_of_the_disk() {
    evacuating(|mut world| async move {
        let (mut first, mut again) = (0, 0);
        for _ in 0..60 {
            let line = world.prng.below(LINES);
            first = world.write(line, 2).await.max(first);
            again = world.write(line, 3).await.max(again);
            assert_eq!(world.read(line).await, 3);
            world.handle.sleep(20 * MS_NS).await;
        }
        assert!(world.is_evacuating(), "it takes half a minute");
        // Four dirty lines of a region, a flush, the record, and what the cleaner has under way.
        assert!(first <= 20 * SERVICE_NS + RECORD_NS, "{first}");
        assert!(again <= 5 * SERVICE_NS, "{again}");
        let dirty = LINES / DIRTY_ONE_IN * SERVICE_NS;
        let begun = world.handle.now();
        world.evacuated().await;
        assert!(world.handle.now() - begun <= dirty + dirty / 4, "clients do not hold it up");
        world.check_disk().await;
        world.cache.stop().await.expect("it ends in order");
        world.cache.audit().expect("nothing is held");
    });
}

#[test]
fn what_is_written_past_an_ssd_is_there_after_a_kill_and_so_is_all_that_is_dirty_still() {
    evacuating(|mut world| async move {
        let mut all_left = Vec::new();
        for round in 0..8 {
            for _ in 0..12 {
                let line = world.prng.below(LINES);
                world.write(line, 10 + round).await;
            }
            all_left.push(world.left_by_a_kill().await);
        }
        for left in all_left {
            let again = world.on(left).await;
            again.check().await;
            again.cache.drain().await.expect("the SSD takes writes");
            again.check_disk().await;
            again.cache.stop().await.expect("it ends in order");
        }
        world.check().await;
        world.cache.kill();
    });
}

#[test]
fn ranges_on_record_stay_few_where_nothing_is_dirty_any_more() {
    evacuating(|mut world| async move {
        while world.cache.status().lines.dirty > LINES / DIRTY_ONE_IN / 4 {
            world.handle.sleep(500 * MS_NS).await;
        }
        let (records, count) = (world.records.get(), world.passed.borrow().len());
        for line in 0..LINES / 2 {
            let took = world.write(line, 4).await;
            assert!(took <= 20 * SERVICE_NS + RECORD_NS, "line {line}: {took}");
            if line % 64 == 0 {
                world.handle.sleep(1_200 * MS_NS).await;
            }
        }
        assert!(world.records.get() <= records + 1, "{} records", world.records.get());
        assert!(world.passed.borrow().len() <= count + 1);
        world.evacuated().await;
        world.check_disk().await;
        world.cache.kill();
    });
}

#[test]
fn a_start_has_the_ssd_forget_what_was_passed() {
    evacuating(|mut world| async move {
        for line in 0..40 {
            world.write(line * 97, 7).await;
        }
        let again = world.on(world.left_by_a_kill().await).await;
        // Its checkpoint is without the lines: the ranges are needed no more.
        again.cache.kill();
        let ssd = again.ssd.clone();
        let options = options(Vec::new());
        let third = open(&world.handle, &ssd, &again.disk, &Faults::new(), options).await;
        let third = World { cache: third, ..again };
        third.check().await;
        third.cache.kill();
        world.cache.kill();
    });
}

#[test]
fn a_second_evacuation_opens_its_own_regions() {
    evacuating(|mut world| async move {
        for line in 0..40 {
            world.write(line * 300, 7).await;
        }
        let mut again = world.on(world.left_by_a_kill().await).await;
        for line in 0..40 {
            again.write(line * 300, 8).await;
        }
        again.cache.flush().await.expect("the SSD takes it");
        again.fail_ssd().await;
        // The others are dirty still, where the first evacuation was passed.
        for line in 0..20 {
            again.write(line * 300, 9).await;
        }
        let third = again.on(again.left_by_a_kill().await).await;
        third.check().await;
        [&world, &again, &third].iter().for_each(|world| world.cache.kill());
    });
}
