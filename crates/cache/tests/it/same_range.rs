//! Requests for the same bytes at the same time: one read of the SSD serves all, and one write.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles, join_all};

type Drive = ModelDevice<MemoryDevice>;

const LONG: usize = 256 << 10;

async fn filled_cache(handle: &Handle) -> Cache<Drive, Drive> {
    let drive = |name, bytes| {
        let profile = Profile::find(name).expect("a profile");
        ModelDevice::new(handle.clone(), profile, MemoryDevice::new(bytes))
    };
    let (ssd, origin) = (drive("ssd-sata", 64 * MIB), drive("hdd-7200", 64 * MIB));
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
    Cache::format(&ssd, &origin, &format).await.expect("the SSD takes a cache");
    let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
    let options = OpenOptions::with(settings);
    let cache = Cache::open(handle, ssd, origin, options).await.expect("the cache opens").0;
    fill(&cache, 1).await;
    cache
}

/// A test of a cache over two modelled drives that holds ones.
fn with_cache<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Handle, Cache<Drive, Drive>) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let cache = filled_cache(&handle).await;
        test(handle, cache).await;
    });
}

async fn read(cache: Cache<Drive, Drive>) -> Buf {
    cache.read(Lba(0), Buf::new(LONG)).await.expect("a read works")
}

async fn fill(cache: &Cache<Drive, Drive>, content: u8) {
    let mut data = Buf::new(LONG);
    data.fill(content);
    cache.write(Lba(0), data.into(), Durability::Cached).await.expect("a write works");
}

#[test]
fn readers_of_the_same_bytes_at_the_same_time_are_served_by_one_read_of_the_ssd() {
    with_cache(|handle, cache| async move {
        let before = cache.status();
        let readers: Vec<_> = (0..4).map(|_| handle.spawn(read(cache.clone()))).collect();
        let writer = {
            let cache = cache.clone();
            handle.spawn(async move { fill(&cache, 2).await })
        };
        for read in join_all(readers).await {
            assert!(read.iter().all(|byte| *byte == 1));
        }
        let after = cache.status();
        assert_eq!(after.device_bytes.ssd_read - before.device_bytes.ssd_read, LONG as u64);
        assert_eq!(after.reads.hits - before.reads.hits, 4);
        assert_eq!(after.reads.bytes - before.reads.bytes, 4 * LONG as u64);
        writer.await;
        let read = read(cache).await;
        assert!(read.iter().all(|byte| *byte == 2), "a later reader sees what was written");
    });
}

#[test]
fn readers_whose_leader_is_dropped_read_by_themselves() {
    with_cache(|handle, cache| async move {
        let mut leader = Box::pin(cache.read(Lba(0), Buf::new(LONG)));
        let first = std::future::poll_fn(|context| Poll::Ready(leader.as_mut().poll(context)));
        assert!(first.await.is_pending());
        let waiter = handle.spawn(read(cache.clone()));
        handle.yield_now().await;
        drop(leader);
        let read = waiter.await;
        assert!(read.iter().all(|byte| *byte == 1));
    });
}

#[test]
fn writes_of_a_range_that_wait_at_the_same_time_are_one_write_of_the_newest() {
    with_cache(|handle, cache| async move {
        let before = cache.status();
        let writers: Vec<_> = (2..7)
            .map(|content| {
                let cache = cache.clone();
                handle.spawn(async move { fill(&cache, content).await })
            })
            .collect();
        join_all(writers).await;
        let after = cache.status();
        // The first one is on its way when the others come.
        let written = after.device_bytes.ssd_written - before.device_bytes.ssd_written;
        assert!(written < 2 * LONG as u64 + LONG as u64 / 4, "{written}");
        assert_eq!(after.counts.overwritten_writes - before.counts.overwritten_writes, 3);
        assert_eq!(after.writes.hits - before.writes.hits, 5);
        let read = read(cache).await;
        assert!(read.iter().all(|byte| *byte == 6), "the last that came is what stays");
    });
}

#[test]
fn writes_whose_first_is_dropped_are_written_by_themselves() {
    with_cache(|handle, cache| async move {
        let begin = |content: u8| {
            let (cache, data) = (cache.clone(), vec![content; LONG]);
            let data = Buf::copy_of(&data);
            Box::pin(async move { cache.write(Lba(0), data.into(), Durability::Cached).await })
        };
        let mut running = begin(2);
        let mut waiting = begin(3);
        let mut later = begin(4);
        let polled = std::future::poll_fn(|context| {
            let pending = running.as_mut().poll(context).is_pending()
                && waiting.as_mut().poll(context).is_pending()
                && later.as_mut().poll(context).is_pending();
            Poll::Ready(pending)
        });
        assert!(polled.await, "nobody is done yet");
        drop(waiting);
        let later = handle.spawn(later);
        running.await.expect("a write works");
        later.await.expect("a write works");
        let read = read(cache).await;
        assert!(read.iter().all(|byte| *byte == 4));
    });
}

/// One behind the other from 0 on, and again from there: as a job with a queue does.
async fn job(handle: Handle, cache: Cache<Drive, Drive>, depth: usize, writes: u64) {
    let next = Rc::new(Cell::new(0));
    let queue: Vec<_> = (0..depth)
        .map(|_| {
            let (cache, next) = (cache.clone(), next.clone());
            handle.spawn(async move {
                while next.get() < writes {
                    let place = next.replace(next.get() + 1) % 64;
                    let at = Lba::from_bytes(place * LONG as u64);
                    let data = Buf::zeroed(LONG);
                    cache.write(at, data.into(), Durability::Cached).await.expect("a write works");
                }
            })
        })
        .collect();
    join_all(queue).await;
}

#[test]
fn jobs_that_write_the_same_places_in_order_stay_together_and_share_the_ssd() {
    with_cache(|handle, cache| async move {
        let before = cache.status();
        let jobs: Vec<_> =
            (0..4).map(|_| handle.spawn(job(handle.clone(), cache.clone(), 16, 400))).collect();
        join_all(jobs).await;
        let after = cache.status();
        let by_clients = after.writes.bytes - before.writes.bytes;
        assert_eq!(by_clients, 4 * 400 * LONG as u64);
        let by_ssd = after.device_bytes.ssd_written - before.device_bytes.ssd_written;
        assert!(by_ssd * 2 < by_clients, "{by_ssd} of {by_clients}");
    });
}
