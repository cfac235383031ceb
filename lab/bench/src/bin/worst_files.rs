//! The cases of `cargo xtask bench worst-files`: a cache beside the plain disk, both files, through the ring and by
//! the clock. One JSON line a pair, so a case has as many lines as rounds: a run of the plain disk, and then one of
//! a new cache in front of the same file.
//!
//! Two kinds of pairs are told apart:
//!
//! - `alike`: both files are on the same storage, so a cache has nothing to give, and all that it does costs.
//! - `slow`: the disk's file answers when a disk of 7,200 revolutions a minute would.
//!
//! `BENCH_FOLDER` (/dev/shm, or else the temporary folder) is where the files are: 448 MiB, written from end to
//! end before, past the page cache where the file system takes that. `BENCH_ROUNDS` (3) is how often each pair is
//! measured. `BENCH_ALL` has all offsets, sizes and depths of `worst` measured. An argument limits the cases to
//! those whose name has it.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use voltier_bench::emit_digits;
use voltier_bench::worst::{Case, Selection, State};
use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Limits, MIB, Nanos, Payload,
    SECTOR_BYTES, SectorRange,
};
use voltier_cache::Cache;
use voltier_drive::model::Profile;
use voltier_drive::{FileDevice, FileOptions, ModelDevice};
use voltier_ring::{Executor, Handle};

const SLOW_DISK: &str = "hdd-7200";
const DISK_BYTES: u64 = 256 * MIB;
const SSD_BYTES: u64 = 192 * MIB;
const OFFSETS: [u64; 3] = [0, 512, 32256];
const SIZES: [u64; 6] = [512, 4096, 16384, 65536, 131_072, 1_048_576];
const DEPTHS: [u64; 3] = [1, 8, 32];
/// Fast files: runs of 10 to 100 ms.
const ALIKE: Selection<'static> = Selection {
    offsets: &[0, 32256],
    sizes: &[512, 4096, 16384, 131_072, 1_048_576],
    depths: &[1, 8, 32],
    random_max: 6000,
    sequential_max: 6000,
    region_max: 48 * MIB,
};
/// A random request of one disk waits for 8 ms on the mean.
const SLOW: Selection<'static> = Selection {
    offsets: &[0, 32256],
    sizes: &[512, 4096, 131_072],
    depths: &[1, 32],
    random_max: 32,
    sequential_max: 1000,
    region_max: 24 * MIB,
};
/// Lines that are cached before a case begins come at so many at a time, and the log gets so much ahead.
const PREPARE_DEPTH: usize = 8;
const PREPARE_BYTES: u64 = 4 * MIB;
/// Until a cache that was just used, or has just ended, has nothing under way.
const REST_NS: Nanos = 1_000_000;
const RESTS_MAX: u32 = 5000;

/// The disk's file, which may be as slow as a disk.
struct Disk {
    file: Rc<FileDevice>,
    modelled: Option<ModelDevice<Rc<FileDevice>>>,
    /// Not while lines are cached before a case.
    is_slow: Cell<bool>,
}

impl Disk {
    fn new(handle: &Handle, file: Rc<FileDevice>, slow: bool) -> Self {
        let profile = Profile::find(SLOW_DISK).expect("a profile");
        let modelled = slow.then(|| ModelDevice::new(handle.clone(), profile, file.clone()));
        Self { file, modelled, is_slow: Cell::new(false) }
    }

    fn slow(&self) -> Option<&ModelDevice<Rc<FileDevice>>> {
        self.modelled.as_ref().filter(|_| self.is_slow.get())
    }
}

impl BlockDevice for Disk {
    fn limits(&self) -> &Limits {
        self.modelled.as_ref().map_or(self.file.limits(), |modelled| modelled.limits())
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        match self.slow() {
            Some(slow) => slow.read(at, into).await,
            None => self.file.read(at, into).await,
        }
    }

    async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        match self.slow() {
            Some(slow) => slow.read_vectored(at, into).await,
            None => self.file.read_vectored(at, into).await,
        }
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        match self.slow() {
            Some(slow) => slow.write(at, data, durability).await,
            None => self.file.write(at, data, durability).await,
        }
    }

    async fn flush(&self) -> IoResult<()> {
        match self.slow() {
            Some(slow) => slow.flush().await,
            None => self.file.flush().await,
        }
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.file.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.file.write_zeroes(range, durability).await
    }
}

impl DriveControl for Disk {
    fn under_way(&self) -> voltier_block::UnderWay {
        self.file.under_way()
    }

    fn abandon(&self) {
        self.file.abandon();
    }

    fn forget_failed_flush(&self) {
        self.file.forget_failed_flush();
    }

    fn patience_ns(&self) -> Nanos {
        self.file.patience_ns()
    }
}

/// The two files; they go with it.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn new() -> std::io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = match std::env::var_os("BENCH_FOLDER") {
            Some(folder) => PathBuf::from(folder),
            None if memory.is_dir() => memory.to_owned(),
            None => std::env::temp_dir(),
        };
        let folder = parent.join(format!("voltier-worst-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        Ok(Self { folder })
    }

    /// A file that has all of its space.
    async fn file(&self, handle: &Handle, name: &str, bytes: u64) -> Rc<FileDevice> {
        let path = self.folder.join(name);
        let created = std::fs::File::create(&path).and_then(|file| file.set_len(bytes));
        created.expect("BENCH_FOLDER takes files");
        let device = FileDevice::open(handle, &path, &FileOptions::default());
        let device = device.expect("a file of our own opens");
        if device.facts().is_some_and(|facts| !facts.direct_io) {
            eprintln!("{}: no direct I/O here, so the page cache is measured", path.display());
        }
        let zeroes = Buf::zeroed(MIB as usize).freeze();
        for start in (0..bytes).step_by(MIB as usize) {
            let written =
                device.write(Lba::from_bytes(start), zeroes.clone().into(), Durability::Cached);
            written.await.expect("BENCH_FOLDER has room for the files");
        }
        device.flush().await.expect("a flush works");
        Rc::new(device)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Files that cannot be removed are under a name that says whose they are.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What is measured on.
struct Bench {
    handle: Handle,
    disk: Rc<FileDevice>,
    ssd: Rc<FileDevice>,
    rounds: u32,
    caches: Cell<u128>,
}

impl Bench {
    async fn measure(&self, kind: &str, case: &Case) {
        for _ in 0..self.rounds {
            let plain = self.plain(kind, case).await;
            let cached = self.cached(kind, case).await;
            emit_digits(
                3,
                &format!("{kind} {case}"),
                "MB/s",
                cached / 1e6,
                "the plain disk",
                plain / 1e6,
            );
        }
    }

    fn new_disk(&self, kind: &str) -> Disk {
        Disk::new(&self.handle, self.disk.clone(), kind == "slow")
    }

    async fn plain(&self, kind: &str, case: &Case) -> f64 {
        let disk = self.new_disk(kind);
        Self::begin(&disk).await;
        case.rate(&self.handle, Rc::new(disk)).await
    }

    async fn cached(&self, kind: &str, case: &Case) -> f64 {
        self.caches.set(self.caches.get() + 1);
        let (ssd, disk) = (self.ssd.clone(), self.new_disk(kind));
        let cache = case.cache(&self.handle, ssd, disk, self.caches.get()).await;
        self.prepare(case, &cache).await;
        Self::begin(cache.origin()).await;
        let rate = case.rate(&self.handle, cache.clone()).await;
        cache.kill();
        drop(cache);
        self.rest("the cache ends", || Rc::strong_count(&self.ssd) == 1).await;
        rate
    }

    /// The head of a disk is elsewhere at the beginning.
    async fn begin(disk: &Disk) {
        disk.is_slow.set(true);
        if disk.modelled.is_some() {
            let away = Lba(DISK_BYTES / SECTOR_BYTES - 8);
            drop(disk.read(away, Buf::new(4096)).await.expect("a read works"));
        }
    }

    /// Has the cache hold what the case says.
    async fn prepare(&self, case: &Case, cache: &Cache<Rc<FileDevice>, Disk>) {
        let (_, is_dirty) = case.state.share();
        let (starts, bytes) = case.pieces();
        for (round, starts) in starts.chunks((PREPARE_BYTES / bytes) as usize).enumerate() {
            let chunks = starts.chunks(starts.len().div_ceil(PREPARE_DEPTH));
            let tasks: Vec<_> = chunks
                .map(|starts| {
                    let (cache, starts) = (cache.clone(), starts.to_vec());
                    self.handle.spawn(async move {
                        for start in starts {
                            let (at, buf) = (Lba::from_bytes(start), Buf::zeroed(bytes as usize));
                            if is_dirty {
                                let written = cache.write(at, buf.into(), Durability::Cached);
                                written.await.expect("a write works");
                            } else {
                                drop(cache.read(at, buf).await.expect("a read works"));
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            // Fills do not wait for the log, and are given up when it falls behind.
            let wanted = round as u64 * PREPARE_BYTES + starts.len() as u64 * bytes;
            let has_all = || cache.status().lines.used * 4096 >= wanted;
            self.rest("the cache holds what it was given", has_all).await;
        }
        if case.state != State::Cold {
            self.handle.sleep(REST_NS).await;
        }
    }

    async fn rest(&self, until: &str, is_so: impl Fn() -> bool) {
        let mut rests = 0;
        while !is_so() {
            assert!(rests < RESTS_MAX, "waited too long until {until}");
            self.handle.sleep(REST_NS).await;
            rests += 1;
        }
    }
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let rounds = std::env::var("BENCH_ROUNDS").ok().and_then(|text| text.parse().ok());
    let is_all = std::env::var_os("BENCH_ALL").is_some();
    let mut executor = Executor::real().expect("io_uring is available");
    let handle = executor.handle();
    let files = Files::new().expect("BENCH_FOLDER takes a folder");
    executor.block_on(async move {
        let disk = files.file(&handle, "disk", DISK_BYTES).await;
        let ssd = files.file(&handle, "ssd", SSD_BYTES).await;
        let bench = Bench { handle, disk, ssd, rounds: rounds.unwrap_or(3), caches: Cell::new(0) };
        for (kind, selection) in [("alike", ALIKE), ("slow", SLOW)] {
            let selection = match is_all {
                true => {
                    Selection { offsets: &OFFSETS, sizes: &SIZES, depths: &DEPTHS, ..selection }
                }
                false => selection,
            };
            for case in selection.cases() {
                if format!("{kind} {case}").contains(&wanted) {
                    bench.measure(kind, &case).await;
                }
            }
        }
    });
}
