//! Goal: nothing stays dirty for much longer than the setting says, under a load that never pauses. Method: memory
//! drives in virtual time.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB, Nanos};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

type TestCache = Cache<MemoryDevice, MemoryDevice>;

const LINE_SECTORS: u64 = 8;
const SECOND_NS: Nanos = 1_000_000_000;

fn in_virtual_time<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(test(handle));
}

async fn open(handle: &Handle, drives: &(MemoryDevice, MemoryDevice), age_s: u64) -> TestCache {
    let settings =
        Settings { mode: Mode::WriteBack, dirty_age_ns: age_s * SECOND_NS, ..Settings::default() };
    let options = OpenOptions::with(settings);
    Cache::open(handle, drives.0.clone(), drives.1.clone(), options).await.expect("it opens").0
}

async fn format() -> (MemoryDevice, MemoryDevice) {
    let drives = (MemoryDevice::new(32 * MIB), MemoryDevice::new(16 * MIB));
    let line_size = LineSize::new(LINE_SECTORS * 512).expect("a line size");
    let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [6; 16] };
    Cache::format(&drives.0, &drives.1, &format).await.expect("the SSD takes a cache");
    drives
}

async fn write(cache: &TestCache, line: u64) {
    let data = Buf::zeroed(LINE_SECTORS as usize * 512).into();
    let written = cache.write(Lba(line * LINE_SECTORS), data, Durability::Cached).await;
    written.expect("a write works");
}

/// Reads a line ten times a second, as long as the switch is there.
fn keep_busy(handle: &Handle, cache: &TestCache) -> Rc<Cell<bool>> {
    let is_over = Rc::new(Cell::new(false));
    let (own, cache, over) = (handle.clone(), cache.clone(), is_over.clone());
    drop(handle.spawn(async move {
        while !over.get() {
            cache.read(Lba(0), Buf::new(512)).await.expect("a read works");
            own.sleep(SECOND_NS / 10).await;
        }
    }));
    is_over
}

#[test]
fn what_has_been_dirty_for_long_is_destaged_under_a_light_load() {
    in_virtual_time(|handle| async move {
        let cache = open(&handle, &format().await, 20).await;
        let is_over = keep_busy(&handle, &cache);
        for line in 0..300 {
            write(&cache, line * 7 % 4000).await;
        }
        handle.sleep(19 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 300, "not yet");
        handle.sleep(2 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 0);
        // From now on it counts anew.
        handle.sleep(100 * SECOND_NS).await;
        write(&cache, 9).await;
        handle.sleep(19 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 1);
        handle.sleep(2 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 0);
        is_over.set(true);
        handle.sleep(SECOND_NS).await;
        cache.kill();
    });
}

#[test]
fn off_leaves_what_is_dirty_to_the_thresholds_and_a_change_is_taken_at_once() {
    in_virtual_time(|handle| async move {
        let cache = open(&handle, &format().await, 0).await;
        let is_over = keep_busy(&handle, &cache);
        write(&cache, 5).await;
        handle.sleep(3600 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 1);
        let settings = Settings { dirty_age_ns: 60 * SECOND_NS, ..cache.settings() };
        cache.configure(settings).expect("the settings make sense");
        handle.sleep(SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 0);
        is_over.set(true);
        handle.sleep(SECOND_NS).await;
        cache.kill();
    });
}

/// One line is written again and again, and others now and then: each reaches the origin.
#[test]
fn each_line_is_on_the_origin_in_time_while_others_become_dirty() {
    in_virtual_time(|handle| async move {
        let drives = format().await;
        let cache = open(&handle, &drives, 10).await;
        for second in 1..200_u64 {
            let mut data = Buf::new(LINE_SECTORS as usize * 512);
            data.fill(second as u8);
            let at = Lba((1 + second) * LINE_SECTORS);
            cache.write(at, data.into(), Durability::Cached).await.expect("a write works");
            write(&cache, 0).await;
            handle.sleep(SECOND_NS).await;
            if let Some(old) = second.checked_sub(22).filter(|old| *old > 0) {
                let read = drives.1.read(Lba((1 + old) * LINE_SECTORS), Buf::new(512)).await;
                assert_eq!(read.expect("a read works")[0], old as u8, "{second}");
            }
        }
        cache.kill();
    });
}

#[test]
fn a_start_counts_from_itself() {
    in_virtual_time(|handle| async move {
        let drives = format().await;
        let cache = open(&handle, &drives, 20).await;
        write(&cache, 1).await;
        cache.flush().await.expect("a flush works");
        handle.sleep(SECOND_NS / 10).await;
        cache.kill();
        handle.sleep(SECOND_NS).await;
        let cache = open(&handle, &drives, 20).await;
        let is_over = keep_busy(&handle, &cache);
        handle.sleep(19 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 1);
        handle.sleep(3 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 0);
        is_over.set(true);
        handle.sleep(SECOND_NS).await;
        cache.kill();
    });
}

#[test]
fn in_order_what_is_old_goes_too() {
    in_virtual_time(|handle| async move {
        let cache = open(&handle, &format().await, 20).await;
        let settings = Settings { ordered: true, ..cache.settings() };
        cache.configure(settings).expect("nothing is dirty");
        let is_over = keep_busy(&handle, &cache);
        for line in 0..20 {
            write(&cache, line).await;
            cache.flush().await.expect("a flush works");
        }
        handle.sleep(19 * SECOND_NS).await;
        assert!(cache.status().lines.dirty > 0);
        handle.sleep(4 * SECOND_NS).await;
        assert_eq!(cache.status().lines.dirty, 0);
        is_over.set(true);
        handle.sleep(SECOND_NS).await;
        cache.kill();
    });
}
