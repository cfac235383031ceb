//! The cases of `cargo xtask bench worst`: one JSON line a case. Each is a cache beside the plain disk, on
//! modelled drives and in virtual time: an answer takes seconds, and is the same each time.
//!
//! A case is a pattern, a direction, a mode, how much is cached, an offset, a size and a depth. An argument
//! limits the cases to those whose name has it.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use voltier_bench::emit;
use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, Lba, MIB, Nanos, Prng, SECTOR_BYTES,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const DISK: &str = "hdd-7200";
const SSD: &str = "ssd-sata";
const DISK_BYTES: u64 = 256 * MIB;
const SSD_BYTES: u64 = 192 * MIB;
/// What the requests of a case cover, at most.
const REGION_BYTES: u64 = 24 * MIB;
/// Requests of a case, at most: a random one costs the disk a seek.
const SEQUENTIAL_REQUESTS: u64 = 3000;
const RANDOM_REQUESTS: u64 = 400;
/// Lines of this size are cached before a case begins.
const LINE_BYTES: u64 = 4096;
/// The reads that make a region warm.
const WARM_BYTES: u64 = 128 << 10;
/// Until what came before has come to rest, but the cleaner: it begins when clients are idle for longer.
const REST_NS: Nanos = 500_000_000;

/// What of a case's region is cached.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Cold,
    Clean(u64),
    Dirty(u64),
}

#[derive(Clone, Copy)]
struct Case {
    is_random: bool,
    is_write: bool,
    mode: Mode,
    state: State,
    offset: u64,
    bytes: u64,
    depth: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = if self.is_random { "random" } else { "sequential" };
        let direction = if self.is_write { "write" } else { "read" };
        write!(out, "{pattern} {direction} {} ", self.mode)?;
        match self.state {
            State::Cold => write!(out, "cold")?,
            State::Clean(100) => write!(out, "warm")?,
            State::Clean(percent) => write!(out, "{percent}% clean")?,
            State::Dirty(percent) => write!(out, "{percent}% dirty")?,
        }
        write!(out, ", size {}, offset {}, depth {}", self.bytes, self.offset, self.depth)
    }
}

impl Case {
    fn requests(&self) -> u64 {
        let most = if self.is_random { RANDOM_REQUESTS } else { SEQUENTIAL_REQUESTS };
        most.min(REGION_BYTES / self.bytes)
    }

    /// Where the requests begin, in order.
    fn starts(&self) -> Vec<u64> {
        let mut prng = Prng::new(self.bytes + self.depth);
        let places = REGION_BYTES / self.bytes;
        let place = |index| if self.is_random { prng.below(places) } else { index };
        (0..self.requests()).map(place).map(|place| self.offset + place * self.bytes).collect()
    }

    /// Bytes of the region that is cached in part.
    fn region_bytes(&self) -> u64 {
        let covered = if self.is_random { REGION_BYTES } else { self.requests() * self.bytes };
        (self.offset + covered).next_multiple_of(LINE_BYTES)
    }

    /// The requests as a queue of this depth sends them, and a flush behind writes: bytes a second.
    async fn rate<D: BlockDevice + Clone + 'static>(&self, handle: &Handle, device: D) -> f64 {
        self.send(handle, device, self.starts(), self.is_write).await
    }

    /// So many requests one behind the other.
    async fn stream<D: BlockDevice + Clone + 'static>(
        &self,
        handle: &Handle,
        device: D,
        count: u64,
        flushes: bool,
    ) -> f64 {
        self.send(handle, device, (0..count).map(|at| at * self.bytes).collect(), flushes).await
    }

    async fn send<D: BlockDevice + Clone + 'static>(
        &self,
        handle: &Handle,
        device: D,
        starts: Vec<u64>,
        flushes: bool,
    ) -> f64 {
        let begun = handle.now();
        let count = starts.len() as u64;
        let (starts, next) = (Rc::new(starts), Rc::new(Cell::new(0)));
        let tasks: Vec<_> = (0..self.depth)
            .map(|_| {
                let (device, case, starts, next) =
                    (device.clone(), *self, starts.clone(), next.clone());
                handle.spawn(async move {
                    while let Some(start) = starts.get(next.replace(next.get() + 1)) {
                        case.request(&device, *start).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        if flushes {
            device.flush().await.expect("a flush works");
        }
        (count * self.bytes) as f64 * 1e9 / (handle.now() - begun) as f64
    }

    async fn request<D: BlockDevice>(&self, device: &D, start: u64) {
        let (at, buf) = (Lba(start / SECTOR_BYTES), Buf::zeroed(self.bytes as usize));
        if self.is_write {
            device.write(at, buf.into(), Durability::Cached).await.expect("a write works");
        } else {
            drop(device.read(at, buf).await.expect("a read works"));
        }
    }

    /// Has the cache hold what the case says.
    async fn prepare<S: DriveControl, O: DriveControl>(
        &self,
        handle: &Handle,
        cache: &Cache<S, O>,
    ) {
        let (percent, is_dirty) = match self.state {
            State::Cold => (0, false),
            State::Clean(percent) => (percent, false),
            State::Dirty(percent) => (percent, true),
        };
        let mut prng = Prng::new(7);
        // What is cached in part came line by line, in the order of a shuffle; what is cached whole came in order.
        let piece_bytes = if percent < 100 { LINE_BYTES } else { WARM_BYTES };
        let pieces = self.region_bytes().div_ceil(piece_bytes);
        let mut pieces: Vec<u64> = (0..pieces).filter(|_| prng.below(100) < percent).collect();
        if percent < 100 {
            for index in (1..pieces.len()).rev() {
                pieces.swap(index, prng.below(index as u64 + 1) as usize);
            }
        }
        for piece in pieces {
            let at = Lba(piece * piece_bytes / SECTOR_BYTES);
            let buf = Buf::zeroed(piece_bytes as usize);
            if is_dirty {
                let written = cache.write(at, buf.into(), Durability::Cached).await;
                written.expect("a write works");
            } else {
                drop(cache.read(at, buf).await.expect("a read works"));
            }
        }
        if !is_dirty {
            handle.sleep(30 * REST_NS).await;
        }
    }

    /// The head of a disk is elsewhere at the beginning, or the first request of one run would wait for a
    /// revolution and that of another would not.
    async fn move_away<D: BlockDevice>(handle: &Handle, disk: &D) {
        let away = Lba(DISK_BYTES / SECTOR_BYTES - 8);
        drop(disk.read(away, Buf::new(4096)).await.expect("a read works"));
        handle.sleep(REST_NS).await;
    }

    fn drive(&self, handle: &Handle, profile: &str, bytes: u64) -> ModelDevice<MemoryDevice> {
        let profile = Profile::find(profile).expect("a profile");
        ModelDevice::new(handle.clone(), profile, MemoryDevice::new(bytes))
    }

    /// A new cache over drives.
    async fn cache<S: DriveControl, O: DriveControl>(
        &self,
        handle: &Handle,
        ssd: S,
        disk: O,
    ) -> Cache<S, O> {
        let line_size = LineSize::new(LINE_BYTES).expect("a line size");
        let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [3; 16] };
        Cache::format(&ssd, &disk, &format).await.expect("the SSD takes a cache");
        let options = OpenOptions::with(Settings { mode: self.mode, ..Settings::default() });
        Cache::open(handle, ssd, disk, options).await.expect("the cache opens").0
    }

    fn measure(self) {
        let rate_of = |profile, bytes| {
            let mut executor = Executor::in_virtual_time(NoFiles);
            let handle = executor.handle();
            executor.block_on(async move {
                let bare = self.drive(&handle, profile, bytes);
                if bytes == DISK_BYTES {
                    Self::move_away(&handle, &bare).await;
                }
                self.rate(&handle, Rc::new(bare)).await
            })
        };
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let ours = executor.block_on(async move {
            let ssd = self.drive(&handle, SSD, SSD_BYTES);
            let disk = self.drive(&handle, DISK, DISK_BYTES);
            let cache = self.cache(&handle, ssd, disk).await;
            self.prepare(&handle, &cache).await;
            Self::move_away(&handle, cache.origin()).await;
            self.rate(&handle, cache).await
        });
        // What is on the SSD is served by it alone.
        let is_ssd = match (self.is_write, self.state) {
            (true, _) => self.mode.writes_back(),
            (false, state) => state == State::Clean(100),
        };
        let disk = rate_of(DISK, DISK_BYTES) / 1e6;
        let case = self.to_string();
        emit(&case, "MB/s", ours / 1e6, "the plain disk", disk);
        if is_ssd {
            emit(&case, "MB/s", ours / 1e6, "the bare SSD", rate_of(SSD, SSD_BYTES) / 1e6);
        }
    }
}

/// All cases.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let states = [
        State::Cold,
        State::Clean(5),
        State::Clean(50),
        State::Clean(100),
        State::Dirty(5),
        State::Dirty(50),
    ];
    for is_random in [false, true] {
        for is_write in [false, true] {
            for mode in [Mode::WriteThrough, Mode::WriteBack, Mode::ReadOnly] {
                for state in states {
                    if matches!(state, State::Dirty(_)) && !mode.writes_back() {
                        continue;
                    }
                    // Reads do not depend on how writes go.
                    let is_same = !is_write && mode == Mode::ReadOnly
                        || !is_write
                            && mode == Mode::WriteBack
                            && !matches!(state, State::Dirty(_));
                    if is_same {
                        continue;
                    }
                    for offset in [0, 512, 32256] {
                        for bytes in [512, 4096, 16384, 65536, 131_072, 1_048_576] {
                            for depth in [1, 8, 32] {
                                cases.push(Case {
                                    is_random,
                                    is_write,
                                    mode,
                                    state,
                                    offset,
                                    bytes,
                                    depth,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    cases
}

/// A stream of writes four times as long as the SSD: bytes a second until the last one is answered, and for the
/// plain disk until it is on the medium.
fn measure_fill(mode: Mode, bytes: u64, depth: u64) {
    const FILL_SSD_BYTES: u64 = 64 * MIB;
    let case = Case {
        is_random: false,
        is_write: true,
        mode,
        state: State::Cold,
        offset: 0,
        bytes,
        depth,
    };
    let count = 4 * FILL_SSD_BYTES / bytes;
    let run = |is_cached: bool| {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let disk = case.drive(&handle, DISK, 2 * DISK_BYTES);
            Case::move_away(&handle, &disk).await;
            if !is_cached {
                return case.stream(&handle, Rc::new(disk), count, true).await;
            }
            let ssd = case.drive(&handle, SSD, FILL_SSD_BYTES);
            let cache = case.cache(&handle, ssd, disk).await;
            case.stream(&handle, cache, count, false).await
        })
    };
    let name = format!("fill {mode} of four times the SSD, size {bytes}, depth {depth}");
    emit(&name, "MB/s", run(true) / 1e6, "the plain disk", run(false) / 1e6);
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let cases = cases().into_iter().filter(|case| case.to_string().contains(&wanted));
    cases.for_each(Case::measure);
    if "fill".contains(&wanted) {
        for mode in [Mode::WriteThrough, Mode::WriteBack] {
            for (bytes, depth) in [(4096, 32), (131_072, 1), (131_072, 8), (1_048_576, 8)] {
                measure_fill(mode, bytes, depth);
            }
        }
    }
}
