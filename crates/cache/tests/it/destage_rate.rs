//! Goal: destaging keeps to its limit whoever waits for it, nothing waits for ever, and a change counts at once.
//! Method: memory drives in virtual time.

use std::future::Future;

use voltier_block::{BlockDevice, Buf, Durability, KIB, Lba, MIB, Nanos};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

type TestCache = Cache<MemoryDevice, MemoryDevice>;

const LINE_SECTORS: u64 = 8;
const LINE_BYTES: u64 = LINE_SECTORS * 512;
const SECOND_NS: Nanos = 1_000_000_000;
const SSD_BYTES: u64 = 16 * MIB;
const ORIGIN_BYTES: u64 = 64 * MIB;

fn in_virtual_time<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(test(handle));
}

async fn open(handle: &Handle, settings: Settings) -> TestCache {
    let drives = (MemoryDevice::new(SSD_BYTES), MemoryDevice::new(ORIGIN_BYTES));
    let line_size = LineSize::new(LINE_BYTES).expect("a line size");
    let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [6; 16] };
    Cache::format(&drives.0, &drives.1, &format).await.expect("the SSD takes a cache");
    let options = OpenOptions::with(settings);
    Cache::open(handle, drives.0, drives.1, options).await.expect("it opens").0
}

fn limited(rate: u64, ordered: bool) -> Settings {
    Settings { mode: Mode::WriteBack, destage_rate: rate, ordered, ..Settings::default() }
}

async fn write(cache: &TestCache, line: u64) {
    let mut data = Buf::new(LINE_BYTES as usize);
    data.fill(line as u8 | 1);
    let written = cache.write(Lba(line * LINE_SECTORS), data.into(), Durability::Cached).await;
    written.expect("a write works");
}

fn destaged_bytes(cache: &TestCache) -> u64 {
    cache.status().device_bytes.origin_written
}

/// Holds what was written back in a time against a limit. A batch is worth a second, and one may have just begun;
/// half of the limit must be used.
#[track_caller]
fn keeps_to(rate: u64, elapsed_ns: Nanos, bytes: u64) {
    let allowed = rate * elapsed_ns / SECOND_NS + rate + LINE_BYTES;
    assert!(bytes <= allowed, "{bytes} bytes in {elapsed_ns} ns");
    assert!(
        bytes * 2 + 2 * rate >= rate * elapsed_ns / SECOND_NS,
        "{bytes} bytes in {elapsed_ns} ns"
    );
}

#[test]
fn a_drain_goes_at_the_limit_and_a_higher_one_counts_at_once() {
    for ordered in [false, true] {
        in_virtual_time(move |handle| async move {
            let rate = 256 * KIB;
            let cache = open(&handle, limited(rate, ordered)).await;
            for line in 0..1000 {
                write(&cache, line * 5 % 4001).await;
            }
            cache.flush().await.expect("a flush is none of the destaging");
            let (begun, before) = (handle.now(), destaged_bytes(&cache));
            let own = cache.clone();
            let drain = handle.spawn(async move { own.drain().await });
            handle.sleep(5 * SECOND_NS).await;
            keeps_to(rate, handle.now() - begun, destaged_bytes(&cache) - before);
            assert!(cache.status().lines.dirty > 0);
            cache.configure(limited(0, ordered)).expect("the settings make sense");
            let changed = handle.now();
            drain.await.expect("all is written back");
            assert!(handle.now() - changed < SECOND_NS, "{}", handle.now() - changed);
            assert_eq!(cache.status().lines.dirty, 0);
            cache.kill();
        });
    }
}

/// More is written than the SSD has room for: writers wait for the limit, and nobody for ever.
#[test]
fn a_full_cache_goes_on_at_the_limit() {
    for ordered in [false, true] {
        in_virtual_time(move |handle| async move {
            let rate = MIB;
            let cache = open(&handle, limited(rate, ordered)).await;
            let begun = handle.now();
            for line in 0..10_000_u64 {
                // Far apart: a stream would go past the log.
                write(&cache, line * 5003 % (ORIGIN_BYTES / LINE_BYTES)).await;
                if line % 500 == 0 {
                    cache.flush().await.expect("a flush works");
                }
            }
            keeps_to(rate, handle.now() - begun, destaged_bytes(&cache));
            assert!(
                handle.now() - begun > 20 * SECOND_NS,
                "it was the limit that clients waited for"
            );
            cache.drain().await.expect("all is written back");
            keeps_to(rate, handle.now() - begun, destaged_bytes(&cache));
            cache.kill();
        });
    }
}

#[test]
fn a_stop_waits_for_no_limit() {
    in_virtual_time(|handle| async move {
        let cache = open(&handle, limited(64 * KIB, false)).await;
        for line in 0..2000 {
            write(&cache, line * 3 % 4001).await;
        }
        let own = cache.clone();
        let drain = handle.spawn(async move { own.drain().await });
        handle.sleep(3 * SECOND_NS).await;
        let begun = handle.now();
        cache.stop().await.expect("it stops");
        assert!(handle.now() - begun < SECOND_NS);
        drop(drain);
    });
}
