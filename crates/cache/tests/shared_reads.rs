//! Long reads of the same bytes at the same time: one read of the SSD serves all.

use std::future::Future;
use std::task::Poll;

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles};

type Drive = ModelDevice<MemoryDevice>;

const LONG: usize = 256 << 10;

async fn cache_with(handle: &Handle, content: u8) -> Cache<Drive, Drive> {
    let drive = |name, bytes| {
        let profile = Profile::find(name).expect("a profile");
        ModelDevice::new(handle.clone(), profile, MemoryDevice::new(bytes))
    };
    let (ssd, origin) = (drive("ssd-sata", 64 * MIB), drive("hdd-7200", 64 * MIB));
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
    Cache::format(&ssd, &origin, &format).await.expect("the SSD takes a cache");
    let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
    let options = OpenOptions { uuid: None, generation_min: 0, settings, seed: 1 };
    let cache = Cache::open(handle, ssd, origin, options).await.expect("the cache opens").0;
    fill(&cache, content).await;
    cache
}

async fn fill(cache: &Cache<Drive, Drive>, content: u8) {
    let mut data = Buf::new(LONG);
    data.fill(content);
    cache.write(Lba(0), data.into(), Durability::Cached).await.expect("a write works");
}

#[test]
fn readers_of_the_same_bytes_at_the_same_time_are_served_by_one_read_of_the_ssd() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let cache = cache_with(&handle, 1).await;
        let before = cache.status();
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let cache = cache.clone();
                handle.spawn(async move { cache.read(Lba(0), Buf::new(LONG)).await })
            })
            .collect();
        let writer = {
            let cache = cache.clone();
            handle.spawn(async move { fill(&cache, 2).await })
        };
        for reader in readers {
            let read = reader.await.expect("a read works");
            assert!(read.iter().all(|byte| *byte == 1));
        }
        let after = cache.status();
        assert_eq!(after.ssd_read_bytes - before.ssd_read_bytes, LONG as u64);
        assert_eq!(after.reads.hits - before.reads.hits, 4);
        assert_eq!(after.reads.bytes - before.reads.bytes, 4 * LONG as u64);
        writer.await;
        let read = cache.read(Lba(0), Buf::new(LONG)).await.expect("a read works");
        assert!(read.iter().all(|byte| *byte == 2), "a later reader sees what was written");
    });
}

#[test]
fn readers_whose_leader_is_dropped_read_by_themselves() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let cache = cache_with(&handle, 1).await;
        let mut leader = Box::pin(cache.read(Lba(0), Buf::new(LONG)));
        let first = std::future::poll_fn(|context| Poll::Ready(leader.as_mut().poll(context)));
        assert!(first.await.is_pending());
        let follower = {
            let cache = cache.clone();
            handle.spawn(async move { cache.read(Lba(0), Buf::new(LONG)).await })
        };
        handle.yield_now().await;
        drop(leader);
        let read = follower.await.expect("a read works");
        assert!(read.iter().all(|byte| *byte == 1));
    });
}
