//! `cargo xtask bench start`: how long a full cache takes to come back after an unclean stop. One
//! JSON line a case.
//!
//! The cache is real, and so is the file it comes back from. Only during the fill are lines of zeroes
//! left out of the file. The file's holes read as zeroes too, so nothing is different but the file's
//! space, about 5 GiB for 256 GiB of cache. `BENCH_START_GIB` (256) is the size of the SSD; the files
//! are in `TMPDIR`, which should be on a real disk.

use std::path::{Path, PathBuf};

use voltier_bench::{emit_digits, new_cache, write_back};
use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, Payload, SECTOR_BYTES,
    SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, LineSize};
use voltier_drive::{FileDevice, FileOptions, MemoryDevice};
use voltier_ring::{Executor, Handle};

const ORIGIN_BYTES: u64 = 1 << 40;
const MIB: u64 = 1 << 20;
/// Dirty lines at the stop: 1 GiB, below the threshold at which they are written back.
const DIRTY_BYTES: u64 = 1 << 30;
/// The bytes that are read before the log is waited for.
const BATCH_BYTES: u64 = 4 * MIB;
const UNIT_BYTES: usize = 4096;
/// Reads and writes after which it counts as serving.
const SERVED: u64 = 64;

/// A new file that is not given the units of zeroes which the log writes.
struct Sparse {
    file: FileDevice,
    /// Superblocks and checkpoints, which are written more than once, end before this.
    log_from: Lba,
}

impl Sparse {
    async fn write_run(&self, at: Lba, run: &mut Vec<voltier_block::Bytes>) -> IoResult<()> {
        if run.is_empty() {
            return Ok(());
        }
        let pieces = std::mem::take(run);
        self.file.write(at, Payload::Many(pieces), Durability::Cached).await
    }
}

impl BlockDevice for Sparse {
    fn limits(&self) -> &Limits {
        self.file.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.file.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        if at < self.log_from {
            return self.file.write(at, data, durability).await;
        }
        let (mut next, mut run_at, mut run) = (at, at, Vec::new());
        for piece in data.pieces() {
            for start in (0..piece.len()).step_by(UNIT_BYTES) {
                let unit = piece.slice(start..(start + UNIT_BYTES).min(piece.len()));
                let sectors = unit.len() as u64 / SECTOR_BYTES;
                // Cached lines are zeroes here; everything else begins with a record's magic number.
                if unit[..16] == [0; 16] {
                    self.write_run(run_at, &mut run).await?;
                } else {
                    if run.is_empty() {
                        run_at = next;
                    }
                    run.push(unit);
                }
                next = Lba(next.0 + sectors);
            }
        }
        self.write_run(run_at, &mut run).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.file.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.file.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.file.write_zeroes(range, durability).await
    }
}

impl InMemory for Sparse {}

/// The two files; they go with it.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn new(ssd_bytes: u64) -> std::io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("voltier-start-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let files = Self { folder };
        std::fs::File::create(files.ssd())?.set_len(ssd_bytes)?;
        std::fs::File::create(files.origin())?.set_len(ORIGIN_BYTES)?;
        Ok(files)
    }

    fn ssd(&self) -> PathBuf {
        self.folder.join("ssd")
    }

    fn origin(&self) -> PathBuf {
        self.folder.join("origin")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Files that cannot be removed are in the temporary folder, under a name that says whose they
        // are.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn file(handle: &Handle, path: &Path, buffered: bool) -> FileDevice {
    let options = FileOptions { buffered, block_bytes: Some(4096), ..FileOptions::default() };
    FileDevice::open(handle, path, &options).expect("a file of our own opens")
}

/// Fills a new cache on the file, makes some lines dirty, and stops without order. Returns how many
/// lines are cached then, and how many of them are dirty.
async fn fill_and_kill(handle: &Handle, path: &Path, ssd_bytes: u64) -> (u64, u64) {
    let ssd = Sparse {
        file: file(handle, path, true),
        log_from: Lba::from_bytes((ssd_bytes / 128).next_multiple_of(MIB)),
    };
    let origin = MemoryDevice::with_block_bytes(ORIGIN_BYTES, 4096);
    let cache = new_cache(handle, ssd, origin, LineSize::DEFAULT, PolicyKind::Lru).await;
    // All but the last of it: nothing is evicted, so every line that is asked for stays.
    let lines = cache.status().lines.total - (BATCH_BYTES + DIRTY_BYTES) / 4096;
    let mut at = 0;
    while at / 4096 < lines {
        let end = at + BATCH_BYTES;
        while at < end {
            let into = Buf::new(MIB as usize);
            drop(cache.read(Lba::from_bytes(at), into).await.expect("a read works"));
            at += MIB;
        }
        // Fills do not wait for the log, and are given up when it falls behind.
        while cache.status().lines.used < at / 4096 {
            handle.sleep(20_000).await;
        }
    }
    let data = Buf::zeroed(MIB as usize).freeze();
    for at in (ORIGIN_BYTES - DIRTY_BYTES..ORIGIN_BYTES).step_by(MIB as usize) {
        let write = cache.write(Lba::from_bytes(at), data.clone().into(), Durability::Cached);
        write.await.expect("a write works");
    }
    cache.flush().await.expect("a flush works");
    let status = cache.status();
    cache.kill();
    (status.lines.used, status.lines.dirty)
}

fn main() {
    let gib = std::env::var("BENCH_START_GIB").ok().and_then(|text| text.parse().ok());
    let gib: u64 = gib.unwrap_or(256);
    let ssd_bytes = gib << 30;
    let files = Files::new(ssd_bytes).expect("the temporary folder takes two sparse files");
    let path = files.ssd();
    let mut executor = Executor::real().expect("io_uring is available");
    let handle = executor.handle();
    let (used, dirty) =
        executor.block_on(async move { fill_and_kill(&handle, &path, ssd_bytes).await });
    drop(executor);
    eprintln!("stopped without order with {used} lines cached, {dirty} of them dirty");
    let (ssd_path, origin_path) = (files.ssd(), files.origin());
    let mut executor = Executor::real().expect("io_uring is available");
    let handle = executor.handle();
    let (serving, loaded) = executor.block_on(async move {
        let begun = handle.now();
        let seconds = || (handle.now() - begun) as f64 / 1e9;
        // Past the page cache: all that is read is read from the disk.
        let (ssd, origin) = (file(&handle, &ssd_path, false), file(&handle, &origin_path, false));
        let opened = Cache::open(&handle, ssd, origin, write_back()).await;
        let (cache, opened) = opened.expect("the cache opens");
        assert_eq!(cache.status().lines.dirty, dirty, "dirty lines are exact");
        serve(&cache).await;
        let serving = seconds();
        cache.loaded().await;
        let loaded = seconds();
        eprintln!("{} records were replayed", opened.records);
        // Each line read or written meanwhile may have pushed two out, no more.
        let back = cache.status().lines.used;
        assert!(back + 4 * SERVED >= used, "{back} lines of {used} are back");
        cache.kill();
        (serving, loaded)
    });
    for (what, seconds, limit) in [("serving", serving, 2.0), ("fully loaded", loaded, 10.0)] {
        let case = format!("start after an unclean stop, full {gib} GiB cache: {what}");
        emit_digits(3, &case, "s", seconds, "limit", limit);
    }
}

/// Reads and writes all over the volume: lines that are dirty, that are clean, that are not cached.
async fn serve(cache: &Cache<FileDevice, FileDevice>) {
    for number in 0..SERVED {
        let at = Lba::from_bytes(number * (ORIGIN_BYTES / 2 / SERVED));
        let read = cache.read(at, Buf::new(UNIT_BYTES)).await;
        drop(read.expect("a read works"));
        let data = Buf::zeroed(UNIT_BYTES).into();
        cache.write(at, data, Durability::Cached).await.expect("a write works");
        let dirty = Lba::from_bytes(ORIGIN_BYTES - DIRTY_BYTES + number * 4096);
        drop(cache.read(dirty, Buf::new(UNIT_BYTES)).await.expect("a read works"));
    }
}
