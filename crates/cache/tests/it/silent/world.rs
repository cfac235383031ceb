//! A cache over two drives that hang on demand, and requests whose ends can be looked at.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoResult, Lba, MIB, Nanos};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{
    Cache, FormatOptions, LineSize, Mode, OpenError, OpenOptions, Opened, Settings,
};
use voltier_drive::MemoryDevice;
use voltier_filter::{Delay, DelayDevice, Hang, HangDevice};
use voltier_ring::{Executor, Handle, JoinHandle, NoFiles};

pub(crate) const SECOND_NS: Nanos = 1_000_000_000;
/// The deadline of these caches, in seconds.
pub(crate) const DEADLINE_S: u64 = 8;
/// When a drive that hangs is silent at the latest: requests may begin just after a tick.
pub(crate) const SILENT_S: u64 = DEADLINE_S + DEADLINE_S / 2;
pub(crate) const LINE: u64 = 4096;
/// Time that a drive which answers takes for a request.
const REQUEST_NS: Nanos = 100_000;

pub(crate) type Drive = HangDevice<DelayDevice<MemoryDevice>>;
pub(crate) type Tested = Cache<Drive, Drive>;

/// Two drives, and how they hang.
pub(crate) struct World {
    pub(crate) handle: Handle,
    ssd: Drive,
    origin: Drive,
    pub(crate) ssd_hang: Hang,
    pub(crate) origin_hang: Hang,
}

/// A test over two new drives with an empty cache.
pub(crate) fn with_world<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(World) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd_hang, origin_hang) = (Hang::default(), Hang::default());
        let drive = |hang: &Hang| {
            let delay = Delay::new(REQUEST_NS, REQUEST_NS, REQUEST_NS);
            let delayed = DelayDevice::new(handle.clone(), MemoryDevice::new(32 * MIB), delay);
            HangDevice::new(handle.clone(), delayed, hang.clone())
        };
        let (ssd, origin) = (drive(&ssd_hang), drive(&origin_hang));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
        Tested::format(&ssd, &origin, &format).await.expect("the SSD takes a cache");
        test(World { handle: handle.clone(), ssd, origin, ssd_hang, origin_hang }).await;
    });
}

impl World {
    pub(crate) async fn try_open(&self, mode: Mode) -> Result<(Tested, Opened), OpenError> {
        let deadline_ns = DEADLINE_S * SECOND_NS;
        let settings = Settings { mode, deadline_ns, ..Settings::default() };
        let options = OpenOptions::with(settings);
        Cache::open(&self.handle, self.ssd.clone(), self.origin.clone(), options).await
    }

    pub(crate) async fn open(&self, mode: Mode) -> Tested {
        self.try_open(mode).await.expect("the cache opens").0
    }

    /// The cache with so many lines of 1, all of them clean and on the SSD.
    pub(crate) async fn clean(&self, mode: Mode, lines: u64) -> Tested {
        let cache = self.open(Mode::WriteBack).await;
        for line in 0..lines {
            write(&cache, line, 1).await.expect("a write works");
        }
        cache.drain().await.expect("the origin takes them");
        cache.configure(Settings { mode, ..cache.settings() }).expect("a mode switch works");
        cache
    }

    pub(crate) async fn seconds(&self, seconds: u64) {
        self.handle.sleep(seconds * SECOND_NS).await;
    }

    /// The byte of a line on the origin, which answers.
    pub(crate) async fn on_origin(&self, line: u64) -> u8 {
        let read = self.origin.read(Lba::from_bytes(line * LINE), Buf::new(LINE as usize)).await;
        read.expect("the origin works")[0]
    }

    /// Begins a request that may hang.
    pub(crate) fn ask<T: Copy + 'static>(
        &self,
        request: impl Future<Output = T> + 'static,
    ) -> Asked<T> {
        let end = Rc::new(Cell::new(None));
        let ended = end.clone();
        let task: JoinHandle<()> = self.handle.spawn(async move { ended.set(Some(request.await)) });
        drop(task);
        Asked(end)
    }

    pub(crate) fn reads(&self, cache: &Tested, line: u64, bytes: u64) -> Asked<IoResult<u8>> {
        let cache = cache.clone();
        self.ask(async move { read(&cache, line, bytes).await })
    }

    pub(crate) fn writes(&self, cache: &Tested, line: u64, byte: u8) -> Asked<IoResult<()>> {
        let cache = cache.clone();
        self.ask(async move { write(&cache, line, byte).await })
    }
}

/// The end of a request that may hang.
pub(crate) struct Asked<T>(Rc<Cell<Option<T>>>);

impl<T: Copy> Asked<T> {
    pub(crate) fn end(&self) -> Option<T> {
        self.0.get()
    }
}

/// Reads from the start of a line; the byte that all of it has.
pub(crate) async fn read(cache: &Tested, line: u64, bytes: u64) -> IoResult<u8> {
    let read = cache.read(Lba::from_bytes(line * LINE), Buf::new(bytes as usize)).await?;
    assert!(read.iter().all(|byte| *byte == read[0]), "line {line} is a mixture");
    Ok(read[0])
}

/// Fills a line.
pub(crate) async fn write(cache: &Tested, line: u64, byte: u8) -> IoResult<()> {
    let mut data = Buf::new(LINE as usize);
    data.fill(byte);
    cache.write(Lba::from_bytes(line * LINE), data.into(), Durability::Cached).await
}

/// Nothing that was released or ended counts as an error of the SSD.
pub(crate) fn check_no_errors(cache: &Tested) {
    let status = cache.status();
    let seen =
        (status.counts.ssd_errors, status.counts.repaired_lines, status.counts.damaged_reads);
    assert_eq!(seen, (0, 0, 0), "errors of the SSD, lines repaired and damaged");
}
