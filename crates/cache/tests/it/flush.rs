//! Goal: a client's flush asks of the disk what went past the log, and no more. Method: memory drives in
//! virtual time, and a disk whose flushes fail.

use voltier_block::{BlockDevice, Buf, Durability, Lba};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_filter::{Fault, FaultDevice, Faults};
use voltier_ring::{Executor, NoFiles};

async fn write(cache: &impl BlockDevice, line: u64) {
    let data = Buf::zeroed(4096);
    cache.write(Lba(8 * line), data.into(), Durability::Cached).await.expect("a write works");
}

#[test]
fn a_flush_of_what_the_ssd_has_does_not_fail_with_the_disk() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, faults) = (MemoryDevice::new(32 << 20), Faults::new());
        let origin = FaultDevice::new(handle.clone(), MemoryDevice::new(16 << 20), faults.clone());
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [8; 16] };
        Cache::format(&ssd, &origin, &format).await.expect("it takes a cache");
        let write_back = Settings { mode: Mode::WriteBack, ..Settings::default() };
        let options = OpenOptions::with(write_back.clone());
        let cache = Cache::open(&handle, ssd, origin, options).await.expect("it opens").0;
        write(&cache, 0).await;
        // The first one covers what an earlier life wrote past the log.
        cache.flush().await.expect("a flush works");
        faults.inject(Fault::FlushError);
        assert!(cache.drain().await.is_err(), "the cleaner's flush fails, after its write");
        faults.inject(Fault::FlushError);
        cache.flush().await.expect("the SSD has all that was written");
        faults.clear();
        cache.drain().await.expect("a drain works");
        cache.configure(Settings { mode: Mode::WriteThrough, ..write_back }).unwrap();
        write(&cache, 1).await;
        faults.inject(Fault::FlushError);
        assert!(cache.flush().await.is_err(), "the newest write is on the disk alone");
        cache.flush().await.expect("a flush works");
    });
}
