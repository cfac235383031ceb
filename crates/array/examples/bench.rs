//! The in-process cases of `cargo xtask bench array`: one JSON line a case.
//!
//! Memory members, one core unless said otherwise: what the array's own code costs. The modelled
//! drives run in virtual time. `BENCH_SECONDS` is the time of one measurement.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Barrier};

use voltier_array::{Array, Geometry, Layout, Level};
use voltier_block::{
    BlockDevice, Buf, Durability, IoResult, Lba, Limits, Payload, Prng, SECTOR_BYTES, SectorRange,
};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const KIB: u64 = 1 << 10;
const CHUNK_BYTES: u64 = 16 * KIB;
/// 8 for data and 2 for parity.
const MEMBERS: usize = 10;
const STRIPE_BYTES: u64 = 8 * CHUNK_BYTES;
const WORKING_SET_BYTES: u64 = 256 << 20;
const DEPTH: u64 = 32;

/// The drives of the published comparison, and how it loaded them.
const DRIVES: usize = 12;
const DRIVE_DEPTH: u64 = 2048;
const DRIVE_CHUNK_BYTES: u64 = 64 * KIB;

fn emit(case: &str, unit: &str, ours: f64, peer: &str, theirs: f64) {
    println!(
        "{{\"case\":\"{case}\",\"unit\":\"{unit}\",\"ours\":{ours:.1},\"peer\":\"{peer}\",\
         \"theirs\":{theirs:.1}}}"
    );
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Read,
    Write,
    /// One read, one write, by turns.
    Mixed,
}

/// Requests of one size at random places, or one behind the other.
#[derive(Clone, Copy)]
struct Load {
    work: Work,
    bytes: u64,
    is_sequential: bool,
    depth: u64,
    /// Of the volume, from its start.
    span_bytes: u64,
}

impl Load {
    const fn random(work: Work) -> Self {
        let span_bytes = WORKING_SET_BYTES;
        Self { work, bytes: 4 * KIB, is_sequential: false, depth: DEPTH, span_bytes }
    }

    const fn sequential(work: Work, bytes: u64) -> Self {
        Self { work, bytes, is_sequential: true, depth: 8, span_bytes: WORKING_SET_BYTES }
    }

    const fn deep(self) -> Self {
        Self { depth: DRIVE_DEPTH, ..self }
    }
}

/// Where the next request goes and what it is.
struct Requests {
    load: Load,
    places: u64,
    prng: Prng,
    /// Shared by all tasks of a device.
    next: Rc<Cell<u64>>,
    count: u64,
}

impl Requests {
    async fn request<D: BlockDevice>(&mut self, device: &D) {
        let place = if self.load.is_sequential {
            self.next.replace(self.next.get() + 1) % self.places
        } else {
            self.prng.below(self.places)
        };
        let at = Lba::from_bytes(place * self.load.bytes);
        let buf = Buf::new(self.load.bytes as usize);
        self.count += 1;
        let is_read = match self.load.work {
            Work::Read => true,
            Work::Write => false,
            Work::Mixed => self.count.is_multiple_of(2),
        };
        if is_read {
            drop(device.read(at, buf).await.expect("a read works"));
        } else {
            let written = device.write(at, buf.into(), Durability::Cached).await;
            written.expect("a write works");
        }
    }
}

/// A load on devices at once, its depth dealt to them: requests per second of the ring's clock,
/// from the first tenth of the time on.
async fn rate<D: BlockDevice + Clone>(
    handle: &Handle,
    devices: &[D],
    load: Load,
    span_bytes: u64,
    seconds: f64,
) -> f64 {
    let from = handle.now() + (seconds * 1e8) as u64;
    let until = from + (seconds * 1e9) as u64;
    let done = Rc::new(Cell::new(0u64));
    let cursors: Vec<Rc<Cell<u64>>> = devices.iter().map(|_| Rc::default()).collect();
    let tasks: Vec<_> = (0..load.depth)
        .map(|number| {
            let which = number as usize % devices.len();
            let (handle, device, done) = (handle.clone(), devices[which].clone(), done.clone());
            let mut requests = Requests {
                load,
                places: span_bytes / load.bytes,
                prng: Prng::new(number + 1),
                next: cursors[which].clone(),
                count: number,
            };
            // The clock is looked at once in some requests: it is not what is measured.
            let at_once = if load.depth > DEPTH { 1 } else { (64 * KIB / load.bytes).max(1) };
            handle.clone().spawn(async move {
                while handle.now() < until {
                    for _ in 0..at_once {
                        requests.request(&device).await;
                    }
                    if (from..until).contains(&handle.now()) {
                        done.set(done.get() + at_once);
                    }
                    handle.yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    done.get() as f64 * 1e9 / (until - from) as f64
}

/// Writes everything once: memory that is touched for the first time is cleared by the system,
/// which is not what is measured.
async fn touch<D: BlockDevice>(device: &D) {
    let data = Buf::zeroed(1 << 20).freeze();
    for place in 0..device.limits().bytes() >> 20 {
        let at = Lba::from_bytes(place << 20);
        let written = device.write(at, data.clone().into(), Durability::Cached).await;
        written.expect("a write works");
    }
}

/// An array over memory that was written once.
async fn in_memory(handle: &Handle, level: Level, lost: usize) -> Array<MemoryDevice> {
    // Room for the working set on every level.
    let bytes = WORKING_SET_BYTES / 8;
    let geometry =
        Geometry::new(level, Layout::default(), MEMBERS, CHUNK_BYTES, bytes / SECTOR_BYTES);
    let members = (0..MEMBERS).map(|_| Some(MemoryDevice::new(bytes))).collect();
    let array = Array::new(handle, geometry.expect("possible"), members).expect("possible");
    touch(&array).await;
    (0..lost).for_each(|member| array.fail(member).expect("the level can lose it"));
    array
}

/// The rate of an array over memory on this core. All `cores` begin to measure at once: filling a drive
/// with fresh memory on one would slow the others down.
fn on_core(level: Level, lost: usize, load: Load, seconds: f64, cores: &Barrier) -> f64 {
    let mut executor = Executor::real().expect("io_uring is available");
    let handle = executor.handle();
    let array = executor.block_on({
        let handle = handle.clone();
        async move { in_memory(&handle, level, lost).await }
    });
    cores.wait();
    let span_bytes = load.span_bytes;
    let rate =
        executor.block_on(async move { rate(&handle, &[array], load, span_bytes, seconds).await });
    cores.wait();
    rate
}

fn one_core(level: Level, lost: usize, load: Load, seconds: f64) -> f64 {
    on_core(level, lost, load, seconds, &Barrier::new(1))
}

/// The sum of two arrays, each on a core of its own.
fn two_cores(level: Level, load: Load, seconds: f64) -> f64 {
    let cores = Arc::new(Barrier::new(2));
    std::thread::scope(|scope| {
        let core =
            |cores: Arc<Barrier>| scope.spawn(move || on_core(level, 0, load, seconds, &cores));
        let both = [core(cores.clone()), core(cores)];
        both.map(|core| core.join().expect("a core ends in order")).iter().sum()
    })
}

/// The rate of one memory drive.
fn bare_memory(load: Load, seconds: f64) -> f64 {
    let mut executor = Executor::real().expect("io_uring is available");
    let handle = executor.handle();
    executor.block_on(async move {
        let drive = MemoryDevice::new(WORKING_SET_BYTES);
        touch(&drive).await;
        rate(&handle, &[drive], load, WORKING_SET_BYTES, seconds).await
    })
}

/// A store that keeps nothing, for a modelled drive of full size: only its time is of interest.
struct Nowhere(Limits);

impl BlockDevice for Nowhere {
    fn limits(&self) -> &Limits {
        &self.0
    }

    async fn read(&self, _at: Lba, into: Buf) -> IoResult<Buf> {
        Ok(into)
    }

    async fn write(&self, _at: Lba, _data: Payload, _durability: Durability) -> IoResult<()> {
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, _range: SectorRange) -> IoResult<()> {
        Ok(())
    }

    async fn write_zeroes(&self, _range: SectorRange, _durability: Durability) -> IoResult<()> {
        Ok(())
    }
}

/// Twelve modelled D3700 in virtual time: bare when there is no level.
fn modelled(level: Option<Level>, load: Load) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let seconds = 0.1;
        let profile = Profile::find("ssd-d3700").expect("a profile");
        let store = || Nowhere(Limits::plain(profile.bytes));
        let drive = || ModelDevice::new(handle.clone(), profile, store());
        let Some(level) = level else {
            let drives: Vec<_> = (0..DRIVES).map(|_| Rc::new(drive())).collect();
            return rate(&handle, &drives, load, profile.bytes, seconds).await;
        };
        let sectors = profile.bytes / SECTOR_BYTES;
        let geometry = Geometry::new(level, Layout::default(), DRIVES, DRIVE_CHUNK_BYTES, sectors);
        let geometry = geometry.expect("possible");
        let span_bytes = geometry.sectors() * SECTOR_BYTES;
        let members = (0..DRIVES).map(|_| Some(drive())).collect();
        let array = Array::new(&handle, geometry, members).expect("possible");
        rate(&handle, &[array], load, span_bytes, seconds).await
    })
}

const TARGET: &str = "target of the project";
/// md in user-mode Linux, one processor, six RAM disks, 64 KiB chunks: a run of its own.
const MD: &str = "Linux md in user-mode Linux, published";

fn processor_cases(seconds: f64) {
    let (read, write) = (Load::random(Work::Read), Load::random(Work::Write));
    let plain_reads = one_core(Level::Raid0, 0, read, seconds);
    let reads = one_core(Level::Raid6, 0, read, seconds);
    emit("read 4k, RAID 6 8+2, 1 core", "requests/s", reads, "RAID 0, same engine", plain_reads);
    let bare = bare_memory(read, seconds);
    emit("read 4k, RAID 6 8+2, to bare memory", "requests/s", reads, "memory drive", bare);
    let degraded = one_core(Level::Raid6, 2, read, seconds);
    emit("read 4k, RAID 6 8+2, 2 lost, 1 core", "requests/s", degraded, "none lost", reads);
    let writes = one_core(Level::Raid6, 0, write, seconds);
    emit("write 4k, RAID 6 8+2, 1 core", "requests/s", writes, TARGET, 300_000.0);
    // Three reads and three writes of members, and the parity, are the least there is to do.
    let bare = 1.0 / (3.0 / bare_memory(read, seconds) + 3.0 / bare_memory(write, seconds));
    let case = "write 4k, RAID 6 8+2, to bare memory";
    emit(case, "requests/s", writes, "3 reads and 3 writes of a memory drive", bare);
    // What the caches hold is copied in no time: what is left is the engine.
    let near = Load { span_bytes: 8 << 20, ..write };
    let ours = one_core(Level::Raid6, 0, near, seconds);
    emit(
        "write 4k, RAID 6 8+2, 8 MiB, 1 core",
        "requests/s",
        ours,
        "aim of the project",
        600_000.0,
    );
    let plain_writes = one_core(Level::Raid0, 0, write, seconds);
    let case = "write 4k, RAID 6 to RAID 0";
    emit(case, "%", writes / plain_writes * 100.0, MD, 17.1);
    for (name, bytes) in [("128k, one stripe", STRIPE_BYTES), ("1m, 8 stripes", 8 * STRIPE_BYTES)] {
        let load = Load::sequential(Work::Write, bytes);
        let mb_per_s = |rate: f64| rate * bytes as f64 / 1e6;
        let ours = mb_per_s(one_core(Level::Raid6, 0, load, seconds));
        let case = format!("full-stripe writes {name}, RAID 6 8+2, 1 core");
        emit(&case, "MB/s", ours, TARGET, 3_000.0);
        emit(&format!("{case}, to md's"), "MB/s", ours, MD, 901.0);
        let bare = mb_per_s(bare_memory(load, seconds));
        emit(&format!("{case}, to bare memory"), "MB/s", ours, "memory drive", bare);
    }
    for (name, load, one) in [("read", read, reads), ("write", write, writes)] {
        let both = two_cores(Level::Raid6, load, seconds);
        emit(&format!("{name} 4k, RAID 6 8+2, 2 cores"), "requests/s", both, "1 core", one);
    }
}

/// Rows with a journal will stand beside the last of these.
fn drive_cases() {
    let (read, write) = (Load::random(Work::Read).deep(), Load::random(Work::Write).deep());
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
    emit(&case, "requests/s", ours, "Linux md, 12 real D3700, published", 39_907.0);
}

fn main() {
    let seconds = std::env::var("BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    processor_cases(seconds.unwrap_or(2.0));
    drive_cases();
}
