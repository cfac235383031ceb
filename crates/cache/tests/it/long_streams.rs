//! Goal: in write-back a stream that is longer than what the SSD has room for goes past it, at the disk's speed, and
//! nothing else does. Method: a disk that turns, in virtual time, and requests counted.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB, Prng, SECTOR_BYTES};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_filter::{Fault, FaultDevice, Faults, IoKind, IoLog, LogDevice};
use voltier_ring::{Executor, Handle, NoFiles};

type Ssd = ModelDevice<MemoryDevice>;
type Disk = LogDevice<FaultDevice<ModelDevice<MemoryDevice>>>;

const SSD_BYTES: u64 = 32 * MIB;
const DISK_BYTES: u64 = 128 * MIB;
const LINE_BYTES: u64 = 4096;

struct Fixture {
    handle: Handle,
    cache: Cache<Ssd, Disk>,
    disk: IoLog,
    faults: Faults,
}

fn with_cache<F: Future<Output = ()> + 'static>(
    settings: Settings,
    test: impl FnOnce(Fixture) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let model = |profile, bytes| {
            let profile = Profile::find(profile).expect("a profile");
            ModelDevice::new(handle.clone(), profile, MemoryDevice::new(bytes))
        };
        let (ssd, slow) = (model("ssd-sata", SSD_BYTES), model("hdd-7200", DISK_BYTES));
        let (disk, faults) = (IoLog::new(1 << 16), Faults::new());
        let slow = FaultDevice::new(handle.clone(), slow, faults.clone());
        let slow = LogDevice::new(handle.clone(), slow, disk.clone());
        let line_size = LineSize::new(LINE_BYTES).expect("a line size");
        let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [9; 16] };
        Cache::format(&ssd, &slow, &format).await.expect("the SSD takes a cache");
        let options = OpenOptions::with(settings);
        let cache = Cache::open(&handle, ssd, slow, options).await.expect("the cache opens").0;
        disk.clear();
        test(Fixture { handle, cache, disk, faults }).await;
    });
}

fn write_back() -> Settings {
    Settings { mode: Mode::WriteBack, ..Settings::default() }
}

fn content(sector: u64) -> u8 {
    (sector % 251) as u8 + 1
}

impl Fixture {
    /// Writes requests of this size one behind the other, so many at a time; each has so many flushes behind it.
    async fn stream(&self, from: u64, request: u64, bytes: u64, depth: u64, flushes: bool) {
        let (next, end) = (Rc::new(Cell::new(from)), from + bytes);
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let (cache, next) = (self.cache.clone(), next.clone());
                self.handle.spawn(async move {
                    while next.get() < end {
                        write(&cache, next.replace(next.get() + request), request).await;
                        if flushes {
                            cache.flush().await.expect("a flush works");
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }

    fn bypassed(&self) -> u64 {
        self.cache.status().writes.bypassed
    }

    async fn assert_content(&self, from: u64, bytes: u64) {
        for at in (from..from + bytes).step_by(MIB as usize) {
            let length = MIB.min(from + bytes - at);
            let read = self.cache.read(Lba(at / SECTOR_BYTES), Buf::new(length as usize)).await;
            let read = read.expect("a read works");
            for (sector, data) in (at / SECTOR_BYTES..).zip(read.chunks(SECTOR_BYTES as usize)) {
                assert!(data.iter().all(|byte| *byte == content(sector)), "sector {sector}");
            }
        }
    }
}

async fn write(cache: &Cache<Ssd, Disk>, at: u64, bytes: u64) {
    let mut data = Buf::new(bytes as usize);
    for (sector, data) in (at / SECTOR_BYTES..).zip(data.chunks_mut(SECTOR_BYTES as usize)) {
        data.fill(content(sector));
    }
    let written = cache.write(Lba(at / SECTOR_BYTES), data.into(), Durability::Cached).await;
    written.expect("a write works");
}

#[test]
fn a_stream_longer_than_the_ssd_goes_on_in_order_on_the_disk() {
    for (from, request, depth) in [(0, MIB, 8), (0, 128 << 10, 1), (32256, 128 << 10, 8)] {
        with_cache(write_back(), move |fixture| async move {
            let bytes = 3 * SSD_BYTES;
            fixture.stream(from, request, bytes, depth, false).await;
            let past = fixture.bypassed() * request;
            assert!(past > bytes / 2, "{past} bytes");
            let mut entries = fixture.disk.entries();
            entries.retain(|entry| entry.kind == IoKind::Write);
            entries.sort_by_key(|entry| (entry.submitted_ns, entry.range.start));
            let jumps = entries.windows(2).filter(|e| e[0].range.end() != e[1].range.start).count();
            assert!(jumps <= entries.len() / 20 + 4, "{jumps} jumps of {}", entries.len());
            // Most of the SSD's room is used.
            let lines = fixture.cache.status().lines;
            assert!(lines.dirty * 2 > lines.total, "{lines:?}");
            fixture.assert_content(from, bytes).await;
            fixture.cache.drain().await.expect("a drain works");
            fixture.assert_content(from, bytes).await;
        });
    }
}

#[test]
fn what_fits_goes_to_the_ssd_alone() {
    with_cache(write_back(), |fixture| async move {
        fixture.stream(0, MIB, SSD_BYTES / 2, 8, false).await;
        assert_eq!(fixture.bypassed(), 0);
    });
}

#[test]
fn short_requests_random_ones_and_streams_with_flushes_do_not_pass() {
    with_cache(write_back(), |fixture| async move {
        fixture.stream(0, 4096, SSD_BYTES, 32, false).await;
        assert_eq!(fixture.bypassed(), 0, "short");
        let mut prng = Prng::new(1);
        for _ in 0..256 {
            write(&fixture.cache, prng.below(DISK_BYTES / (128 << 10)) * (128 << 10), 128 << 10)
                .await;
        }
        assert_eq!(fixture.bypassed(), 0, "random");
        fixture.stream(DISK_BYTES / 2, 128 << 10, SSD_BYTES, 1, true).await;
        assert_eq!(fixture.bypassed(), 0, "with flushes");
    });
}

#[test]
fn ordered_mode_has_no_way_past_the_log() {
    with_cache(Settings { ordered: true, ..write_back() }, |fixture| async move {
        fixture.stream(0, MIB, 2 * SSD_BYTES, 8, false).await;
        assert_eq!(fixture.bypassed(), 0);
        fixture.assert_content(0, 2 * SSD_BYTES).await;
    });
}

/// Lines within the stream are dirty: the log has the newest copy of them, and keeps it.
#[test]
fn a_stream_passes_beside_dirty_lines() {
    with_cache(write_back(), |fixture| async move {
        let from = 2 * SSD_BYTES;
        for at in (from..3 * SSD_BYTES).step_by(MIB as usize) {
            let old = Buf::zeroed(6 << 10).into();
            let written = fixture.cache.write(Lba(at / SECTOR_BYTES + 3), old, Durability::Cached);
            written.await.expect("a write works");
        }
        fixture.stream(0, 128 << 10, 3 * SSD_BYTES, 8, false).await;
        assert!(fixture.bypassed() > 0);
        fixture.assert_content(0, 3 * SSD_BYTES).await;
    });
}

/// Beside a stream that passes, other writes find room.
#[test]
fn other_writes_are_written_back_beside_a_stream_that_passes() {
    with_cache(write_back(), |fixture| async move {
        fixture.stream(0, MIB, SSD_BYTES, 8, false).await;
        let passed = fixture.bypassed();
        assert!(passed > 0);
        let (cache, handle) = (fixture.cache.clone(), fixture.handle.clone());
        let others = handle.spawn(async move {
            let mut prng = Prng::new(1);
            for _ in 0..4000 {
                let line = prng.below(MIB * 16 / LINE_BYTES);
                write(&cache, 112 * MIB + line * LINE_BYTES, LINE_BYTES).await;
            }
        });
        fixture.stream(SSD_BYTES, MIB, 2 * SSD_BYTES, 8, false).await;
        others.await;
        assert!(fixture.bypassed() > passed + 48);
        fixture.assert_content(0, 3 * SSD_BYTES).await;
    });
}

#[test]
fn a_stream_that_the_disk_refuses_goes_to_the_ssd() {
    with_cache(write_back(), |fixture| async move {
        fixture.stream(0, MIB, SSD_BYTES, 8, false).await;
        let passed = fixture.bypassed();
        assert!(passed > 0);
        for at in [0, 300, 7000] {
            let range = voltier_block::SectorRange::new(Lba(SSD_BYTES / SECTOR_BYTES + at), 1);
            fixture.faults.inject(Fault::WriteError { range, times: 1 });
        }
        fixture.stream(SSD_BYTES, 63 << 11, 8 * MIB, 8, false).await;
        fixture.assert_content(SSD_BYTES, 8 * MIB).await;
    });
}

#[test]
fn a_stream_goes_on_to_the_ssd_when_the_disk_is_gone() {
    with_cache(write_back(), |fixture| async move {
        fixture.stream(0, MIB, SSD_BYTES, 8, false).await;
        let passed = fixture.bypassed();
        assert!(passed > 0);
        fixture.faults.inject(Fault::Gone);
        fixture.stream(SSD_BYTES, 128 << 10, 2 * MIB, 8, false).await;
        fixture.faults.clear();
        fixture.assert_content(SSD_BYTES, 2 * MIB).await;
        fixture.cache.drain().await.expect("a drain works");
        fixture.assert_content(0, SSD_BYTES + 2 * MIB).await;
    });
}
