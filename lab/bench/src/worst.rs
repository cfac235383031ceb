//! The cases of `cargo xtask bench worst`: requests of every kind that a cache and the plain disk are sent, on modelled
//! drives (`worst`) and on files (`worst_files`).

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, DriveControl, Durability, Lba, Prng, SECTOR_BYTES};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_ring::Handle;

/// Lines of this size are cached before a case begins.
const LINE_BYTES: u64 = 4096;
/// The reads that make a region warm.
const WARM_BYTES: u64 = 128 << 10;

/// What of a case's region is cached, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// Nothing.
    Cold,
    /// Lines that the disk has, too.
    Clean(u64),
    /// Lines that the disk does not have yet.
    Dirty(u64),
}

impl State {
    /// How much is cached, in percent, and whether it is dirty.
    pub const fn share(self) -> (u64, bool) {
        match self {
            State::Cold => (0, false),
            State::Clean(percent) => (percent, false),
            State::Dirty(percent) => (percent, true),
        }
    }
}

/// The requests and the cache of one case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// All over the region, or one behind the other.
    pub is_random: bool,
    /// Writes, or reads.
    pub is_write: bool,
    /// The mode of the cache.
    pub mode: Mode,
    /// What is cached.
    pub state: State,
    /// Where the region begins, in bytes.
    pub offset: u64,
    /// Bytes of a request.
    pub bytes: u64,
    /// Requests at a time.
    pub depth: u64,
    /// Requests at most, of those for which the region has room.
    pub requests_max: u64,
    /// What the requests cover, at most, in bytes.
    pub region_max: u64,
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
    /// How many requests there are.
    pub fn requests(&self) -> u64 {
        self.requests_max.min(self.region_max / self.bytes)
    }

    /// Where the requests begin, in order.
    pub fn starts(&self) -> Vec<u64> {
        let mut prng = Prng::new(self.bytes + self.depth);
        let places = self.region_max / self.bytes;
        let place = |index| if self.is_random { prng.below(places) } else { index };
        (0..self.requests()).map(place).map(|place| self.offset + place * self.bytes).collect()
    }

    /// Bytes of the region that is cached in part.
    pub fn region_bytes(&self) -> u64 {
        let covered = if self.is_random { self.region_max } else { self.requests() * self.bytes };
        (self.offset + covered).next_multiple_of(LINE_BYTES)
    }

    /// What is cached before the case begins: where the requests begin that bring it, in their order, and how many
    /// bytes they have. What is cached in part comes line by line, in the order of a shuffle; what is cached whole
    /// comes in order.
    pub fn pieces(&self) -> (Vec<u64>, u64) {
        let (percent, _) = self.state.share();
        let mut prng = Prng::new(7);
        let bytes = if percent < 100 { LINE_BYTES } else { WARM_BYTES };
        let pieces = self.region_bytes().div_ceil(bytes);
        let mut pieces: Vec<u64> = (0..pieces).filter(|_| prng.below(100) < percent).collect();
        if percent < 100 {
            for index in (1..pieces.len()).rev() {
                pieces.swap(index, prng.below(index as u64 + 1) as usize);
            }
        }
        (pieces.into_iter().map(|piece| piece * bytes).collect(), bytes)
    }

    /// The requests as a queue of this depth sends them, and a flush behind writes: bytes a second.
    pub async fn rate<D: BlockDevice + Clone + 'static>(&self, handle: &Handle, device: D) -> f64 {
        self.send(handle, device, self.starts(), self.is_write).await
    }

    /// Requests of the case's size that begin at `starts`, and a flush behind them if wanted: bytes a second.
    pub async fn send<D: BlockDevice + Clone + 'static>(
        &self,
        handle: &Handle,
        device: D,
        starts: Vec<u64>,
        flushes: bool,
    ) -> f64 {
        let count = starts.len() as u64;
        let (starts, next) = (Rc::new(starts), Rc::new(Cell::new(0)));
        let content = Buf::zeroed(self.bytes as usize).freeze();
        // Memory that is new to the process is not a matter of the device.
        let bufs: Vec<_> = (0..self.depth).map(|_| Buf::zeroed(self.bytes as usize)).collect();
        let begun = handle.now();
        let tasks: Vec<_> = bufs
            .into_iter()
            .map(|mut buf| {
                let (device, case, starts, next) =
                    (device.clone(), *self, starts.clone(), next.clone());
                let content = content.clone();
                handle.spawn(async move {
                    while let Some(start) = starts.get(next.replace(next.get() + 1)) {
                        buf = case.request(&device, *start, &content, buf).await;
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

    async fn request<D: BlockDevice>(
        &self,
        device: &D,
        start: u64,
        content: &Bytes,
        into: Buf,
    ) -> Buf {
        let at = Lba(start / SECTOR_BYTES);
        if self.is_write {
            let written = device.write(at, content.clone().into(), Durability::Cached).await;
            written.expect("a write works");
            return into;
        }
        device.read(at, into).await.expect("a read works")
    }

    /// A new cache over drives. One on an SSD that had another before needs another number.
    pub async fn cache<S: DriveControl, O: DriveControl>(
        &self,
        handle: &Handle,
        ssd: S,
        disk: O,
        number: u128,
    ) -> Cache<S, O> {
        let line_size = LineSize::new(LINE_BYTES).expect("a line size");
        let format =
            FormatOptions { line_size, policy: PolicyKind::Lru, uuid: number.to_le_bytes() };
        Cache::format(&ssd, &disk, &format).await.expect("the SSD takes a cache");
        let options = OpenOptions::with(Settings { mode: self.mode, ..Settings::default() });
        Cache::open(handle, ssd, disk, options).await.expect("the cache opens").0
    }
}

/// A choice of cases: all patterns, modes and states, of these requests.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// Where regions begin, in bytes.
    pub offsets: &'a [u64],
    /// Bytes of a request.
    pub sizes: &'a [u64],
    /// Requests at a time.
    pub depths: &'a [u64],
    /// Random requests of a case, at most.
    pub random_max: u64,
    /// Sequential requests of a case, at most.
    pub sequential_max: u64,
    /// What the requests of a case cover, at most, in bytes.
    pub region_max: u64,
}

impl Selection<'_> {
    /// All cases.
    pub fn cases(&self) -> Vec<Case> {
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
                        let is_dirty = matches!(state, State::Dirty(_));
                        // Reads do not depend on how writes go.
                        let is_same = !is_write && mode != Mode::WriteThrough && !is_dirty;
                        if is_dirty && !mode.writes_back() || is_same {
                            continue;
                        }
                        self.add_requests(&mut cases, (is_random, is_write, mode, state));
                    }
                }
            }
        }
        cases
    }

    fn add_requests(&self, cases: &mut Vec<Case>, kind: (bool, bool, Mode, State)) {
        let (is_random, is_write, mode, state) = kind;
        let requests_max = if is_random { self.random_max } else { self.sequential_max };
        let region_max = self.region_max;
        for &offset in self.offsets {
            for &bytes in self.sizes {
                for &depth in self.depths {
                    cases.push(Case {
                        is_random,
                        is_write,
                        mode,
                        state,
                        offset,
                        bytes,
                        depth,
                        requests_max,
                        region_max,
                    });
                }
            }
        }
    }
}
