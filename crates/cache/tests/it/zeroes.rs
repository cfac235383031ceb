//! Goal: zeroes that are written back cost metadata only where they cost the origin no more, and no older
//! content comes back. Method: caches over drives in memory, in virtual time, before and after kills.

use std::future::Future;

use voltier_block::{BlockDevice, Buf, DriveControl, Durability, Lba, MIB, SectorRange};
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
