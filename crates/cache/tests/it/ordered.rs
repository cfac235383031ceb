//! Goal: in ordered mode the origin alone holds a flush cut at any moment. For some flush, every sector
//! is as it was at that flush, or as it was written later. Method: random writes and flushes with
//! destaging under way; the origin is looked at from the side, also across kills and restarts.

use voltier_block::{BlockDevice, Buf, Durability, Lba, Prng, SectorRange};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_filter::{Delay, DelayDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const SECTORS: u64 = 4096;

type TestCache = Cache<MemoryDevice, MemoryDevice>;

/// Every version of every sector, and how many versions it had at each flush.
struct History {
    versions: Vec<Vec<u64>>,
    cuts: Vec<Vec<usize>>,
}

impl History {
    fn new() -> Self {
        let versions = vec![vec![0]; SECTORS as usize];
        let cuts = vec![vec![1; SECTORS as usize]];
        Self { versions, cuts }
    }

    fn cut(&mut self) {
        self.cuts.push(self.versions.iter().map(Vec::len).collect());
    }

    /// The newest cut that the content of the origin fits.
    fn newest_fitting_cut(&self, content: &[u64]) -> Option<usize> {
        (0..self.cuts.len()).rev().find(|cut| {
            content.iter().enumerate().all(|(sector, value)| {
                // The last version at the cut, or any after it.
                let from = self.cuts[*cut][sector] - 1;
                self.versions[sector][from..].contains(value)
            })
        })
    }
}

async fn content_of(origin: &MemoryDevice) -> Vec<u64> {
    let data = origin.read(Lba(0), Buf::new(SECTORS as usize * 512)).await.unwrap();
    let value = |sector: &[u8]| u64::from_le_bytes(sector[..8].try_into().unwrap());
    data.chunks(512).map(value).collect()
}

fn settings() -> Settings {
    Settings {
        mode: Mode::WriteBack,
        ordered: true,
        dirty_high_percent: 20,
        dirty_low_percent: 1,
        ..Settings::default()
    }
}

async fn open(handle: &Handle, ssd: &MemoryDevice, origin: &MemoryDevice) -> TestCache {
    let options = OpenOptions::with(settings());
    Cache::open(handle, ssd.clone(), origin.clone(), options).await.expect("it opens").0
}

async fn write_random(cache: &TestCache, history: &mut History, prng: &mut Prng, next: &mut u64) {
    let count = *prng.pick(&[1, 2, 8, 8, 16, 64]);
    // Half of the writes go to few lines: versions of many epochs pile up there.
    let span = if prng.one_in(2) { 256 } else { SECTORS };
    let start = prng.below(span - count + 1);
    *next += 1;
    let mut data = Buf::zeroed(count as usize * 512);
    for (number, sector) in data.chunks_mut(512).enumerate() {
        sector[..8].copy_from_slice(&next.to_le_bytes());
        history.versions[start as usize + number].push(*next);
    }
    cache.write(Lba(start), data.into(), Durability::Cached).await.expect("a write works");
}

async fn live(handle: Handle, seed: u64) {
    let (ssd, origin) = (MemoryDevice::new(8 << 20), MemoryDevice::new(SECTORS * 512));
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [5; 16] };
    Cache::format(&ssd, &origin, &format).await.expect("it takes a cache");
    let mut cache = open(&handle, &ssd, &origin).await;
    let (mut history, mut prng, mut next) = (History::new(), Prng::new(seed), 0);
    let mut last_cut = 0;
    for step in 0..3000 {
        match prng.below(12) {
            0 => {
                cache.flush().await.expect("a flush works");
                history.cut();
            }
            1 => handle.sleep(prng.below(3_000_000)).await,
            _ => write_random(&cache, &mut history, &mut prng, &mut next).await,
        }
        let cut = history.newest_fitting_cut(&content_of(&origin).await);
        let cut = cut.unwrap_or_else(|| panic!("seed {seed}, step {step}: no cut fits the origin"));
        assert!(cut >= last_cut, "seed {seed}, step {step}: the origin went back");
        last_cut = cut;
        if prng.one_in(500) {
            if prng.one_in(2) {
                cache.stop().await.expect("a stop works");
            } else {
                cache.kill();
            }
            cache = open(&handle, &ssd, &origin).await;
        }
    }
    cache.flush().await.expect("a flush works");
    history.cut();
    cache.drain().await.expect("a drain works");
    let cut = history.newest_fitting_cut(&content_of(&origin).await);
    assert_eq!(cut, Some(history.cuts.len() - 1), "drained: the origin has everything");
    assert!(last_cut > 10, "destaging was under way while writes came");
}

#[test]
fn the_origin_holds_a_flush_cut_at_any_moment() {
    for seed in 0..4 {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(live(handle, seed));
    }
}

#[test]
fn dirty_lines_without_an_order_keep_ordered_mode_from_being_switched_on() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, origin) = (MemoryDevice::new(8 << 20), MemoryDevice::new(SECTORS * 512));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [6; 16] };
        Cache::format(&ssd, &origin, &format).await.unwrap();
        let cache = open(&handle, &ssd, &origin).await;
        let unordered = Settings { ordered: false, ..settings() };
        cache.configure(unordered).unwrap();
        cache.write(Lba(0), Buf::zeroed(4096).into(), Durability::Cached).await.unwrap();
        assert!(cache.configure(settings()).unwrap_err().contains("voltier flush"));
        cache.drain().await.unwrap();
        cache.configure(settings()).unwrap();
    });
}

/// The order ends under a batch, and a line of it is discarded and written past the log before its turn.
type SlowOrigin = Cache<MemoryDevice, DelayDevice<MemoryDevice>>;

async fn write_line(cache: &SlowOrigin, line: u64, sectors: usize, byte: u8) {
    let mut data = Buf::zeroed(sectors * 512);
    data.fill(byte);
    cache.write(Lba(16 * line), data.into(), Durability::Cached).await.unwrap();
}

/// Drains lines in order. While the first of them are under way, `change` switches the order off and writes
/// the last one. The first and the last byte of that line on the origin must be as expected.
fn changed_under_a_batch(change: impl AsyncFnOnce(SlowOrigin, u64) + 'static, expected: (u8, u8)) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, origin) = (MemoryDevice::new(8 << 20), MemoryDevice::new(SECTORS * 512));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
        Cache::format(&ssd, &origin, &format).await.unwrap();
        // More lines than go out in three turns, no two of them neighbours.
        let (lines, write_ns) = (121, 10_000_000);
        let slow = DelayDevice::new(handle.clone(), origin.clone(), Delay::new(0, write_ns, 0));
        let options = OpenOptions::with(settings());
        let cache = Cache::open(&handle, ssd, slow, options).await.expect("it opens").0;
        for line in 0..lines {
            write_line(&cache, line, 8, 1).await;
        }
        cache.flush().await.unwrap();
        let drained = handle.spawn({
            let cache = cache.clone();
            async move { cache.drain().await }
        });
        handle.sleep(write_ns / 2).await;
        let last = lines - 1;
        change(cache.clone(), last).await;
        drained.await.unwrap();
        cache.drain().await.unwrap();
        let found = origin.read(Lba(16 * last), Buf::new(4096)).await.unwrap();
        assert_eq!((found[0], found[4095]), expected);
    });
}

async fn write_anew_past_the_log(cache: &SlowOrigin, mode: Mode, line: u64) {
    cache.configure(Settings { ordered: false, mode, ..settings() }).unwrap();
    cache.discard(SectorRange::new(Lba(16 * line), 8)).await.unwrap();
    write_line(cache, line, 8, 3).await;
}

#[test]
fn a_version_of_a_line_that_was_discarded_since_does_not_go_over_a_direct_write() {
    let change = async |cache: SlowOrigin, last| {
        write_anew_past_the_log(&cache, Mode::WriteThrough, last).await;
    };
    changed_under_a_batch(change, (3, 3));
}

/// The line is dirty again when its turn in the batch comes, but with one sector only.
#[test]
fn a_version_of_a_line_does_not_go_over_a_direct_write_beside_a_newer_part() {
    let change = async |cache: SlowOrigin, last| {
        write_anew_past_the_log(&cache, Mode::ReadOnly, last).await;
        let unordered = Settings { ordered: false, ..settings() };
        cache.configure(unordered).unwrap();
        write_line(&cache, last, 1, 4).await;
    };
    changed_under_a_batch(change, (4, 3));
}

/// A cleaner that spins would hang this test, and every volume of the core.
#[test]
fn a_write_in_order_after_a_sweep_that_stopped_on_its_way_is_acknowledged() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, origin) = (MemoryDevice::new(16 << 20), MemoryDevice::new(64 << 20));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [5; 16] };
        Cache::format(&ssd, &origin, &format).await.expect("it takes a cache");
        // All stays dirty until the drain, whose one batch leaves the sweep where it ended.
        let unordered = Settings {
            ordered: false,
            seq_cutoff_bytes: 0,
            dirty_high_percent: 90,
            dirty_low_percent: 80,
            ..settings()
        };
        // A record is under way for a time in which the cleaner can be asked.
        let slow = DelayDevice::new(handle.clone(), ssd, Delay::new(0, 1_000_000, 0));
        let options = OpenOptions::with(unordered.clone());
        let cache = Cache::open(&handle, slow, origin, options).await.expect("it opens").0;
        for line in 0..1024 {
            let data = Buf::copy_of(&[7; 4096]);
            cache
                .write(Lba(line * 8), data.into(), Durability::Cached)
                .await
                .expect("a write works");
        }
        cache.drain().await.expect("a drain works");
        cache.configure(Settings { ordered: true, ..unordered }).expect("nothing is dirty");
        for line in 0..4 {
            let data = Buf::copy_of(&[8; 4096]);
            cache
                .write(Lba(line * 8), data.into(), Durability::Cached)
                .await
                .expect("a write works");
            handle.sleep(10_000_000_000).await;
        }
        cache.drain().await.expect("a drain works");
    });
}
