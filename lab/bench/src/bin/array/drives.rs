//! Modelled drives in virtual time: the same figures in every run.

use std::rc::Rc;

use voltier_array::{
    Array, Consistency, CreateOptions, Geometry, Integrity, Layout, Level, StripeNumber,
    VolumePlace,
};
use voltier_bench::emit;
use voltier_block::{BlockDevice, Buf, Durability, SECTOR_BYTES};
use voltier_drive::model::{Nowhere, Profile};
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles};

use crate::load::{Load, Work, rate, touch};
use crate::{KIB, raid_6};

/// The drives of the published comparison, and how it loaded them.
const DRIVES: usize = 12;
const DRIVE_DEPTH: u64 = 2048;
const DRIVE_CHUNK_BYTES: u64 = 64 * KIB;
/// The smallest region of an array's map, on a member; members as large as those below have no longer ones.
const REGION_BYTES: u64 = 1 << 20;
/// Members with durable state: every region of theirs is written first, so they are smaller.
const DURABLE_BYTES: u64 = 64 << 30;
const PUBLISHED_MD: &str = "Linux md, 12 real D3700, published";

const SECONDS: f64 = 0.1;

pub(crate) fn drive(handle: &Handle, bytes: u64) -> ModelDevice<Nowhere> {
    let profile = Profile::find("ssd-d3700").expect("a profile");
    ModelDevice::new(handle.clone(), profile, Nowhere::new(bytes))
}

/// Twelve modelled D3700 of full size: bare when there is no level.
fn modelled(level: Option<Level>, load: Load) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let bytes = Profile::find("ssd-d3700").expect("a profile").bytes;
        let Some(level) = level else {
            let drives: Vec<_> = (0..DRIVES).map(|_| Rc::new(drive(&handle, bytes))).collect();
            return rate(&handle, &drives, load, bytes, SECONDS).await;
        };
        let sectors = bytes / SECTOR_BYTES;
        let geometry = Geometry::new(level, Layout::default(), DRIVES, DRIVE_CHUNK_BYTES, sectors);
        let geometry = geometry.expect("possible");
        let span_bytes = geometry.sectors() * SECTOR_BYTES;
        let members = (0..DRIVES).map(|_| Some(drive(&handle, bytes))).collect();
        let array = Array::new(&handle, geometry, members).expect("possible");
        rate(&handle, &[array], load, span_bytes, SECONDS).await
    })
}

/// Writes something to every region, several at once: from then on it is zeroed no more.
pub(crate) async fn write_every_region(
    handle: &Handle,
    array: &Array<ModelDevice<Nowhere>>,
    chunk_bytes: u64,
) {
    let geometry = array.geometry().clone();
    let step = REGION_BYTES / chunk_bytes;
    let tasks: Vec<_> = (0..DRIVE_DEPTH)
        .map(|task| {
            let (array, geometry) = (array.clone(), geometry.clone());
            handle.spawn(async move {
                let mut stripe = task * step;
                while stripe < geometry.stripe_count() {
                    let place = VolumePlace { stripe: StripeNumber(stripe), column: 0, offset: 0 };
                    let (at, data) = (geometry.lba_of(place), Buf::zeroed(4096).into());
                    array.write(at, data, Durability::Cached).await.expect("a write works");
                    stripe += step * DRIVE_DEPTH;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

/// RAID 6 with durable state in its steady state: every region was written, and what is marked while
/// clients write everywhere is marked.
fn durable(consistency: Consistency, load: Load) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let options = raid_6(DRIVES, DRIVE_CHUNK_BYTES, consistency);
        let members = (0..DRIVES).map(|_| drive(&handle, DURABLE_BYTES)).collect();
        let array = Array::create(&handle, &options, members).await.expect("possible");
        write_every_region(&handle, &array, DRIVE_CHUNK_BYTES).await;
        let span_bytes = array.geometry().sectors() * SECTOR_BYTES;
        let devices = [array];
        rate(&handle, &devices, load, span_bytes, 3.0 * SECONDS).await;
        rate(&handle, &devices, load, span_bytes, 3.0 * SECONDS).await
    })
}

/// Members whose content is kept, for checksums to match: small ones.
const KEPT_BYTES: u64 = 64 << 20;

/// Twelve small D3700 with content, in their steady state, with or without checksums of blocks.
fn checked(consistency: Consistency, integrity: Integrity, load: Load) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let profile = Profile::find("ssd-d3700").expect("a profile");
        let options = raid_6(DRIVES, DRIVE_CHUNK_BYTES, consistency);
        let options = CreateOptions { integrity, ..options };
        let drive = |_| ModelDevice::new(handle.clone(), profile, MemoryDevice::new(KEPT_BYTES));
        let array = Array::create(&handle, &options, (0..DRIVES).map(drive).collect()).await;
        let array = array.expect("possible");
        // The same part with and without checksums: they take some of the members.
        let span_bytes = KEPT_BYTES / 2 * (DRIVES as u64 - 2);
        touch(&array, span_bytes).await;
        rate(&handle, &[array], load, span_bytes, SECONDS).await
    })
}

pub(crate) fn cases() {
    let deep = |work| Load { depth: DRIVE_DEPTH, ..Load::random(work) };
    let (read, write) = (deep(Work::Read), deep(Work::Write));
    let raid_6 = Some(Level::Raid6);
    let place = "RAID 6 10+2, 12 modelled D3700";
    let (ours, raw) = (modelled(raid_6, read), modelled(None, read));
    emit(&format!("read 4k, {place}"), "requests/s", ours, "the bare drives", raw);
    let large = Load { bytes: 128 * KIB, ..read };
    let (ours, raw) = (modelled(raid_6, large), modelled(None, large));
    emit(&format!("read 128k, {place}"), "requests/s", ours, "the bare drives", raw);
    let case = format!("write 4k, {place}, no journal");
    let ours = modelled(raid_6, write);
    let raw = modelled(None, write) / 6.0;
    emit(&case, "requests/s", ours, "a sixth of the bare drives' writes", raw);
    // Half of the six are reads, which the drives do faster: a harder bound.
    let mixed = modelled(None, Load { work: Work::Mixed, ..write }) / 6.0;
    let case = format!("{case}, reads counted as such");
    emit(&case, "requests/s", ours, "a sixth of the bare drives' 50:50", mixed);
    let case = format!("write 4k, {place}, to published");
    emit(&case, "requests/s", ours, PUBLISHED_MD, 39_907.0);
    let by_none = durable(Consistency::None, write);
    let by_bitmap = durable(Consistency::Bitmap, write);
    let by_journal = durable(Consistency::Journal, write);
    let case = |consistency: &str| format!("write 4k, {place}, {consistency}");
    emit(&case("bitmap"), "requests/s", by_bitmap, "consistency none", by_none);
    emit(&case("journal"), "requests/s", by_journal, "bitmap", by_bitmap);
    emit(&case("journal, to published"), "requests/s", by_journal, PUBLISHED_MD, 39_907.0);
    for consistency in [Consistency::Bitmap, Consistency::Journal] {
        for (name, load) in [("write", write), ("read", read)] {
            let with = checked(consistency, Integrity::Crc32c, load);
            let without = checked(consistency, Integrity::None, load);
            let case = format!("{name} 4k, {place}, {consistency}, crc32c");
            emit(&case, "requests/s", with, "no checksums", without);
        }
    }
}
