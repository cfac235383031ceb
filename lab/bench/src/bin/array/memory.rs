//! Memory members: what the array's own code costs.

use std::sync::{Arc, Barrier};

use voltier_array::{
    Array, Consistency, CreateOptions, Geometry, Integrity, Layout, Level, MemberIndex, MergeMode,
    MergePolicy,
};
use voltier_bench::emit;
use voltier_block::SECTOR_BYTES;
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle};

use crate::load::{Load, Work, rate, touch};
use crate::{KIB, raid_6};

const CHUNK_BYTES: u64 = 16 * KIB;
/// 8 for data and 2 for parity.
const MEMBERS: usize = 10;
const STRIPE_BYTES: u64 = 8 * CHUNK_BYTES;
const WORKING_SET_BYTES: u64 = 256 << 20;

/// An array over memory.
#[derive(Clone, Copy)]
struct Bed {
    level: Level,
    /// None for an array without durable state.
    consistency: Option<Consistency>,
    integrity: Integrity,
    lost: usize,
    merge: MergeMode,
    /// The extent that is written and read, from the start of the volume.
    span_bytes: u64,
}

impl Bed {
    const fn of(level: Level) -> Self {
        let merge = MergeMode::Off;
        let (integrity, span_bytes) = (Integrity::None, WORKING_SET_BYTES);
        Self { level, consistency: None, integrity, lost: 0, merge, span_bytes }
    }

    async fn build(self, handle: &Handle) -> Array<MemoryDevice> {
        // Room for the working set on every level, and for a journal of the usual length beside it.
        let bytes = WORKING_SET_BYTES / 8 + if self.consistency.is_some() { 16 << 20 } else { 0 };
        let members = (0..MEMBERS).map(|_| MemoryDevice::new(bytes));
        let array = match self.consistency {
            Some(consistency) => {
                let options = raid_6(MEMBERS, CHUNK_BYTES, consistency);
                let options = CreateOptions { integrity: self.integrity, ..options };
                Array::create(handle, &options, members.collect()).await
            }
            None => {
                let sectors = bytes / SECTOR_BYTES;
                let geometry =
                    Geometry::new(self.level, Layout::default(), MEMBERS, CHUNK_BYTES, sectors);
                Array::new(handle, geometry.expect("possible"), members.map(Some).collect())
            }
        };
        let array = array.expect("possible");
        touch(&array, WORKING_SET_BYTES).await;
        array.set_merge_policy(MergePolicy { mode: self.merge, ..MergePolicy::default() });
        let lost = (0..self.lost).map(MemberIndex);
        lost.for_each(|member| array.fail(member).expect("the level can lose it"));
        array
    }

    /// The rate of a load on this core. All `cores` begin to measure at once: filling a drive with fresh
    /// memory on one would slow the others down.
    fn on_core(self, load: Load, seconds: f64, cores: &Barrier) -> f64 {
        let mut executor = Executor::real().expect("io_uring is available");
        let handle = executor.handle();
        let array = executor.block_on({
            let handle = handle.clone();
            async move { self.build(&handle).await }
        });
        cores.wait();
        let devices = [array];
        let measured = async move { rate(&handle, &devices, load, self.span_bytes, seconds).await };
        let rate = executor.block_on(measured);
        cores.wait();
        rate
    }

    fn one_core(self, load: Load, seconds: f64) -> f64 {
        self.on_core(load, seconds, &Barrier::new(1))
    }

    /// The sum of two arrays, each on a core of its own.
    fn two_cores(self, load: Load, seconds: f64) -> f64 {
        let cores = Arc::new(Barrier::new(2));
        std::thread::scope(|scope| {
            let core =
                |cores: Arc<Barrier>| scope.spawn(move || self.on_core(load, seconds, &cores));
            let both = [core(cores.clone()), core(cores)];
            both.map(|core| core.join().expect("a core ends in order")).iter().sum()
        })
    }
}

/// The rate of one memory drive.
fn bare_memory(load: Load, seconds: f64) -> f64 {
    let mut executor = Executor::real().expect("io_uring is available");
    let handle = executor.handle();
    executor.block_on(async move {
        let drive = MemoryDevice::new(WORKING_SET_BYTES);
        touch(&drive, WORKING_SET_BYTES).await;
        rate(&handle, &[drive], load, WORKING_SET_BYTES, seconds).await
    })
}

const TARGET: &str = "target of the project";
/// md in user-mode Linux, one processor, six RAM disks, 64 KiB chunks: a run of its own.
const MD: &str = "Linux md in user-mode Linux, published";

pub(crate) fn cases(seconds: f64) {
    let (raid_0, raid_6) = (Bed::of(Level::Raid0), Bed::of(Level::Raid6));
    let (read, write) = (Load::random(Work::Read), Load::random(Work::Write));
    let plain_reads = raid_0.one_core(read, seconds);
    let reads = raid_6.one_core(read, seconds);
    emit("read 4k, RAID 6 8+2, 1 core", "requests/s", reads, "RAID 0, same engine", plain_reads);
    let bare = bare_memory(read, seconds);
    emit("read 4k, RAID 6 8+2, to bare memory", "requests/s", reads, "memory drive", bare);
    let degraded = Bed { lost: 2, ..raid_6 }.one_core(read, seconds);
    emit("read 4k, RAID 6 8+2, 2 lost, 1 core", "requests/s", degraded, "none lost", reads);
    let writes = raid_6.one_core(write, seconds);
    emit("write 4k, RAID 6 8+2, 1 core", "requests/s", writes, TARGET, 300_000.0);
    // Three reads and three writes of members, and the parity, are the least there is to do.
    let bare = 1.0 / (3.0 / bare_memory(read, seconds) + 3.0 / bare_memory(write, seconds));
    let case = "write 4k, RAID 6 8+2, to bare memory";
    emit(case, "requests/s", writes, "3 reads and 3 writes of a memory drive", bare);
    // A copy of what the caches hold takes no time: the engine's time is left.
    let ours = Bed { span_bytes: 8 << 20, ..raid_6 }.one_core(write, seconds);
    emit(
        "write 4k, RAID 6 8+2, 8 MiB, 1 core",
        "requests/s",
        ours,
        "aim of the project",
        600_000.0,
    );
    // Where a drive costs nothing a stream gains little, so the case shows what looking for streams
    // takes.
    let adaptive = Bed { merge: MergeMode::Adaptive, ..raid_6 };
    let ours = adaptive.one_core(write, seconds);
    emit("write 4k, RAID 6 8+2, adaptive, 1 core", "requests/s", ours, "merge=off", writes);
    let stream = Load { depth: 32, ..Load::sequential(Work::Write, 4 * KIB) };
    let (ours, off) = (adaptive.one_core(stream, seconds), raid_6.one_core(stream, seconds));
    let case = "write 4k in sequence, 32 at once, RAID 6 8+2, adaptive, 1 core";
    emit(case, "requests/s", ours, "merge=off", off);
    let plain_writes = raid_0.one_core(write, seconds);
    let case = "write 4k, RAID 6 to RAID 0";
    emit(case, "%", writes / plain_writes * 100.0, MD, 17.1);
    for (name, bytes) in [("128k, one stripe", STRIPE_BYTES), ("1m, 8 stripes", 8 * STRIPE_BYTES)] {
        let load = Load::sequential(Work::Write, bytes);
        let mb_per_s = |rate: f64| rate * bytes as f64 / 1e6;
        let ours = mb_per_s(raid_6.one_core(load, seconds));
        let case = format!("full-stripe writes {name}, RAID 6 8+2, 1 core");
        emit(&case, "MB/s", ours, TARGET, 3_000.0);
        emit(&format!("{case}, to md's"), "MB/s", ours, MD, 901.0);
        let bare = mb_per_s(bare_memory(load, seconds));
        emit(&format!("{case}, to bare memory"), "MB/s", ours, "memory drive", bare);
    }
    for (name, load, one) in [("read", read, reads), ("write", write, writes)] {
        let both = raid_6.two_cores(load, seconds);
        emit(&format!("{name} 4k, RAID 6 8+2, 2 cores"), "requests/s", both, "1 core", one);
    }
    consistency_cases(write, writes, seconds);
}

/// The cost of keeping data and parity together over a power cut, and of checksums of blocks.
fn consistency_cases(write: Load, bare: f64, seconds: f64) {
    let wide = Load::sequential(Work::Write, STRIPE_BYTES);
    let figures = |consistency, integrity| {
        let bed = Bed { consistency: Some(consistency), integrity, ..Bed::of(Level::Raid6) };
        let wide_mb_per_s = bed.one_core(wide, seconds) * STRIPE_BYTES as f64 / 1e6;
        (bed.one_core(write, seconds), wide_mb_per_s)
    };
    let bitmap = figures(Consistency::Bitmap, Integrity::None);
    let journal = figures(Consistency::Journal, Integrity::None);
    let case = |what: &str| format!("{what}, RAID 6 8+2, 1 core");
    emit(&case("write 4k, bitmap"), "requests/s", bitmap.0, "no durable state", bare);
    emit(&case("write 4k, journal"), "requests/s", journal.0, "bitmap", bitmap.0);
    let name = case("full-stripe writes 128k, journal");
    emit(&name, "MB/s", journal.1, "bitmap", bitmap.1);
    for (consistency, without) in [(Consistency::Bitmap, bitmap), (Consistency::Journal, journal)] {
        let with = figures(consistency, Integrity::Crc32c);
        let name = case(&format!("write 4k, {consistency}, crc32c"));
        emit(&name, "requests/s", with.0, "no checksums", without.0);
        let name = case(&format!("full-stripe writes 128k, {consistency}, crc32c"));
        emit(&name, "MB/s", with.1, "no checksums", without.1);
    }
}
