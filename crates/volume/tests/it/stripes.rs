//! Goal: what a cache destages to an array arrives there as whole stripes, and a long request to a volume is
//! cut between stripes.
//! Method: lines become dirty in random order, with and without holes; the array counts how it wrote.

use voltier_array::{Array, Counts, Geometry, Layout, Level};
use voltier_block::{BlockDevice, Buf, Durability, KIB, Lba, MIB, Prng, SECTOR_BYTES};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::Volume;

const LINE_BYTES: u64 = 4 * KIB;
const CHUNK_BYTES: u64 = 16 * KIB;
const MEMBER_BYTES: u64 = 2 * MIB;

type TestArray = Array<MemoryDevice>;
type TestCache = Cache<MemoryDevice, TestArray>;

fn array(handle: &Handle, members: usize) -> TestArray {
    let sectors = MEMBER_BYTES / SECTOR_BYTES;
    let geometry = Geometry::new(Level::Raid6, Layout::default(), members, CHUNK_BYTES, sectors);
    let devices = (0..members).map(|_| Some(MemoryDevice::new(MEMBER_BYTES))).collect();
    Array::new(handle, geometry.unwrap(), devices).unwrap()
}

/// A write-back cache that is large enough to leave everything dirty until it is told otherwise.
async fn cache_over(handle: &Handle, array: &TestArray) -> TestCache {
    let ssd = MemoryDevice::new(256 * MIB);
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [3; 16] };
    Cache::format(&ssd, array, &format).await.unwrap();
    let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
    let options = OpenOptions::with(settings);
    Cache::open(handle, ssd, array.clone(), options).await.unwrap().0
}

/// The content of a line that has this version.
fn line_of(line: u64, version: u64) -> Buf {
    let mut content = Buf::new(LINE_BYTES as usize);
    Prng::new(line << 8 | version).fill(&mut content);
    content
}

async fn write_line(device: &impl BlockDevice, line: u64, version: u64) {
    let (at, data) = (Lba::from_bytes(line * LINE_BYTES), line_of(line, version));
    device.write(at, data.into(), Durability::Cached).await.unwrap();
}

fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    let mut dice = Prng::new(seed);
    for last in (1..all.len()).rev() {
        all.swap(last, dice.below(last as u64 + 1) as usize);
    }
    all
}

fn parts(counts: Counts) -> u64 {
    counts.modify_writes + counts.reconstruct_writes + counts.recover_writes
}

#[test]
fn lines_that_became_dirty_in_any_order_are_destaged_as_whole_stripes() {
    // Stripes of 64, 80 and 160 KiB: those of the last two cross what the cleaner looks at together.
    for members in [6, 7, 12] {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let array = array(&handle, members);
            let cache = cache_over(&handle, &array).await;
            let lines = array.limits().bytes() / LINE_BYTES;
            let before = array.counts();
            for line in shuffled(lines, 7) {
                write_line(&cache, line, 1).await;
            }
            assert_eq!(array.counts().member_writes, before.member_writes, "all are dirty");
            cache.drain().await.unwrap();
            let counts = array.counts();
            let stripes = array.geometry().stripe_count();
            assert_eq!(
                (counts.full_stripe_writes, parts(counts)),
                (stripes, 0),
                "{members} members"
            );
            // One for each chunk at the most: neighbouring stripes go to a member as one write.
            assert!(counts.member_writes <= stripes * members as u64, "{counts:?}");
            assert_eq!(counts.member_reads, before.member_reads);
        });
    }
}

#[test]
fn a_stripe_with_holes_is_written_whole_and_the_holes_keep_what_they_had() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let array = array(&handle, 7);
        let lines = array.limits().bytes() / LINE_BYTES;
        for line in 0..lines {
            write_line(&array, line, 1).await;
        }
        let cache = cache_over(&handle, &array).await;
        let before = array.counts();
        // Two holes in each stripe of 20 lines, with dirty lines on both sides.
        let is_hole = |line: u64| matches!(line % 20, 6 | 13);
        for line in shuffled(lines, 9).into_iter().filter(|line| !is_hole(*line)) {
            write_line(&cache, line, 2).await;
        }
        cache.drain().await.unwrap();
        let counts = array.counts();
        assert_eq!(parts(counts), parts(before), "no part of a stripe was written");
        let stripes = array.geometry().stripe_count();
        assert_eq!(counts.full_stripe_writes, before.full_stripe_writes + stripes);
        assert_eq!(counts.member_reads - before.member_reads, 2 * stripes, "the holes");
        for line in 0..lines {
            let at = Lba::from_bytes(line * LINE_BYTES);
            let content = array.read(at, Buf::new(LINE_BYTES as usize)).await.unwrap();
            let version = if is_hole(line) { 1 } else { 2 };
            assert!(content[..] == line_of(line, version)[..], "line {line}");
        }
    });
}

#[test]
fn a_long_request_is_cut_between_stripes() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let array = array(&handle, 7);
        let volume = Volume::plain(&handle, array.clone());
        // 1 MiB is no multiple of a stripe of 80 KiB.
        let stripes = array.geometry().stripe_count() / 2;
        let data = Buf::zeroed((stripes * 80 * KIB) as usize);
        assert!(data.len() as u64 > 4 * MIB);
        volume.write(Lba(0), data.into(), Durability::Cached).await.unwrap();
        let counts = array.counts();
        assert_eq!((counts.full_stripe_writes, parts(counts)), (stripes, 0));
    });
}
