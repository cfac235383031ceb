//! Goal: a cache serves right while its map is loaded, and nothing that the map says out of date comes
//! back with it. Method: the SSD holds back reads of the map after the start. Clients write, discard
//! and zero what is not loaded yet, in every way. Then the map is let go, and a model checks all, also
//! after a kill.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoError, IoResult, Lba, Limits, MIB, Payload, Prng,
    SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{
    Cache, FormatOptions, LineSize, Mode, OpenError, OpenOptions, Opened, Settings,
};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles, Signal};

/// A map of four chunks of 2 KiB lines, and a list of dirty lines of two.
const SSD_BYTES: u64 = 160 * MIB;
const ORIGIN_BYTES: u64 = 256 * MIB;
const CHUNK_BYTES: u64 = 256 << 10;
const AREA_BYTES: u64 = 6 * CHUNK_BYTES;
/// Where the two areas begin.
const AREAS: [u64; 2] = [MIB, MIB + AREA_BYTES];
const LINE_BYTES: u64 = 2048;

/// A drive in memory that can hold readers of the map back after some chunks of it.
#[derive(Clone)]
struct Held {
    memory: MemoryDevice,
    /// Reads of the map that may pass.
    passes: Rc<Cell<u32>>,
    released: Rc<Signal>,
    handle: Handle,
    /// The first read of the map takes this long; each of those behind it takes that much longer.
    map_read_ns: Rc<Cell<u64>>,
    map_reads: Rc<Cell<u64>>,
    /// Writes to the segments wait.
    holds_writes: Rc<Cell<bool>>,
    /// Requests under way, until their futures end.
    requests: Rc<Cell<u32>>,
}

/// A request under way, until dropped.
struct UnderWay(Rc<Cell<u32>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.update(|requests| requests - 1);
    }
}

impl Held {
    fn new(handle: Handle, bytes: u64) -> Self {
        Self {
            memory: MemoryDevice::new(bytes),
            passes: Rc::new(Cell::new(u32::MAX)),
            released: Rc::new(Signal::new()),
            handle,
            map_read_ns: Rc::new(Cell::new(0)),
            map_reads: Rc::new(Cell::new(0)),
            holds_writes: Rc::default(),
            requests: Rc::default(),
        }
    }

    fn release(&self) {
        self.passes.set(u32::MAX);
        self.holds_writes.set(false);
        self.released.notify();
    }

    fn begin(&self) -> UnderWay {
        self.requests.update(|requests| requests + 1);
        UnderWay(self.requests.clone())
    }

    /// How many hold the drive, tests and tasks of a cache alike.
    fn holders(&self) -> usize {
        Rc::strong_count(&self.released)
    }
}

impl BlockDevice for Held {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let _request = self.begin();
        if (MIB..MIB + 2 * AREA_BYTES).contains(&at.bytes()) {
            self.released.until(|| self.passes.get() > 0).await;
            self.passes.set(self.passes.get() - 1);
            if self.map_read_ns.get() > 0 {
                self.map_reads.update(|reads| reads + 1);
                self.handle.sleep(self.map_read_ns.get() * self.map_reads.get()).await;
            }
        }
        self.memory.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let _request = self.begin();
        if at.bytes() >= MIB + 2 * AREA_BYTES {
            self.released.until(|| !self.holds_writes.get()).await;
        }
        self.memory.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.memory.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.memory.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.memory.write_zeroes(range, durability).await
    }
}

impl InMemory for Held {}

type TestCache = Cache<Held, MemoryDevice>;

/// The drives, and what a client must read: one number for each line, `None` after a discard.
struct Stand {
    handle: Handle,
    ssd: Held,
    origin: MemoryDevice,
    model: Vec<Option<u64>>,
    next: u64,
}

impl Stand {
    async fn new(handle: Handle) -> Self {
        let (ssd, origin) = (Held::new(handle.clone(), SSD_BYTES), MemoryDevice::new(ORIGIN_BYTES));
        let line_size = LineSize::new(LINE_BYTES).unwrap();
        let format = FormatOptions { line_size, policy: PolicyKind::Fifo, uuid: [9; 16] };
        Cache::format(&ssd, &origin, &format).await.expect("it takes a cache");
        let model = vec![Some(0); (ORIGIN_BYTES / LINE_BYTES) as usize];
        Self { handle, ssd, origin, model, next: 0 }
    }

    async fn open(&self, mode: Mode) -> Result<TestCache, OpenError> {
        self.open_and_tell(mode).await.map(|opened| opened.0)
    }

    async fn open_and_tell(&self, mode: Mode) -> Result<(TestCache, Opened), OpenError> {
        let settings =
            Settings { mode, dirty_low_percent: 80, dirty_high_percent: 85, ..Settings::default() };
        let options = OpenOptions::with(settings);
        let (ssd, origin) = (self.ssd.clone(), self.origin.clone());
        Cache::open(&self.handle, ssd, origin, options).await
    }

    async fn write(&mut self, cache: &TestCache, first: u64, lines: u64) {
        let mut data = Buf::zeroed((lines * LINE_BYTES) as usize);
        for (number, line) in data.chunks_mut(LINE_BYTES as usize).enumerate() {
            self.next += 1;
            line.chunks_mut(8).for_each(|word| word.copy_from_slice(&self.next.to_le_bytes()));
            self.model[first as usize + number] = Some(self.next);
        }
        let at = Lba::from_bytes(first * LINE_BYTES);
        cache.write(at, data.into(), Durability::Cached).await.expect("a write works");
    }

    async fn check(&self, cache: &TestCache, lines: std::ops::Range<u64>, when: &str) {
        for first in lines.clone().step_by(64) {
            let count = 64.min(lines.end - first);
            let into = Buf::new((count * LINE_BYTES) as usize);
            let data = cache.read(Lba::from_bytes(first * LINE_BYTES), into).await;
            let data = data.expect("a read works");
            for (line, found) in (first..).zip(data.chunks(LINE_BYTES as usize)) {
                let Some(expected) = self.model[line as usize] else { continue };
                for word in found.chunks(8) {
                    assert_eq!(word, expected.to_le_bytes(), "{when}: line {line}");
                }
            }
        }
    }

    /// Fills the cache: most lines clean, some dirty.
    async fn fill(&mut self, clean: u64, dirty: u64) {
        let cache = self.open(Mode::WriteThrough).await.expect("it opens");
        for first in (0..clean).step_by(64) {
            self.write(&cache, first, 64).await;
        }
        cache.configure(Settings { mode: Mode::WriteBack, ..cache.settings() }).unwrap();
        for first in (clean..clean + dirty).step_by(64) {
            self.write(&cache, first, 64).await;
        }
        cache.stop().await.expect("a stop works");
    }

    /// Changes lines in every way that a client can, in the mode that is set.
    async fn change(&mut self, cache: &TestCache, lines: u64, seed: u64) {
        let mut prng = Prng::new(seed);
        for _ in 0..600 {
            let first = prng.below(lines - 8);
            let count = 1 + prng.below(8);
            let range = SectorRange::from_bytes(first * LINE_BYTES, count * LINE_BYTES);
            match prng.below(8) {
                0 => {
                    cache.discard(range).await.expect("a discard works");
                    self.model[first as usize..(first + count) as usize].fill(None);
                }
                1 => {
                    let zeroed = cache.write_zeroes(range, Durability::Cached).await;
                    zeroed.expect("zeroes work");
                    self.model[first as usize..(first + count) as usize].fill(Some(0));
                }
                2 => self.check(cache, first..first + count, "while loading").await,
                _ => self.write(cache, first, count).await,
            }
        }
    }
}

fn in_virtual_time<F: Future<Output = ()> + 'static>(life: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let life = life(executor.handle());
    executor.block_on(life);
}

/// A life whose map is held back while clients change lines.
async fn serve_while_loading(handle: Handle, mode: Mode, killed: bool) {
    const LINES: u64 = 50_000;
    let mut stand = Stand::new(handle).await;
    stand.fill(LINES - 4096, 4096).await;
    let cache = stand.open(mode).await.expect("it opens");
    // In its segments the log finds room.
    stand.ssd.passes.set(1);
    let status = cache.status();
    assert!(status.lines.loading > 30_000, "the map is not loaded yet: {status:?}");
    assert_eq!((status.lines.used, status.lines.dirty), (LINES, 4096));
    stand.check(&cache, LINES - 8192..LINES, "dirty and clean").await;
    stand.change(&cache, LINES, 7).await;
    if killed {
        cache.kill();
        stand.ssd.release();
        stand.handle.sleep(1_000_000_000).await;
    } else {
        stand.ssd.release();
        cache.loaded().await;
        assert_eq!(cache.status().lines.loading, 0);
        stand.check(&cache, 0..LINES, "loaded").await;
        stand.change(&cache, LINES, 8).await;
        cache.stop().await.expect("a stop works");
    }
    let cache = stand.open(mode).await.expect("it opens again");
    stand.check(&cache, 0..LINES, "in the next life").await;
    cache.loaded().await;
    stand.check(&cache, 0..LINES, "loaded in the next life").await;
    assert_eq!(cache.status().counts.repaired_lines, 0, "no line was found damaged");
    cache.drain().await.expect("a drain works");
    cache.stop().await.expect("a stop works");
}

#[test]
fn what_is_changed_before_its_place_is_known_stays_changed() {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::ReadOnly, Mode::WriteOnly] {
        for killed in [false, true] {
            in_virtual_time(|handle| serve_while_loading(handle, mode, killed));
        }
    }
}

#[test]
fn a_start_is_no_reason_to_write_back() {
    in_virtual_time(|handle| async move {
        let mut stand = Stand::new(handle).await;
        stand.fill(8192, 64).await;
        let cache = stand.open(Mode::WriteBack).await.expect("it opens");
        cache.loaded().await;
        // Less than the time after which an idle cache is cleaned.
        stand.handle.sleep(500_000_000).await;
        let status = cache.status();
        assert_eq!((status.lines.dirty, status.counts.destaged_lines), (64, 0));
    });
}

#[test]
fn a_damaged_chunk_of_the_map_costs_clean_lines_only() {
    in_virtual_time(|handle| async move {
        const LINES: u64 = 50_000;
        let mut stand = Stand::new(handle).await;
        stand.fill(LINES - 4096, 4096).await;
        // The first chunk of both areas; the log stands in segments of a later one.
        for area in AREAS {
            let sector = SectorRange::from_bytes(area + 4096, 512);
            stand.ssd.memory.discard(sector).await.unwrap();
        }
        let cache = stand.open(Mode::WriteBack).await.expect("it opens");
        assert_eq!(cache.status().lines.dirty, 4096);
        cache.loaded().await;
        let status = cache.status();
        assert_eq!(status.counts.damaged_chunks, 1);
        assert!(status.lines.used < LINES - 10_000, "{status:?}");
        stand.check(&cache, 0..LINES, "after the damage").await;
    });
}

#[test]
fn more_dirty_lines_than_their_list_takes_are_all_there_before_anything_is_served() {
    in_virtual_time(|handle| async move {
        const DIRTY: u64 = 40_000;
        let mut stand = Stand::new(handle).await;
        stand.fill(8192, DIRTY).await;
        let cache = stand.open(Mode::WriteBack).await.expect("it opens");
        let status = cache.status();
        assert_eq!((status.lines.dirty, status.lines.loading), (DIRTY, 0));
        stand.check(&cache, 0..8192 + DIRTY, "all of it").await;
        cache.drain().await.expect("a drain works");
    });
}

/// A stop soon after a start whose map loads slowly, and the next life.
async fn stop_while_loading(handle: Handle, mode: Mode) {
    const LINES: u64 = 50_000;
    const MAP_READ_NS: u64 = 8_000_000_000;
    let mut stand = Stand::new(handle).await;
    stand.fill(LINES - 4096, 4096).await;
    let cache = stand.open(mode).await.expect("it opens");
    stand.ssd.map_read_ns.set(MAP_READ_NS);
    assert!(cache.status().lines.loading > 30_000, "the map is not loaded yet");
    stand.change(&cache, LINES, 7).await;
    let asked_ns = stand.handle.now();
    cache.stop().await.expect("a stop works");
    cache.audit().expect("the books balance");
    let took_ns = stand.handle.now() - asked_ns;
    assert!(took_ns < 3 * MAP_READ_NS, "{mode:?}: the stop took {took_ns} ns");
    drop(cache);
    stand.ssd.map_read_ns.set(0);
    let cache = stand.open(mode).await.expect("it opens again");
    stand.check(&cache, 0..LINES, "in the next life").await;
    cache.loaded().await;
    stand.check(&cache, 0..LINES, "loaded in the next life").await;
    cache.drain().await.expect("a drain works");
    cache.stop().await.expect("a stop works");
}

#[test]
fn a_stop_does_not_wait_for_a_map_that_loads_slowly() {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::ReadOnly, Mode::WriteOnly] {
        in_virtual_time(|handle| stop_while_loading(handle, mode));
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// A cache whose map does not load, while its records are on their way to the SSD. The records are of lines
/// that were read.
async fn with_records_under_way(stand: &mut Stand) -> TestCache {
    const LINES: u64 = 50_000;
    stand.fill(LINES - 4096, 4096).await;
    let cache = stand.open(Mode::WriteBack).await.expect("it opens");
    stand.ssd.passes.set(0);
    stand.ssd.holds_writes.set(true);
    stand.handle.sleep(SECOND_NS / 100).await;
    let map_reads = stand.ssd.requests.get();
    for line in (LINES..LINES + 3000).step_by(100) {
        stand.check(&cache, line..line + 1, "not cached").await;
    }
    stand.handle.sleep(5 * SECOND_NS).await;
    assert!(stand.ssd.requests.get() > map_reads, "records are on their way to the SSD");
    cache
}

#[test]
fn a_stop_leaves_nothing_under_way_and_nobody_who_has_the_ssd() {
    in_virtual_time(|handle| async move {
        let mut stand = Stand::new(handle).await;
        let cache = with_records_under_way(&mut stand).await;
        let (ssd, handle) = (stand.ssd.clone(), stand.handle.clone());
        let late = stand.handle.spawn(async move {
            handle.sleep(20 * SECOND_NS).await;
            ssd.holds_writes.set(false);
            ssd.released.notify();
        });
        cache.stop().await.expect("a stop works");
        assert_eq!(stand.ssd.requests.get(), 0, "an array below is called clean now");
        cache.audit().expect("the books balance");
        drop(cache);
        late.await;
        assert_eq!(stand.ssd.holders(), 1, "the next start finds the SSD free");
    });
}

#[test]
fn a_stop_ends_in_bounded_time_with_an_error_when_a_write_does_not_end() {
    in_virtual_time(|handle| async move {
        let mut stand = Stand::new(handle).await;
        let cache = with_records_under_way(&mut stand).await;
        let asked_ns = stand.handle.now();
        assert_eq!(cache.stop().await, Err(IoError::Gone));
        let took_ns = stand.handle.now() - asked_ns;
        let deadline_ns = Settings::default().deadline_ns;
        assert!(took_ns < 10 * SECOND_NS + 2 * deadline_ns, "{took_ns} ns");
    });
}

#[test]
fn an_origin_that_changes_after_a_stop_beside_a_map_that_loads_is_found_out() {
    in_virtual_time(|handle| async move {
        const LINES: u64 = 50_000;
        const CHANGED: u64 = 10;
        let mut stand = Stand::new(handle).await;
        stand.fill(LINES - 4096, 4096).await;
        for has_changed in [false, true] {
            let cache = stand.open(Mode::WriteBack).await.expect("it opens");
            stand.ssd.map_read_ns.set(8 * SECOND_NS);
            stand.write(&cache, 7, 1).await;
            cache.stop().await.expect("a stop works");
            assert!(cache.status().lines.loading > 0);
            drop(cache);
            stand.ssd.map_read_ns.set(0);
            stand.ssd.map_reads.set(0);
            if has_changed {
                let (at, zeroes) = (Lba::from_bytes(CHANGED * LINE_BYTES), Buf::zeroed(512));
                stand.origin.write(at, zeroes.into(), Durability::Cached).await.unwrap();
            }
            let (cache, opened) = stand.open_and_tell(Mode::WriteBack).await.expect("it opens");
            assert_eq!((opened.clean, opened.origin_changed), (false, has_changed));
            cache.loaded().await;
            stand.check(&cache, CHANGED + 1..LINES, "in the next life").await;
            cache.stop().await.expect("a stop works");
        }
    });
}
