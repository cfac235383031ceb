//! Goal: the cache knows what the origin lacks, also after a crash, and writes wait rather than let that exceed a
//! bound. Method: memory drives in virtual time, an origin that is slow or does not answer, a wall clock of the
//! test's.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB, Nanos, Prng, SectorRange};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{
    Age, Cache, FormatOptions, LineSize, MaxUnshipped, Mode, OpenOptions, Settings, WallClock,
};
use voltier_drive::MemoryDevice;
use voltier_filter::{Delay, DelayDevice, Hang, HangDevice};
use voltier_ring::{Executor, Handle, NoFiles};

type Origin = DelayDevice<HangDevice<MemoryDevice>>;
type TestCache = Cache<DelayDevice<MemoryDevice>, Origin>;

const LINE: usize = 4096;
const LINE_SECTORS: u64 = 8;
const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;
/// A day of the year 2026.
const TODAY: u64 = 1_790_000_000 * SECOND;

struct Bench {
    handle: Handle,
    ssd: MemoryDevice,
    origin: MemoryDevice,
    ssd_delay: Delay,
    delay: Delay,
    hang: Hang,
    /// What the wall clock shows beside the time of the ring; 0 while there is none.
    wall_ns: Rc<Cell<u64>>,
}

fn with_bench<F: Future<Output = ()> + 'static>(test: impl FnOnce(Bench) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let bench = Bench {
        handle: handle.clone(),
        ssd: MemoryDevice::new(64 * MIB),
        origin: MemoryDevice::new(48 * MIB),
        ssd_delay: Delay::new(0, 0, 0),
        delay: Delay::new(0, 0, 0),
        hang: Hang::default(),
        wall_ns: Rc::new(Cell::new(TODAY)),
    };
    executor.block_on(test(bench));
}

fn ordered(max_unshipped: MaxUnshipped) -> Settings {
    Settings { mode: Mode::WriteBack, ordered: true, max_unshipped, ..Settings::default() }
}

impl Bench {
    async fn format(&self) {
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
        Cache::format(&self.ssd, &self.origin, &format).await.expect("the SSD takes a cache");
    }

    async fn open(&self, settings: Settings) -> TestCache {
        let origin = HangDevice::new(self.handle.clone(), self.origin.clone(), self.hang.clone());
        let origin = DelayDevice::new(self.handle.clone(), origin, self.delay.clone());
        let (handle, wall_ns) = (self.handle.clone(), self.wall_ns.clone());
        let wall_clock = match wall_ns.get() {
            0 => WallClock::default(),
            _ => WallClock::new(move || wall_ns.get() + handle.now()),
        };
        let options = OpenOptions { wall_clock, ..OpenOptions::with(settings) };
        let ssd = DelayDevice::new(self.handle.clone(), self.ssd.clone(), self.ssd_delay.clone());
        let (cache, _) =
            Cache::open(&self.handle, ssd, origin, options).await.expect("the cache opens");
        // The first flush asks the origin, and later ones only after writes past the log.
        cache.flush().await.expect("a flush works");
        cache
    }

    /// The process dies at once, and another one starts.
    async fn crash(&self, cache: TestCache, settings: Settings) -> TestCache {
        cache.kill();
        drop(cache);
        self.handle.sleep(MS).await;
        self.open(settings).await
    }
}

async fn write(cache: &TestCache, line: u64, sectors: u64) {
    let data = Buf::zeroed(sectors as usize * 512).into();
    let written = cache.write(Lba(line * LINE_SECTORS), data, Durability::Cached).await;
    written.expect("a write works");
}

fn age(cache: &TestCache) -> Option<Age> {
    cache.status().unshipped.age
}

fn known(ns: Nanos) -> Option<Age> {
    Some(Age { ns, is_older: false })
}

#[test]
fn the_figure_is_that_of_the_oldest_write_which_the_origin_lacks() {
    with_bench(|bench| async move {
        bench.format().await;
        // A cleaner that begins at 10 s.
        let cache = bench.open(ordered(MaxUnshipped { age_ns: 20 * SECOND, bytes: 0 })).await;
        assert_eq!((age(&cache), cache.status().unshipped.bytes), (None, 0));
        write(&cache, 1, 8).await;
        cache.flush().await.expect("a flush works");
        bench.handle.sleep(SECOND / 2).await;
        write(&cache, 5, 3).await;
        bench.handle.sleep(SECOND / 2).await;
        let unshipped = cache.status().unshipped;
        assert_eq!((unshipped.age, unshipped.bytes), (known(SECOND), 11 * 512));
        assert_eq!(unshipped.shipped_flush, None);
        cache.drain().await.expect("a drain works");
        let unshipped = cache.status().unshipped;
        assert_eq!((unshipped.age, unshipped.bytes), (None, 0));
        let flush = unshipped.shipped_flush.expect("the flush is there");
        assert_eq!((flush.generation, flush.number, flush.wall_ns), (1, 1, TODAY));
        // A flush with nothing before it is none.
        cache.flush().await.expect("a flush works");
        let second = cache.status().unshipped.shipped_flush.expect("all is there");
        assert_eq!((second.number, second.wall_ns), (2, TODAY + SECOND));
        cache.flush().await.expect("a flush works");
        assert_eq!(cache.status().unshipped.shipped_flush, Some(second));
        cache.kill();
    });
}

#[test]
fn the_age_survives_a_crash_and_a_clock_that_is_set() {
    with_bench(|bench| async move {
        bench.format().await;
        let mut cache = bench.open(ordered(MaxUnshipped::default())).await;
        bench.hang.begin();
        write(&cache, 1, 8).await;
        cache.flush().await.expect("a flush works");
        bench.handle.sleep(3 * SECOND).await;
        write(&cache, 2, 8).await;
        cache.flush().await.expect("a flush works");
        bench.handle.sleep(4 * SECOND).await;
        bench.hang.end();
        for (set_ns, expected) in [(0, 7), (3600, 3607), (0, 7)] {
            bench.hang.end();
            bench.wall_ns.set(TODAY + set_ns * SECOND);
            cache = bench.crash(cache, ordered(MaxUnshipped::default())).await;
            bench.hang.begin();
            let found = age(&cache).expect("lines are dirty");
            assert!(!found.is_older && found.ns / SECOND == expected, "{found:?}, {set_ns}");
        }
        // Set back to before the writes: nothing is younger than nothing.
        bench.hang.end();
        bench.wall_ns.set(TODAY - 3600 * SECOND);
        cache = bench.crash(cache, ordered(MaxUnshipped::default())).await;
        bench.hang.begin();
        let found = age(&cache).expect("lines are dirty");
        assert!(!found.is_older && found.ns < SECOND, "{found:?}");
        bench.handle.sleep(2 * SECOND).await;
        assert_eq!(age(&cache).map(|age| age.ns), Some(found.ns + 2 * SECOND));
        bench.hang.end();
        cache.drain().await.expect("a drain works");
        assert_eq!(age(&cache), None);
        cache.kill();
    });
}

#[test]
fn the_older_of_two_writes_stays_the_older_when_the_clock_was_wrong_in_between() {
    with_bench(|bench| async move {
        bench.format().await;
        bench.wall_ns.set(TODAY + 3600 * SECOND);
        let cache = bench.open(ordered(MaxUnshipped::default())).await;
        bench.hang.begin();
        write(&cache, 1, 8).await;
        cache.flush().await.expect("a flush works");
        bench.hang.end();
        bench.wall_ns.set(TODAY);
        let cache = bench.crash(cache, ordered(MaxUnshipped::default())).await;
        bench.hang.begin();
        write(&cache, 2, 8).await;
        cache.flush().await.expect("a flush works");
        bench.handle.sleep(9 * SECOND).await;
        bench.hang.end();
        let cache = bench.crash(cache, ordered(MaxUnshipped::default())).await;
        let found = age(&cache).expect("lines are dirty");
        assert_eq!((found.ns / SECOND, found.is_older), (9, false));
        cache.kill();
    });
}

#[test]
fn without_a_time_in_the_log_the_age_counts_from_the_start_and_says_so() {
    with_bench(|bench| async move {
        bench.format().await;
        bench.wall_ns.set(0);
        let cache = bench.open(ordered(MaxUnshipped::default())).await;
        write(&cache, 1, 8).await;
        cache.flush().await.expect("a flush works");
        assert_eq!(age(&cache), known(0), "this life is known");
        bench.handle.sleep(SECOND / 10).await;
        bench.wall_ns.set(TODAY);
        let cache = bench.crash(cache, ordered(MaxUnshipped::default())).await;
        bench.handle.sleep(SECOND).await;
        assert_eq!(age(&cache), Some(Age { ns: SECOND, is_older: true }));
        cache.kill();
    });
}

#[test]
fn without_an_order_the_age_is_that_of_what_is_dirty() {
    with_bench(|bench| async move {
        bench.format().await;
        let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
        let cache = bench.open(settings.clone()).await;
        write(&cache, 1, 8).await;
        cache.flush().await.expect("a flush works");
        bench.handle.sleep(SECOND).await;
        assert_eq!((age(&cache), cache.status().unshipped.bytes), (known(SECOND), 4096));
        let cache = bench.crash(cache, settings).await;
        bench.handle.sleep(SECOND).await;
        let found = age(&cache).expect("a line is dirty");
        assert!(found.is_older && found.ns >= SECOND, "{found:?}");
        assert_eq!(cache.status().unshipped.shipped_flush, None);
        cache.kill();
    });
}

/// Nobody writes or reads any more, and no flush follows the last write.
#[test]
fn a_tail_that_nobody_flushed_reaches_the_origin_in_time() {
    with_bench(|bench| async move {
        bench.format().await;
        let bound = MaxUnshipped { age_ns: 3 * SECOND, bytes: 0 };
        let cache = bench.open(ordered(bound)).await;
        bench.delay.set(0, 5 * MS, 5 * MS);
        for line in 0..50 {
            write(&cache, line, 8).await;
            cache.read(Lba(0), Buf::new(512)).await.expect("a read works");
        }
        bench.handle.sleep(3 * SECOND / 2).await;
        bench.handle.sleep(SECOND).await;
        assert_eq!(cache.status().lines.dirty, 0);
        cache.kill();
    });
}

/// Writes now and then with a flush after each: the cleaner is ahead of the bound, and no write waits for it.
#[test]
fn under_a_light_load_the_bound_holds_and_nobody_waits() {
    with_bench(|bench| async move {
        bench.format().await;
        let bound = MaxUnshipped { age_ns: SECOND, bytes: 0 };
        let cache = bench.open(ordered(bound)).await;
        bench.delay.set(0, 5 * MS, 5 * MS);
        for line in 0..400 {
            let begun = bench.handle.now();
            write(&cache, line % 100, 8).await;
            cache.flush().await.expect("a flush works");
            assert_eq!(bench.handle.now(), begun, "write {line} waited");
            let oldest = age(&cache).map_or(0, |age| age.ns);
            assert!(oldest <= SECOND, "write {line}: {oldest} ns");
            bench.handle.sleep(40 * MS).await;
        }
        cache.kill();
    });
}

/// Several clients write as fast as they can before an origin that takes a tenth of it.
fn hold_under_a_heavy_load(bound: MaxUnshipped, seed: u64) {
    with_bench(move |bench| async move {
        bench.format().await;
        let cache = bench.open(ordered(bound)).await;
        bench.delay.set(0, 20 * MS, 10 * MS);
        let clients = (0..6).map(|client| {
            let (cache, handle) = (cache.clone(), bench.handle.clone());
            let mut prng = Prng::new(seed * 100 + client);
            bench.handle.spawn(async move {
                for step in 0..250 {
                    let sectors = 1 + prng.below(if step % 10 == 0 { 2048 } else { 64 });
                    let at = Lba(prng.below(48 * 2048 - sectors));
                    let data = Buf::zeroed(sectors as usize * 512).into();
                    cache.write(at, data, Durability::Cached).await.expect("a write works");
                    let found = cache.status().unshipped;
                    let age_ns = found.age.map_or(0, |age| age.ns);
                    assert!(bound.age_ns == 0 || age_ns <= bound.age_ns, "{found:?}");
                    assert!(bound.bytes == 0 || found.bytes <= bound.bytes, "{found:?}");
                    if prng.one_in(4) {
                        cache.flush().await.expect("a flush works");
                    }
                    handle.sleep(prng.below(MS)).await;
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await;
        }
        cache.drain().await.expect("a drain works");
        assert_eq!(cache.status().unshipped.waiting_writes, 0);
        cache.stop().await.expect("a stop works");
        cache.audit().expect("nothing is held");
    });
}

#[test]
fn writes_wait_rather_than_let_the_oldest_become_older_than_the_bound() {
    for seed in 0..3 {
        hold_under_a_heavy_load(MaxUnshipped { age_ns: SECOND, bytes: 0 }, seed);
    }
}

#[test]
fn writes_wait_rather_than_let_more_bytes_be_lost_than_the_bound() {
    for seed in 0..3 {
        hold_under_a_heavy_load(MaxUnshipped { age_ns: 0, bytes: 4 * MIB }, seed);
        hold_under_a_heavy_load(MaxUnshipped { age_ns: 2 * SECOND, bytes: 6 * MIB }, seed);
    }
}

/// The flush of a durable change takes longer than the bound, and the origin does not answer.
#[test]
fn durable_changes_wait_after_their_flush_as_others_do() {
    for zeroes in [false, true] {
        with_bench(move |bench| async move {
            bench.format().await;
            let cache = bench.open(ordered(MaxUnshipped { age_ns: 2 * SECOND, bytes: 0 })).await;
            bench.ssd_delay.set(0, 0, 3 * SECOND);
            bench.hang.begin();
            let (changing, is_done) = (cache.clone(), Rc::new(Cell::new(false)));
            let told = is_done.clone();
            let change = bench.handle.spawn(async move {
                let data = Buf::zeroed(LINE).into();
                let range = SectorRange::new(Lba(0), LINE_SECTORS);
                let changed = match zeroes {
                    true => changing.write_zeroes(range, Durability::Durable).await,
                    false => changing.write(Lba(0), data, Durability::Durable).await,
                };
                changed.expect("a change works");
                told.set(true);
            });
            bench.handle.sleep(10 * SECOND).await;
            assert!(!is_done.get(), "acknowledged although the origin lacks it for 10 s");
            bench.hang.end();
            change.await;
            cache.kill();
        });
    }
}

#[test]
fn before_an_origin_that_is_away_writes_wait_and_reads_go_on_and_all_resumes_by_itself() {
    with_bench(|bench| async move {
        bench.format().await;
        let bound = MaxUnshipped { age_ns: 4 * SECOND, bytes: 0 };
        let cache = bench.open(ordered(bound)).await;
        bench.hang.begin();
        write(&cache, 1, 8).await;
        bench.handle.sleep(5 * SECOND).await;
        let written = Rc::new(Cell::new(0));
        let write_later = |line| {
            let (cache, written) = (cache.clone(), written.clone());
            bench.handle.spawn(async move {
                write(&cache, line, 8).await;
                written.set(written.get() + 1);
            })
        };
        let waits = [1, 2, 3].map(write_later);
        bench.handle.sleep(200 * SECOND).await;
        assert_eq!(written.get(), 0, "a write exceeds the bound");
        assert_eq!(cache.status().unshipped.waiting_writes, 3);
        // Also of the line that a write waits for.
        let read = cache.read(Lba(LINE_SECTORS), Buf::new(LINE)).await.expect("a read works");
        assert_eq!(read.len(), LINE);
        cache.flush().await.expect("a flush works");
        bench.hang.end();
        bench.handle.sleep(3 * SECOND).await;
        for wait in waits {
            wait.await;
        }
        let unshipped = cache.status().unshipped;
        assert_eq!(unshipped.waiting_writes, 0);
        // A bound that is lifted lets writes go on.
        bench.hang.begin();
        write(&cache, 7, 8).await;
        bench.handle.sleep(5 * SECOND).await;
        let before = written.get();
        let wait = write_later(8);
        bench.handle.sleep(5 * SECOND).await;
        assert_eq!(written.get(), before);
        cache.configure(ordered(MaxUnshipped::default())).expect("the settings make sense");
        wait.await;
        bench.hang.end();
        cache.kill();
    });
}
