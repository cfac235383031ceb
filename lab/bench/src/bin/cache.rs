//! The in-process cases of `cargo xtask bench cache`: one JSON line a case.
//!
//! Memory drives, checksums verified, one core unless said otherwise: what the cache's own code
//! costs. The modelled drives run in virtual time. `BENCH_SECONDS` is the time of one measurement.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Barrier};

use voltier_bench::{emit, new_cache};
use voltier_block::{BlockDevice, Buf, DriveControl, Durability, Lba, Prng};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, LineSize};
use voltier_drive::MemoryDevice;
use voltier_drive::ModelDevice;
use voltier_drive::model::Profile;
use voltier_ring::{Executor, Handle, NoFiles};

const LINE_SECTORS: u64 = 8;
const WORKING_SET_BYTES: u64 = 256 << 20;
const DEPTH: u64 = 32;

/// A memory drive of this size that was written from end to end. The system clears memory that is
/// touched for the first time, and the bench does not measure that.
async fn written(bytes: u64) -> MemoryDevice {
    let device = MemoryDevice::new(bytes);
    for line in 0..bytes / 4096 {
        request(&device, Work::Write, Lba(line * LINE_SECTORS)).await;
    }
    device
}

/// A write-back cache with every line of the working set in it.
async fn warm_cache<S: DriveControl, O: DriveControl>(
    handle: &Handle,
    ssd: S,
    origin: O,
    policy: PolicyKind,
    lines: u64,
) -> Cache<S, O> {
    let cache = new_cache(handle, ssd, origin, LineSize::DEFAULT, policy).await;
    let data = Buf::zeroed(1 << 20).freeze();
    // Until the log has been around the SSD, so that none of its memory is fresh either.
    while cache.status().device_bytes.ssd_written < cache.ssd().limits().bytes() {
        for megabyte in 0..lines / 256 {
            let at = Lba(megabyte * 2048);
            cache.write(at, data.clone().into(), Durability::Cached).await.expect("a write works");
        }
    }
    cache
}

#[derive(Clone, Copy)]
enum Work {
    Read,
    /// On an SSD so large that destaging rests: a sixth of it is dirty.
    Write,
    /// Four fifths of the SSD are dirty, above the high threshold: the cleaner works at full rate.
    WriteAndDestage,
}

impl Work {
    fn ssd_bytes(self) -> u64 {
        match self {
            Work::Read => 2 * WORKING_SET_BYTES + (64 << 20),
            Work::WriteAndDestage => WORKING_SET_BYTES * 5 / 4,
            Work::Write => 6 * WORKING_SET_BYTES,
        }
    }
}

/// Random 4 KiB requests at a depth for some time: requests per second of the ring's clock.
async fn rate<D: BlockDevice + Clone>(
    handle: &Handle,
    device: D,
    work: Work,
    lines: u64,
    depth: u64,
    seconds: f64,
) -> f64 {
    let begun = handle.now();
    let until = begun + (seconds * 1e9) as u64;
    let done = Rc::new(Cell::new(0u64));
    let tasks: Vec<_> = (0..depth)
        .map(|number| {
            let (handle, device, done) = (handle.clone(), device.clone(), done.clone());
            let mut prng = Prng::new(number + 1);
            handle.clone().spawn(async move {
                while handle.now() < until {
                    // The clock is looked at once in sixteen requests: it is not what is measured.
                    for _ in 0..16 {
                        request(&device, work, Lba(prng.below(lines) * LINE_SECTORS)).await;
                    }
                    done.set(done.get() + 16);
                    handle.yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    done.get() as f64 * 1e9 / (handle.now() - begun) as f64
}

async fn request<D: BlockDevice>(device: &D, work: Work, at: Lba) {
    match work {
        Work::Read => drop(device.read(at, Buf::new(4096)).await.expect("a read works")),
        Work::Write | Work::WriteAndDestage => {
            let data = Buf::new(4096).into();
            device.write(at, data, Durability::Cached).await.expect("a write works");
        }
    }
}

/// The rates that one core measured.
#[derive(Default)]
struct Measured {
    requests_per_s: f64,
    bare_requests_per_s: f64,
    /// Lines that the cleaner wrote to the origin meanwhile.
    destaged_lines_per_s: f64,
}

/// Ours and the bare drive's rate on this core. The measurement begins on all `cores` at once: filling
/// a drive with fresh memory on one would slow the others down.
fn one_core(work: Work, seconds: f64, cores: Arc<Barrier>) -> Measured {
    let mut executor = Executor::real().expect("io_uring is available");
    let handle = executor.handle();
    executor.block_on(async move {
        let lines = WORKING_SET_BYTES / 4096;
        let bare = Rc::new(written(WORKING_SET_BYTES).await);
        cores.wait();
        let bare_requests_per_s = rate(&handle, bare, work, lines, DEPTH, seconds).await;
        let ssd = MemoryDevice::new(work.ssd_bytes());
        let origin = written(WORKING_SET_BYTES).await;
        let cache = warm_cache(&handle, ssd, origin, PolicyKind::Lru, lines).await;
        cores.wait();
        let (begun, before) = (handle.now(), cache.status().counts.destaged_lines);
        let requests_per_s = rate(&handle, cache.clone(), work, lines, DEPTH, seconds).await;
        let destaged = (cache.status().counts.destaged_lines - before) as f64;
        let destaged_lines_per_s = destaged * 1e9 / (handle.now() - begun) as f64;
        cores.wait();
        cache.stop().await.expect("a stop works");
        Measured { requests_per_s, bare_requests_per_s, destaged_lines_per_s }
    })
}

/// The sums of two cores at once, each with its own half of the volume's lines. The sums are ours and the
/// bare drives', which show what the memory of the machine gives.
fn two_cores(work: Work, seconds: f64) -> Measured {
    let cores = Arc::new(Barrier::new(2));
    std::thread::scope(|scope| {
        let core = |cores: Arc<Barrier>| scope.spawn(move || one_core(work, seconds, cores));
        let both = [core(cores.clone()), core(cores)];
        let cores = both.map(|core| core.join().expect("a core ends in order"));
        cores.iter().fold(Measured::default(), |sum, core| Measured {
            requests_per_s: sum.requests_per_s + core.requests_per_s,
            bare_requests_per_s: sum.bare_requests_per_s + core.bare_requests_per_s,
            destaged_lines_per_s: sum.destaged_lines_per_s + core.destaged_lines_per_s,
        })
    })
}

/// Bytes the SSD got per byte that clients wrote, on a half-full cache.
fn write_amplification(depth: u64) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let lines = (64u64 << 20) / 4096;
        let profile = Profile::find("ssd-pcie").expect("a profile");
        let ssd = ModelDevice::new(handle.clone(), profile, MemoryDevice::new(160 << 20));
        let origin = MemoryDevice::new(64 << 20);
        let cache = warm_cache(&handle, ssd, origin, PolicyKind::Lru, lines).await;
        let before = cache.status();
        rate(&handle, cache.clone(), Work::Write, lines, depth, 1.0).await;
        let after = cache.status();
        let user = (after.writes.bytes - before.writes.bytes) as f64;
        (after.device_bytes.ssd_written - before.device_bytes.ssd_written) as f64 / user
    })
}

/// Random 4 KiB write-back on a modelled SSD in front of the modelled disk, and on the bare SSD.
fn modelled(profile: &'static str, depth: u64) -> (f64, f64) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (span, seconds) = (256u64 << 20, 2.0);
        let lines = span / 4096;
        let ssd = Profile::find(profile).expect("a profile");
        let hdd = Profile::find("hdd-7200").expect("a profile");
        let bare = Rc::new(ModelDevice::new(handle.clone(), ssd, MemoryDevice::new(span)));
        let theirs = rate(&handle, bare, Work::Write, lines, depth, seconds).await;
        let fast = ModelDevice::new(handle.clone(), ssd, MemoryDevice::new(4 * span));
        let slow = ModelDevice::new(handle.clone(), hdd, MemoryDevice::new(span));
        let cache = warm_cache(&handle, fast, slow, PolicyKind::Lru, lines).await;
        let ours = rate(&handle, cache, Work::Write, lines, depth, seconds).await;
        (ours, theirs)
    })
}

/// Requests of any size and alignment, half of them writes, on a small SSD before a fast origin: writes
/// per second of virtual time. The figure shows the cache's own waits.
fn mixed(line_bytes: u64) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (span, depth, requests) = (40u64 << 20, 16, 4096);
        let profile = Profile::find("ssd-sata").expect("a profile");
        let ssd = ModelDevice::new(handle.clone(), profile, MemoryDevice::new(24 << 20));
        let origin = ModelDevice::new(handle.clone(), profile, MemoryDevice::new(span));
        let line_size = LineSize::new(line_bytes).expect("a line size");
        let cache = new_cache(&handle, ssd, origin, line_size, PolicyKind::Lru).await;
        let begun = handle.now();
        let tasks: Vec<_> = (0..depth)
            .map(|number| {
                let (cache, mut prng) = (cache.clone(), Prng::new(number + 1));
                handle.spawn(async move {
                    for _ in 0..requests / depth {
                        let sectors = 1 + prng.below(128);
                        let at = Lba(prng.below(span / 512 - sectors + 1));
                        let data = Buf::zeroed(sectors as usize * 512);
                        if prng.one_in(2) {
                            let written = cache.write(at, data.into(), Durability::Cached).await;
                            written.expect("a write works");
                        } else {
                            cache.read(at, data).await.expect("a read works");
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        cache.status().writes.requests as f64 * 1e9 / (handle.now() - begun) as f64
    })
}

/// Bytes of memory per line of capacity, all structures, on a large SSD.
fn memory_per_line(policy: PolicyKind) -> f64 {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, origin) = (MemoryDevice::new(32 << 30), MemoryDevice::new(256 << 30));
        let cache = new_cache(&handle, ssd, origin, LineSize::DEFAULT, policy).await;
        let status = cache.status();
        status.counts.memory_bytes as f64 / status.lines.total as f64
    })
}

fn main() {
    let seconds = std::env::var("BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds: f64 = seconds.unwrap_or(2.0);
    let target = "target of the project";
    for (name, work, bar) in [
        ("hit read 4k", Work::Read, 1_200_000.0),
        ("write-back 4k", Work::Write, 600_000.0),
        ("write-back 4k and destaging", Work::WriteAndDestage, 600_000.0),
    ] {
        let one = one_core(work, seconds, Arc::new(Barrier::new(1)));
        let ours = one.requests_per_s;
        emit(&format!("{name}, 1 core"), "requests/s", ours, target, bar);
        let case = format!("{name}, 1 core, to bare memory");
        emit(&case, "requests/s", ours, "memory drive", one.bare_requests_per_s);
        if matches!(work, Work::WriteAndDestage) {
            let case = "lines destaged under write-back 4k, 1 core";
            emit(case, "lines/s", one.destaged_lines_per_s, "lines written", ours);
        }
        let both = two_cores(work, seconds);
        emit(&format!("{name}, 2 cores"), "requests/s", both.requests_per_s, "1 core", ours);
        let case = format!("bare memory drive under {name}, 2 cores");
        emit(&case, "requests/s", both.bare_requests_per_s, "1 core", one.bare_requests_per_s);
    }
    for profile in ["ssd-sata", "ssd-pcie"] {
        let (ours, bare) = modelled(profile, 256);
        let case = format!("random write 4k wb, {profile}, virtual time");
        emit(&case, "requests/s", ours, "the bare modelled SSD", bare);
    }
    for (depth, bar) in [(1, 2.1), (64, 1.1), (256, 1.1)] {
        let case = format!("write amplification, half full, depth {depth} (x1000)");
        emit(&case, "x1000", write_amplification(depth) * 1000.0, "limit", bar * 1000.0);
    }
    let small_lines = mixed(4096);
    for (name, line_bytes) in [("16k", 16384), ("64k", 65536)] {
        let case = format!("mixed 0.5-64k wb, 24 MiB SSD, {name} lines, virtual time");
        emit(&case, "writes/s", mixed(line_bytes), "4k lines", small_lines);
    }
    for policy in PolicyKind::ALL {
        let bar = if policy == PolicyKind::Lru { 24.0 } else { 16.0 };
        let case = format!("memory per 4k line, {policy}");
        emit(&case, "bytes", memory_per_line(policy), "limit", bar);
    }
}
