//! `instructions CASE COUNT`: requests of one kind over memory drives, in virtual time, for callgrind.
//!
//! `scripts/instructions.sh` runs each case with two counts: the difference is the cost of a request alone.

use voltier_array::{Array, Consistency, CreateOptions, Geometry, Integrity, Layout, Level};
use voltier_bench::{new_cache, write_back};
use voltier_block::{BlockDevice, Buf, Durability, KIB, Lba, MIB, Prng, SECTOR_BYTES};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, Settings};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::{Drive, Leaf, LeafKind, Volume};

const SPAN_BYTES: u64 = 16 * MIB;
/// Wide enough that few random requests meet again.
const WIDE_BYTES: u64 = 64 * MIB;
const DEPTH: u64 = 32;
/// Writes after which all that is dirty goes to the origin.
const WRITES_BEFORE_DRAIN: u64 = 3_200;

/// `count` requests of `bytes` at random places of [`SPAN_BYTES`], [`DEPTH`] at once.
async fn load<D: BlockDevice + Clone>(
    handle: &Handle,
    device: &D,
    is_write: bool,
    bytes: u64,
    count: u64,
) {
    load_span(handle, device, is_write, (SPAN_BYTES, bytes), count).await;
}

/// The same of a span.
async fn load_span<D: BlockDevice + Clone>(
    handle: &Handle,
    device: &D,
    is_write: bool,
    (span_bytes, bytes): (u64, u64),
    count: u64,
) {
    let tasks: Vec<_> = (0..DEPTH)
        .map(|number| {
            let (device, mut prng) = (device.clone(), Prng::new(number + 1));
            let handle = handle.clone();
            handle.clone().spawn(async move {
                for _ in 0..count / DEPTH {
                    let at = Lba(prng.below(span_bytes / bytes) * (bytes / SECTOR_BYTES));
                    let data = Buf::new(bytes as usize);
                    if is_write {
                        device
                            .write(at, data.into(), Durability::Cached)
                            .await
                            .expect("a write works");
                    } else {
                        drop(device.read(at, data).await.expect("a read works"));
                    }
                    handle.yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

/// A write-back cache with every line of the span in it.
async fn cache(handle: &Handle) -> Cache<MemoryDevice, MemoryDevice> {
    let (ssd, origin) = (MemoryDevice::new(6 * SPAN_BYTES), MemoryDevice::new(SPAN_BYTES));
    let cache = new_cache(handle, ssd, origin, LineSize::DEFAULT, PolicyKind::Lru).await;
    let data = Buf::zeroed(MIB as usize).freeze();
    for megabyte in 0..SPAN_BYTES / MIB {
        let at = Lba(megabyte * (MIB / SECTOR_BYTES));
        cache.write(at, data.clone().into(), Durability::Cached).await.expect("a write works");
    }
    cache
}

/// The same as the daemon has it: a volume over drives of which each is measured.
async fn volume(handle: &Handle) -> Volume<Drive> {
    let memory = |bytes| Leaf::new(handle, LeafKind::Memory(MemoryDevice::new(bytes)));
    let volume = Volume::plain(handle, Drive::origin(memory(SPAN_BYTES)));
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [3; 16] };
    let ssd = Drive::ssd(memory(6 * SPAN_BYTES));
    volume.attach_new(ssd, &format, write_back()).await.expect("the SSD takes a cache");
    let data = Buf::zeroed(MIB as usize).freeze();
    for megabyte in 0..SPAN_BYTES / MIB {
        let at = Lba(megabyte * (MIB / SECTOR_BYTES));
        volume.write(at, data.clone().into(), Durability::Cached).await.expect("a write works");
    }
    volume
}

/// A cache that has nothing of a wide origin.
async fn cold_cache(handle: &Handle, mode: Mode) -> Cache<MemoryDevice, MemoryDevice> {
    let (ssd, origin) = (MemoryDevice::new(6 * SPAN_BYTES), MemoryDevice::new(WIDE_BYTES));
    // Memory that is touched for the first time is not a matter of requests.
    let data = Buf::zeroed(MIB as usize).freeze();
    for drive in [&ssd, &origin] {
        for at in (0..drive.limits().bytes()).step_by(MIB as usize) {
            let written = drive.write(Lba::from_bytes(at), data.clone().into(), Durability::Cached);
            written.await.expect("a write works");
        }
    }
    let cache = new_cache(handle, ssd, origin, LineSize::DEFAULT, PolicyKind::Lru).await;
    cache.configure(Settings { mode, ..cache.settings() }).expect("settings that go together");
    cache
}

/// RAID 6 of eight and two members whose span is written; bare without a consistency.
async fn array(handle: &Handle, consistency: Option<Consistency>) -> Array<MemoryDevice> {
    let (members, chunk_bytes) = (10, 16 * KIB);
    let bytes = SPAN_BYTES / 8 + if consistency.is_some() { 16 * MIB } else { 0 };
    let drives = (0..members).map(|_| MemoryDevice::new(bytes));
    let array = match consistency {
        Some(consistency) => {
            let options = CreateOptions {
                uuid: [7; 16],
                name: "bench".to_owned(),
                level: Level::Raid6,
                layout: Layout::default(),
                chunk_bytes,
                consistency,
                integrity: Integrity::None,
                member_uuids: (1..=members as u8).map(|number| [number; 16]).collect(),
            };
            Array::create(handle, &options, drives.collect()).await
        }
        None => {
            let geometry = Geometry::new(
                Level::Raid6,
                Layout::default(),
                members,
                chunk_bytes,
                bytes / SECTOR_BYTES,
            );
            Array::new(handle, geometry.expect("possible"), drives.map(Some).collect())
        }
    };
    let array = array.expect("possible");
    let data = Buf::zeroed(MIB as usize).freeze();
    for megabyte in 0..SPAN_BYTES / MIB {
        let at = Lba(megabyte * (MIB / SECTOR_BYTES));
        array.write(at, data.clone().into(), Durability::Cached).await.expect("a write works");
    }
    array
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [case, count] = &words[..] else { panic!("usage: instructions CASE COUNT") };
    let count: u64 = count.parse().expect("COUNT is a number");
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let case = case.clone();
    executor.block_on(async move {
        let (write, read) = (true, false);
        match case.as_str() {
            "hit_read" => load(&handle, &cache(&handle).await, read, 4 * KIB, count).await,
            "volume_hit_read" => load(&handle, &volume(&handle).await, read, 4 * KIB, count).await,
            "volume_write_back" => {
                load(&handle, &volume(&handle).await, write, 4 * KIB, count).await
            }
            "write_back" => load(&handle, &cache(&handle).await, write, 4 * KIB, count).await,
            "hit_read_128k" => load(&handle, &cache(&handle).await, read, 128 * KIB, count).await,
            "hit_read_128k_scattered" => {
                let cache = cache(&handle).await;
                // Neighbours on the volume are none on the SSD.
                load(&handle, &cache, write, 4 * KIB, SPAN_BYTES / KIB).await;
                load(&handle, &cache, read, 128 * KIB, count).await;
            }
            "write_back_128k" => {
                load(&handle, &cache(&handle).await, write, 128 * KIB, count).await
            }
            "write_back_and_destage" => {
                let cache = cache(&handle).await;
                for _ in 0..count / WRITES_BEFORE_DRAIN {
                    load(&handle, &cache, write, 4 * KIB, WRITES_BEFORE_DRAIN).await;
                    cache.drain().await.expect("the origin takes what is dirty");
                }
            }
            "miss_read" => {
                let cache = cold_cache(&handle, Mode::WriteThrough).await;
                load_span(&handle, &cache, read, (WIDE_BYTES, 4 * KIB), count).await;
            }
            "write_through" => {
                let cache = cold_cache(&handle, Mode::WriteThrough).await;
                load_span(&handle, &cache, write, (WIDE_BYTES, 4 * KIB), count).await;
            }
            "write_around" => {
                let cache = cold_cache(&handle, Mode::ReadOnly).await;
                load_span(&handle, &cache, write, (WIDE_BYTES, 4 * KIB), count).await;
            }
            "write_around_part" => {
                let cache = cold_cache(&handle, Mode::ReadOnly).await;
                load_span(&handle, &cache, write, (WIDE_BYTES, SECTOR_BYTES), count).await;
            }
            "small_write" => {
                load(&handle, &array(&handle, None).await, write, 4 * KIB, count).await
            }
            "full_stripe" => {
                load(&handle, &array(&handle, None).await, write, 128 * KIB, count).await
            }
            "small_write_bitmap" => {
                let array = array(&handle, Some(Consistency::Bitmap)).await;
                load(&handle, &array, write, 4 * KIB, count).await;
            }
            "small_write_journal" => {
                let array = array(&handle, Some(Consistency::Journal)).await;
                load(&handle, &array, write, 4 * KIB, count).await;
            }
            other => panic!("{other} is no case"),
        }
    });
}
