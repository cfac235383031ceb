//! Goal: zeroes that are written back cost metadata only where they cost the origin no more, and no older
//! content comes back. Method: caches over drives in memory, in virtual time, before and after kills.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, InMemory, IoResult, Lba, Limits, MIB, Nanos,
    Payload, SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_filter::{Fault, FaultDevice, Faults};
use voltier_ring::{Executor, Handle, NoFiles};

const LINE_BYTES: u64 = 4096;
const ORIGIN_BYTES: u64 = 256 * MIB;
/// Sixteen times as much as the SSD has.
const ALL: SectorRange = SectorRange::new(Lba(0), ORIGIN_BYTES / 512);
const OLD: u8 = 7;
const NEW: u8 = 9;

fn within<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(test(handle));
}

fn lines(first: u64, count: u64) -> SectorRange {
    SectorRange::from_bytes(first * LINE_BYTES, count * LINE_BYTES)
}

async fn fill(device: &impl BlockDevice, range: SectorRange, byte: u8) {
    for piece in range.split_at_multiples(256) {
        let mut data = Buf::new(piece.bytes() as usize);
        data.fill(byte);
        device.write(piece.start, data.into(), Durability::Cached).await.expect("a write works");
    }
}

/// The byte that all of a range is.
async fn byte(device: &impl BlockDevice, range: SectorRange) -> u8 {
    let mut found = Vec::new();
    for piece in range.split_at_multiples(256) {
        let data = device.read(piece.start, Buf::new(piece.bytes() as usize)).await;
        found.extend_from_slice(&data.expect("a read works"));
    }
    assert!(found.iter().all(|it| *it == found[0]), "{range} is not one byte");
    found[0]
}

async fn zero(cache: &impl BlockDevice, range: SectorRange) {
    cache.write_zeroes(range, Durability::Cached).await.expect("zeroes work");
}

/// A new cache.
async fn new_cache<O: DriveControl>(
    handle: &Handle,
    ssd: &MemoryDevice,
    origin: O,
) -> Cache<MemoryDevice, O> {
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [5; 16] };
    Cache::format(ssd, &origin, &format).await.expect("the SSD takes a cache");
    open(handle, ssd, origin).await
}

async fn open<O: DriveControl>(
    handle: &Handle,
    ssd: &MemoryDevice,
    origin: O,
) -> Cache<MemoryDevice, O> {
    let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
    let opened = Cache::open(handle, ssd.clone(), origin, OpenOptions::with(settings)).await;
    opened.expect("it opens").0
}

#[test]
fn zeroes_of_a_whole_volume_cost_metadata_only() {
    within(|handle| async move {
        let (ssd, origin) = (MemoryDevice::new(16 * MIB), MemoryDevice::new(ORIGIN_BYTES));
        fill(&origin, lines(40_000, 64), OLD).await;
        let cache = new_cache(&handle, &ssd, origin.clone()).await;
        fill(&cache, lines(0, 64), OLD).await;
        cache.drain().await.expect("a drain works");
        let before = cache.status();
        assert_eq!((before.lines.used, before.lines.dirty), (64, 0), "clean copies are there");
        zero(&cache, ALL).await;
        let after = cache.status();
        let written = after.device_bytes.ssd_written - before.device_bytes.ssd_written;
        assert!(written < MIB / 4, "{written} bytes are written to the SSD");
        assert_eq!((after.lines.dirty, after.lines.used), (0, 0));
        assert_eq!(after.device_bytes.origin_written, before.device_bytes.origin_written);
        cache.kill();
        let cache = open(&handle, &ssd, origin.clone()).await;
        assert_eq!(byte(&cache, lines(0, 64)).await, 0);
        assert_eq!(byte(&cache, lines(40_000, 64)).await, 0);
    });
}

#[test]
fn lines_of_which_the_log_has_the_newest_copy_stay_in_the_log() {
    within(|handle| async move {
        let (ssd, origin) = (MemoryDevice::new(16 * MIB), MemoryDevice::new(ORIGIN_BYTES));
        fill(&origin, lines(0, 1024), OLD).await;
        let cache = new_cache(&handle, &ssd, origin.clone()).await;
        fill(&cache, lines(32, 1), NEW).await;
        fill(&cache, lines(100, 40), NEW).await;
        cache.flush().await.expect("a flush works");
        assert_eq!(cache.status().lines.dirty, 41);
        zero(&cache, lines(0, 1024)).await;
        assert_eq!(cache.status().lines.dirty, 41, "zeroes, with the rules of dirty lines");
        assert_eq!(byte(&origin, lines(32, 1)).await, OLD, "the log has the newest copy");
        assert_eq!(byte(&origin, lines(33, 67)).await, 0);
        assert_eq!(byte(&cache, lines(0, 1024)).await, 0);
        cache.kill();
        let cache = open(&handle, &ssd, origin.clone()).await;
        assert_eq!(byte(&cache, lines(0, 1024)).await, 0);
        cache.drain().await.expect("a drain works");
        assert_eq!(byte(&origin, lines(0, 1024)).await, 0);
        cache.stop().await.expect("a stop works");
        cache.audit().expect("nothing is held");
    });
}

#[test]
fn short_zeroes_and_parts_of_lines_are_data_for_the_log() {
    within(|handle| async move {
        let (ssd, origin) = (MemoryDevice::new(16 * MIB), MemoryDevice::new(ORIGIN_BYTES));
        fill(&origin, lines(0, 64), OLD).await;
        let cache = new_cache(&handle, &ssd, origin.clone()).await;
        zero(&cache, lines(0, 8)).await;
        assert_eq!((cache.status().lines.dirty, byte(&origin, lines(0, 8)).await), (8, OLD));
        zero(&cache, SectorRange::new(Lba(8 * 8 + 3), 8 * 32)).await;
        assert_eq!(cache.status().lines.dirty, 10, "one line at each end");
        assert_eq!(byte(&cache, SectorRange::new(Lba(64), 3)).await, OLD);
        assert_eq!(byte(&cache, SectorRange::new(Lba(67), 256)).await, 0);
        assert_eq!(byte(&cache, SectorRange::new(Lba(323), 5)).await, OLD);
        cache.drain().await.expect("a drain works");
        assert_eq!(byte(&origin, SectorRange::new(Lba(67), 256)).await, 0);
    });
}

#[test]
fn zeroes_are_data_where_they_are_data_for_the_origin() {
    within(|handle| async move {
        let disk = Profile::find("hdd-7200").expect("a model");
        let memory = MemoryDevice::new(ORIGIN_BYTES);
        let origin = ModelDevice::new(handle.clone(), disk, memory.clone());
        assert!(!origin.limits().cheap_zeroes);
        fill(&memory, lines(0, 256), OLD).await;
        let cache = new_cache(&handle, &MemoryDevice::new(16 * MIB), origin).await;
        zero(&cache, lines(0, 256)).await;
        assert_eq!((cache.status().lines.dirty, byte(&memory, lines(0, 256)).await), (256, OLD));
        assert_eq!(byte(&cache, lines(0, 256)).await, 0);
    });
}

#[test]
fn the_log_takes_the_zeroes_that_an_origin_refuses() {
    within(|handle| async move {
        let (memory, faults) = (MemoryDevice::new(ORIGIN_BYTES), Faults::new());
        let origin = FaultDevice::new(handle.clone(), memory.clone(), faults.clone());
        let cache = new_cache(&handle, &MemoryDevice::new(16 * MIB), origin).await;
        fill(&cache, lines(0, 256), OLD).await;
        cache.drain().await.expect("a drain works");
        faults.inject(Fault::WriteError { range: ALL, times: u32::MAX });
        zero(&cache, lines(0, 256)).await;
        assert_eq!((cache.status().lines.dirty, byte(&memory, lines(0, 256)).await), (256, OLD));
        assert_eq!(byte(&cache, lines(0, 256)).await, 0);
        cache.flush().await.expect("the SSD has them");
        faults.clear();
        cache.drain().await.expect("the origin takes them");
        assert_eq!(byte(&memory, lines(0, 256)).await, 0);
    });
}

/// Takes a while for each discard and each zeroing, and counts them.
#[derive(Clone)]
struct Counted {
    handle: Handle,
    memory: MemoryDevice,
    clears: Rc<Cell<u64>>,
    pause_ns: Nanos,
}

impl BlockDevice for Counted {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.memory.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.memory.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.memory.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.write_zeroes(range, Durability::Cached).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.clears.set(self.clears.get() + 1);
        self.handle.sleep(self.pause_ns).await;
        self.memory.write_zeroes(range, durability).await
    }
}

impl InMemory for Counted {}

fn counted(handle: &Handle, pause_ns: Nanos) -> Counted {
    let (memory, clears) = (MemoryDevice::new(TIB), Rc::default());
    Counted { handle: handle.clone(), memory, clears, pause_ns }
}

const TIB: u64 = 1 << 40;
const TERABYTE: SectorRange = SectorRange::new(Lba(0), TIB / 512);

/// A few lines all over a terabyte.
fn spread() -> impl Iterator<Item = SectorRange> {
    (0..40).map(|number| lines(number * (TIB / LINE_BYTES / 40) + number, 1))
}

#[test]
fn a_terabyte_costs_by_what_is_cached_of_it() {
    for (is_discard, dirty) in [(false, 0), (false, 20), (true, 0), (true, 20)] {
        within(async move |handle| {
            let (ssd, origin) = (MemoryDevice::new(16 * MIB), counted(&handle, 1000));
            let cache = new_cache(&handle, &ssd, origin.clone()).await;
            for line in spread() {
                fill(&cache, line, OLD).await;
            }
            cache.drain().await.expect("a drain works");
            for line in spread().take(dirty) {
                fill(&cache, line, NEW).await;
            }
            let lines = cache.status().lines;
            assert_eq!((lines.used, lines.dirty), (40, dirty as u64));
            if is_discard {
                cache.discard(TERABYTE).await.expect("a discard works");
            } else {
                zero(&cache, TERABYTE).await;
            }
            let runs = if is_discard { 1 } else { 1 + dirty as u64 };
            assert!(origin.clears.get() <= runs, "{} calls", origin.clears.get());
            let lines = cache.status().lines;
            let in_log = if is_discard { 0 } else { dirty as u64 };
            assert_eq!((lines.used, lines.dirty), (in_log, in_log));
            for line in spread() {
                assert_eq!(byte(&cache, line).await, 0);
            }
            cache.flush().await.expect("a flush works");
            cache.kill();
            let cache = open(&handle, &ssd, origin).await;
            for line in spread() {
                assert_eq!(byte(&cache, line).await, 0);
            }
            cache.stop().await.expect("a stop works");
            cache.audit().expect("nothing is held");
        });
    }
}

#[test]
fn others_are_served_beside_a_long_discard_and_its_own_lines_behind_it() {
    within(async |handle: Handle| {
        const PAUSE_NS: Nanos = 1_000_000_000;
        let (ssd, origin) = (MemoryDevice::new(16 * MIB), counted(&handle, PAUSE_NS));
        let cache = new_cache(&handle, &ssd, origin).await;
        let half = SectorRange::new(Lba(0), TERABYTE.count / 2);
        // Before the range, in it, and behind it.
        let all = [lines(0, 1), lines(1 << 20, 1), lines((TIB / LINE_BYTES) - 1, 1)];
        for line in all {
            fill(&cache, line, OLD).await;
        }
        let range = SectorRange::new(Lba(8), half.count);
        let discarding = {
            let cache = cache.clone();
            handle.spawn(async move { cache.discard(range).await.expect("a discard works") })
        };
        handle.sleep(PAUSE_NS / 2).await;
        for line in [all[0], all[2]] {
            fill(&cache, line, NEW).await;
            assert_eq!(byte(&cache, line).await, NEW);
        }
        assert!(handle.now() < PAUSE_NS, "nobody waited for the discard");
        fill(&cache, all[1], NEW).await;
        assert!(handle.now() >= PAUSE_NS, "a write of its lines waits");
        discarding.await;
        assert_eq!(byte(&cache, all[1]).await, NEW);
        cache.drain().await.expect("a drain works");
        cache.stop().await.expect("a stop works");
        cache.audit().expect("nothing is held");
    });
}
