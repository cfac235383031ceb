//! Goal: after a failed flush of the origin, a flush of a client tells of each write past the log that may be
//! lost. Method: drives in virtual time that hang, take their time and fail a flush.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Lba, MIB, Nanos};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, Health, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_filter::{Delay, DelayDevice, Fault, FaultDevice, Faults, Hang, HangDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const MS_NS: Nanos = 1_000_000;
const SECOND_NS: Nanos = 1000 * MS_NS;
const DEADLINE_NS: Nanos = 8 * SECOND_NS;
/// Times of the origin: a write outlasts a flush that began before, and ends in the next one.
const WRITE_NS: Nanos = 10 * MS_NS;
const FLUSH_NS: Nanos = 8 * MS_NS;

type Ssd = HangDevice<MemoryDevice>;
type Origin = HangDevice<DelayDevice<FaultDevice<MemoryDevice>>>;

/// A cache that writes through, and how its drives hang and fail.
struct World {
    handle: Handle,
    cache: Cache<Ssd, Origin>,
    ssd_hang: Hang,
    origin_hang: Hang,
    origin_faults: Faults,
    ssd_memory: MemoryDevice,
    origin_memory: MemoryDevice,
}

fn settings(mode: Mode) -> Settings {
    Settings { mode, deadline_ns: DEADLINE_NS, ..Settings::default() }
}

/// A test of a cache whose first line was written past the log and flushed.
fn with_world<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F + 'static) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd_hang, origin_hang) = (Hang::default(), Hang::default());
        let origin_faults = Faults::new();
        let (ssd_memory, origin_memory) =
            (MemoryDevice::new(32 * MIB), MemoryDevice::new(32 * MIB));
        let ssd = HangDevice::new(handle.clone(), ssd_memory.clone(), ssd_hang.clone());
        let faulty = FaultDevice::new(handle.clone(), origin_memory.clone(), origin_faults.clone());
        let delay = Delay::new(WRITE_NS, WRITE_NS, FLUSH_NS);
        let delayed = DelayDevice::new(handle.clone(), faulty, delay);
        let origin = HangDevice::new(handle.clone(), delayed, origin_hang.clone());
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [9; 16] };
        Cache::format(&ssd, &origin, &format).await.expect("the SSD takes a cache");
        let options = OpenOptions::with(settings(Mode::WriteThrough));
        let cache = Cache::open(&handle, ssd, origin, options).await.expect("it opens").0;
        write(&cache, 0).await.expect("a write works");
        cache.flush().await.expect("a flush works");
        let handle = handle.clone();
        let world = World {
            handle,
            cache,
            ssd_hang,
            origin_hang,
            origin_faults,
            ssd_memory,
            origin_memory,
        };
        test(world).await;
    });
}

async fn write(cache: &impl BlockDevice, line: u64) -> IoResult<()> {
    let mut data = Buf::new(4096);
    data.fill(line as u8);
    cache.write(Lba(8 * line), data.into(), Durability::Cached).await
}

impl World {
    /// Begins a request whose end can be looked at.
    fn ask<F: Future<Output = IoResult<()>> + 'static>(
        &self,
        request: impl FnOnce(Cache<Ssd, Origin>) -> F,
    ) -> Rc<Cell<Option<IoResult<()>>>> {
        let (request, end) = (request(self.cache.clone()), Rc::new(Cell::new(None)));
        let ended = end.clone();
        drop(self.handle.spawn(async move { ended.set(Some(request.await)) }));
        end
    }

    async fn flushes_fail_once(&self) {
        assert_eq!(self.cache.flush().await, Err(IoError::Medium), "the loss is told");
        self.cache.flush().await.expect("and told once");
    }
}

/// A checkpoint does not wait for a silent origin, and the origin's answer comes later.
#[test]
fn a_flush_that_nobody_waits_for_any_more_tells_of_its_error() {
    with_world(|world| async move {
        write(&world.cache, 1).await.expect("the origin takes it");
        world.cache.configure(settings(Mode::WriteBack)).expect("it is a setting");
        world.origin_hang.begin();
        world.origin_faults.inject(Fault::FlushError);
        // The log writes all of the SSD more than once, with a checkpoint now and then.
        for _ in 0..400 {
            for line in 100..164 {
                write(&world.cache, line).await.expect("the SSD takes it");
            }
            world.handle.sleep(SECOND_NS / 10).await;
        }
        assert!(world.cache.silent_drive().is_some());
        world.origin_hang.end();
        world.handle.sleep(5 * SECOND_NS).await;
        let status = world.cache.status();
        let known = (status.origin.failed_flushes, status.origin_loss_untold);
        assert_eq!(known, (1, true), "the origin has answered the flush of the checkpoint");
        world.flushes_fail_once().await;
    });
}

/// The origin's write has ended, the request waits for the SSD, and the flush of another client fails.
#[test]
fn a_write_that_is_acknowledged_after_a_failed_flush_was_told_is_told_of_too() {
    for zeroes in [false, true] {
        with_world(move |world| async move {
            write(&world.cache, 1).await.expect("the origin takes it");
            world.ssd_hang.hold_next();
            let waits = world.ask(async move |cache: Cache<Ssd, Origin>| {
                if !zeroes {
                    return write(&cache, 1).await;
                }
                let range = voltier_block::SectorRange::new(Lba(8), 8);
                cache.write_zeroes(range, Durability::Cached).await
            });
            world.handle.sleep(2 * WRITE_NS).await;
            world.origin_faults.inject(Fault::FlushError);
            assert_eq!(world.cache.flush().await, Err(IoError::Medium), "told of the first write");
            assert_eq!(waits.get(), None);
            world.ssd_hang.end();
            world.handle.sleep(WRITE_NS).await;
            assert_eq!(waits.get(), Some(Ok(())));
            world.flushes_fail_once().await;
        });
    }
}

/// A flush waits for one that fails, and flushes itself. A write ends meanwhile that had begun earlier.
#[test]
fn a_flush_does_not_tell_of_a_write_that_ended_after_the_flush_was_sent() {
    with_world(|world| async move {
        write(&world.cache, 1).await.expect("the origin takes it");
        world.origin_faults.inject(Fault::FlushError);
        let fails = world.ask(async move |cache: Cache<Ssd, Origin>| cache.flush().await);
        world.handle.sleep(MS_NS).await;
        let written = world.ask(async move |cache: Cache<Ssd, Origin>| write(&cache, 2).await);
        world.handle.sleep(MS_NS).await;
        let waits = world.ask(async move |cache: Cache<Ssd, Origin>| cache.flush().await);
        world.handle.sleep(FLUSH_NS).await;
        let so_far = (fails.get(), written.get(), waits.get());
        assert_eq!(so_far, (Some(Err(IoError::Medium)), None, None));
        world.handle.sleep(WRITE_NS).await;
        let ends = (written.get(), waits.get());
        assert_eq!(ends, (Some(Ok(())), Some(Err(IoError::Medium))), "a flush before its failure");
        world.flushes_fail_once().await;
    });
}

/// With the SSD the log goes, and the loss on the origin stays.
#[test]
fn a_stop_without_the_ssd_tells_of_a_loss_that_no_flush_has_told() {
    with_world(|world| async move {
        write(&world.cache, 1).await.expect("the origin takes it");
        world.cache.configure(settings(Mode::WriteBack)).expect("it is a setting");
        write(&world.cache, 2).await.expect("the SSD takes it");
        world.origin_faults.inject(Fault::FlushError);
        assert_eq!(world.cache.drain().await, Err(IoError::Medium), "the cleaner meets the error");
        world.cache.drain().await.expect("line 2 is written again");
        world.cache.give_up_silent_ssd();
        world.ssd_hang.begin();
        let waits = world.ask(async move |cache: Cache<Ssd, Origin>| write(&cache, 3).await);
        world.handle.sleep(2 * DEADLINE_NS).await;
        assert_eq!((waits.get(), world.cache.status().health), (Some(Ok(())), Health::Failed));
        assert_eq!(world.cache.stop().await, Err(IoError::Medium));
    });
}

/// The drive returns until the power cut what its failed flush has dropped. The line is dirty still.
#[test]
fn a_stop_after_a_failed_flush_takes_no_fingerprint_of_what_the_origin_may_lose() {
    with_world(|world| async move {
        world.cache.configure(settings(Mode::WriteBack)).expect("it is a setting");
        write(&world.cache, 2).await.expect("the SSD takes it");
        world.origin_faults.inject(Fault::FlushError);
        assert_eq!(world.cache.drain().await, Err(IoError::Medium), "the cleaner meets the error");
        assert_eq!(world.cache.status().lines.dirty, 1);
        world.cache.stop().await.expect("the dirty line is on the SSD");
        let lost = Buf::zeroed(4096);
        let (ssd, origin) = (&world.ssd_memory, &world.origin_memory);
        origin.write(Lba(16), lost.into(), Durability::Durable).await.expect("the power is cut");
        let options = OpenOptions::with(settings(Mode::WriteBack));
        let opened = Cache::open(&world.handle, ssd.clone(), origin.clone(), options).await;
        let cache = opened.expect("it is the origin of the cache").0;
        let read = cache.read(Lba(16), Buf::new(4096)).await.expect("the SSD has the line");
        assert!(read.iter().all(|&byte| byte == 2));
        cache.stop().await.expect("it stops");
    });
}

/// The process that wrote is gone, its clients are not: they ask the next one whether all is there.
#[test]
fn a_flush_that_fails_at_the_start_after_a_kill_is_told_to_the_clients_of_the_process_before() {
    with_world(|world| async move {
        write(&world.cache, 1).await.expect("the origin takes it");
        world.cache.kill();
        let faulty = |faults: &Faults| {
            FaultDevice::new(world.handle.clone(), world.origin_memory.clone(), faults.clone())
        };
        let faults = Faults::new();
        faults.inject(Fault::FlushError);
        let (ssd, origin) = (world.ssd_memory.clone(), faulty(&faults));
        let options = || OpenOptions::with(settings(Mode::WriteThrough));
        let opened = Cache::open(&world.handle, ssd, origin, options()).await;
        let cache = opened.expect("a cache that is there opens all the same").0;
        assert!(cache.status().origin_loss_untold);
        assert_eq!(cache.flush().await, Err(IoError::Medium), "the loss is told");
        cache.flush().await.expect("and told once");
        cache.stop().await.expect("it stops");
        // Nothing was under way at a stop in order: there is nothing to tell.
        faults.inject(Fault::FlushError);
        let (ssd, origin) = (world.ssd_memory.clone(), faulty(&faults));
        let opened = Cache::open(&world.handle, ssd, origin, options()).await;
        let cache = opened.expect("and opens").0;
        cache.flush().await.expect("a stop has flushed the origin");
    });
}
