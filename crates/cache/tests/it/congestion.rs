//! Clean hits that a resting origin serves because the SSD is congested.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, MIB, Payload, SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles, join_all};

const LINE: usize = 4096;
const LINES: u64 = 512;
const READERS: u64 = 256;

type Ssd = ModelDevice<MemoryDevice>;
type Tested = Cache<Ssd, Origin>;

/// A disk that may answer wrong, or not at all.
#[derive(Clone)]
struct Origin {
    drive: Rc<ModelDevice<MemoryDevice>>,
    handle: Handle,
    reads: Rc<Cell<u64>>,
    lies: Rc<Cell<bool>>,
    hangs: Rc<Cell<bool>>,
}

impl BlockDevice for Origin {
    fn limits(&self) -> &Limits {
        self.drive.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.reads.set(self.reads.get() + 1);
        if self.hangs.get() {
            self.handle.sleep(3_600_000_000_000).await;
        }
        let mut read = self.drive.read(at, into).await?;
        if self.lies.get() {
            read[17] ^= 1;
        }
        Ok(read)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.drive.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.drive.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.drive.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.drive.write_zeroes(range, durability).await
    }
}

impl InMemory for Origin {}

/// A test of a cache in write-back whose first lines hold their number, none of them on the origin.
fn with_cache<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Handle, Tested, Origin) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let drive = |name| {
            let profile = Profile::find(name).expect("a profile");
            ModelDevice::new(handle.clone(), profile, MemoryDevice::new(64 * MIB))
        };
        let origin = Origin {
            drive: Rc::new(drive("hdd-7200")),
            handle: handle.clone(),
            reads: Rc::default(),
            lies: Rc::default(),
            hangs: Rc::default(),
        };
        let ssd = drive("ssd-sata");
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
        Cache::format(&ssd, &origin, &format).await.expect("the SSD takes a cache");
        let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
        let options = OpenOptions::with(settings);
        let opened = Cache::open(&handle, ssd, origin.clone(), options).await;
        let cache = opened.expect("the cache opens").0;
        for line in 0..LINES {
            let mut data = Buf::new(LINE);
            data.fill(line as u8);
            let at = Lba::from_bytes(line * LINE as u64);
            cache.write(at, data.into(), Durability::Cached).await.expect("a write works");
        }
        test(handle, cache, origin).await;
    });
}

/// Everything is on the origin; its reads are counted from here on.
async fn destage(cache: &Tested, origin: &Origin) {
    cache.drain().await.expect("the origin takes them");
    origin.reads.set(0);
}

/// Reads the lines from all over the place, more at once than the SSD can take, and checks them. Returns
/// how many were read from the origin.
async fn read_all_over(handle: &Handle, cache: &Tested) -> u64 {
    let before = cache.status();
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let cache = cache.clone();
            handle.spawn(async move {
                for turn in 0..40 {
                    let line = (reader * 31 + turn * 197) % LINES;
                    let at = Lba::from_bytes(line * LINE as u64);
                    let read = cache.read(at, Buf::new(LINE)).await.expect("a read works");
                    assert!(read.iter().all(|byte| *byte == line as u8));
                }
            })
        })
        .collect();
    join_all(readers).await;
    let after = cache.status();
    assert_eq!(after.reads.hits - before.reads.hits, READERS * 40, "all of them are hits");
    after.counts.congested_reads - before.counts.congested_reads
}

#[test]
fn clean_hits_are_read_from_a_resting_origin_while_the_ssd_is_congested() {
    with_cache(|handle, cache, origin| async move {
        assert_eq!(read_all_over(&handle, &cache).await, 0, "the origin has none of them");
        destage(&cache, &origin).await;
        let from_origin = read_all_over(&handle, &cache).await;
        assert!(from_origin > 5, "{from_origin}");
        assert_eq!(origin.reads.get(), from_origin);
        cache.configure(Settings { congested_us: 0, ..cache.settings() }).expect("off is a choice");
        assert_eq!(
            read_all_over(&handle, &cache).await,
            0,
            "nothing is congested if nothing counts so"
        );
    });
}

#[test]
fn one_reader_at_a_time_never_finds_the_ssd_congested() {
    with_cache(|_, cache, origin| async move {
        destage(&cache, &origin).await;
        for line in 0..LINES {
            let at = Lba::from_bytes(line * LINE as u64);
            cache.read(at, Buf::new(LINE)).await.expect("a read works");
        }
        assert_eq!((origin.reads.get(), cache.status().counts.congested_reads), (0, 0));
    });
}

#[test]
fn an_origin_that_has_something_else_is_left_alone() {
    with_cache(|handle, cache, origin| async move {
        destage(&cache, &origin).await;
        origin.lies.set(true);
        assert_eq!(read_all_over(&handle, &cache).await, 0, "no wrong line is served");
        assert_eq!(origin.reads.get(), 1);
    });
}

#[test]
fn hits_do_not_hang_with_the_origin() {
    with_cache(|handle, cache, origin| async move {
        destage(&cache, &origin).await;
        origin.hangs.set(true);
        let begun = handle.now();
        assert_eq!(read_all_over(&handle, &cache).await, 0);
        assert!(handle.now() - begun < 1_000_000_000);
        assert_eq!(origin.reads.get(), 1);
    });
}
