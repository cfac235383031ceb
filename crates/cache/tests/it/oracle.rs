//! Goal: reads give what was last written, whatever the mode, policy, line size and alignment. The goal
//! holds also after a restart in order, a restart after a kill, and when the cache is taken away.
//! Method: random requests against a plain array, on memory drives, in virtual time.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, Lba, Payload, Prng, SectorRange};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

type TestCache = Cache<MemoryDevice, MemoryDevice>;

fn settings(mode: Mode) -> Settings {
    Settings { mode, ..Settings::default() }
}

async fn open(handle: &Handle, ssd: &MemoryDevice, origin: &MemoryDevice, mode: Mode) -> TestCache {
    let options = OpenOptions::with(settings(mode));
    let opened = Cache::open(handle, ssd.clone(), origin.clone(), options).await;
    opened.expect("the cache opens").0
}

struct World {
    handle: Handle,
    ssd: MemoryDevice,
    origin: MemoryDevice,
    model: Vec<u8>,
    prng: Prng,
}

impl World {
    fn random_range(&mut self) -> SectorRange {
        let sectors = self.model.len() as u64 / 512;
        let longest = *self.prng.pick(&[1, 3, 8, 8, 8, 40, 300]);
        let count = if self.prng.one_in(2) { longest } else { 1 + self.prng.below(longest) };
        // Half of the requests go to a hot eighth.
        let span = if self.prng.one_in(2) { sectors / 8 } else { sectors };
        let start = self.prng.below(span - count + 1);
        SectorRange::new(Lba(start), count)
    }

    fn random_data(&mut self, bytes: usize) -> Payload {
        let mut data = Buf::new(bytes);
        self.prng.fill(&mut data);
        if self.prng.one_in(3) && bytes > 512 {
            let cut = 512 * (1 + self.prng.below(bytes as u64 / 512 - 1) as usize);
            let front = data.split_to(cut);
            return Payload::Many(vec![front.freeze(), data.freeze()]);
        }
        data.into()
    }

    async fn check(&self, cache: &impl BlockDevice, range: SectorRange, what: &str) {
        let (from, bytes) = (range.start.bytes() as usize, range.bytes() as usize);
        let read = cache.read(range.start, Buf::new(bytes)).await.expect("a read works");
        let expected = &self.model[from..from + bytes];
        if read[..] != *expected {
            let at = read.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
            panic!("{what}: {range} differs at byte {at}");
        }
    }

    async fn step(&mut self, cache: &TestCache) {
        let range = self.random_range();
        let (from, bytes) = (range.start.bytes() as usize, range.bytes() as usize);
        match self.prng.below(20) {
            0..8 => {
                let data = self.random_data(bytes);
                let mut at = from;
                for piece in data.pieces() {
                    self.model[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
                let durability =
                    if self.prng.one_in(10) { Durability::Durable } else { Durability::Cached };
                cache.write(range.start, data, durability).await.expect("a write works");
            }
            8..17 => self.check(cache, range, "request").await,
            17 => {
                self.model[from..from + bytes].fill(0);
                cache.write_zeroes(range, Durability::Cached).await.expect("zeroing works");
            }
            18 => cache.flush().await.expect("a flush works"),
            _ => {
                let mode = *self.prng.pick(&Mode::ALL);
                cache.configure(settings(mode)).expect("a mode switch works");
                cache.set_policy(*self.prng.pick(&PolicyKind::ALL)).expect("there is memory");
            }
        }
    }

    async fn check_all(&self, device: &impl BlockDevice, what: &str) {
        let sectors = self.model.len() as u64 / 512;
        let all = SectorRange::new(Lba(0), sectors);
        for piece in all.split_at_multiples(1000) {
            self.check(device, piece, what).await;
        }
    }
}

async fn live(mut world: World, line: u64, policy: PolicyKind, steps: u32) {
    let format = FormatOptions { line_size: LineSize::new(line).unwrap(), policy, uuid: [7; 16] };
    Cache::format(&world.ssd, &world.origin, &format).await.expect("the SSD takes a cache");
    let mut cache = open(&world.handle, &world.ssd, &world.origin, Mode::WriteBack).await;
    for round in 0..8 {
        for _ in 0..steps {
            world.step(&cache).await;
        }
        match round % 4 {
            0 => cache.stop().await.expect("a stop works"),
            1 => {} // killed: dropped as it is, with tasks that never run again
            2 => cache.drain().await.expect("a drain works"),
            _ => cache.flush().await.expect("a flush works"),
        }
        if round % 4 == 2 {
            continue;
        }
        if round % 4 == 1 || round % 4 == 3 {
            cache.kill();
        }
        cache = open(&world.handle, &world.ssd, &world.origin, Mode::WriteBack).await;
        world.check_all(&cache, "after a restart").await;
    }
    cache.configure(settings(Mode::PassThrough)).unwrap();
    cache.drain().await.expect("the last drain works");
    cache.dissolve().await.expect("the label goes");
    world.check_all(&world.origin, "the plain origin").await;
    assert_eq!(TestCache::probe(&world.ssd).await.expect("readable"), None);
}

fn run(line: u64, policy: PolicyKind, origin_bytes: usize, seed: u64, steps: u32) {
    run_on(if line > 8192 { 32 << 20 } else { 8 << 20 }, line, policy, origin_bytes, seed, steps);
}

fn run_on(
    ssd_bytes: u64,
    line: u64,
    policy: PolicyKind,
    origin_bytes: usize,
    seed: u64,
    steps: u32,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World {
        handle: executor.handle(),
        ssd: MemoryDevice::new(ssd_bytes),
        origin: MemoryDevice::new(origin_bytes as u64),
        model: vec![0; origin_bytes],
        prng: Prng::new(seed),
    };
    executor.block_on(live(world, line, policy, steps));
}

#[test]
fn every_policy_serves_what_was_written() {
    for (number, policy) in PolicyKind::ALL.into_iter().enumerate() {
        run(4096, policy, 32 << 20, 100 + number as u64, 1500);
    }
}

#[test]
fn every_line_size_serves_what_was_written() {
    for (number, line) in [2048, 4096, 8192, 16384, 32768, 65536].into_iter().enumerate() {
        run(line, PolicyKind::Lru, 24 << 20, 200 + number as u64, 800);
    }
}

/// Such an SSD has few segments of few slots.
#[test]
fn a_small_ssd_full_of_large_lines_finds_room() {
    for seed in 0..6 {
        run_on(24 << 20, 65536, PolicyKind::Lru, 48 << 20, 400 + seed, 1000);
        run_on(24 << 20, 16384, PolicyKind::Fifo, 48 << 20, 500 + seed, 1000);
    }
}

#[test]
fn an_origin_that_ends_within_a_line_is_served_to_its_end() {
    run(65536, PolicyKind::Lru, (4 << 20) + 7 * 512, 300, 800);
    run(4096, PolicyKind::S3Fifo, (4 << 20) + 512, 301, 800);
}

/// Memory drives take no virtual time, so all that passes is rests of the cleaner.
#[test]
fn a_small_cache_that_fills_up_does_not_wait_for_a_cleaner_that_rests() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, origin) = (MemoryDevice::new(24 << 20), MemoryDevice::new(48 << 20));
        let line_size = LineSize::new(65536).unwrap();
        let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [8; 16] };
        Cache::format(&ssd, &origin, &format).await.unwrap();
        let cache = open(&handle, &ssd, &origin, Mode::WriteBack).await;
        let begun = handle.now();
        for line in 0..2000 {
            let at = Lba(line % 768 * 128);
            cache.write(at, Buf::zeroed(65536).into(), Durability::Cached).await.unwrap();
        }
        assert_eq!(handle.now(), begun, "writers waited");
        assert!(cache.status().counts.destaged_lines > 1500);
        cache.kill();
    });
}

#[test]
fn parallel_requests_to_one_line_do_not_lose_sectors() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, origin) = (MemoryDevice::new(8 << 20), MemoryDevice::new(1 << 20));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [9; 16] };
        Cache::format(&ssd, &origin, &format).await.unwrap();
        let cache = Rc::new(open(&handle, &ssd, &origin, Mode::WriteBack).await);
        for round in 0..50u8 {
            let writes: Vec<_> = (0..8u64)
                .map(|sector| {
                    let cache = cache.clone();
                    let byte = round.wrapping_mul(8) + sector as u8;
                    handle.spawn(async move {
                        let data = Bytes::copy_of(&[byte; 512]).into();
                        cache.write(Lba(sector), data, Durability::Cached).await.unwrap();
                    })
                })
                .collect();
            for write in writes {
                write.await;
            }
            let line = cache.read(Lba(0), Buf::new(4096)).await.unwrap();
            for sector in 0..8 {
                assert_eq!(line[sector * 512], round.wrapping_mul(8) + sector as u8);
            }
        }
    });
}
