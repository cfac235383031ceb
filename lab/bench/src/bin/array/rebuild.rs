//! Rebuild rate and what requests feel of it, in virtual time on modelled drives. The array is RAID 6
//! over eight D3700, with 4 KiB requests of which seven in ten are reads, priorities and floors side by
//! side.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{Array, BackgroundTask, Geometry, Layout, Level, MemberIndex, Pace, Priority};
use voltier_bench::emit;
use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB, Prng, SECTOR_BYTES};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const MEMBERS: usize = 8;
const MEMBER_BYTES: u64 = 256 * MIB;
const CHUNK_BYTES: u64 = 64 << 10;
/// Requests under way.
const CLIENTS: u64 = 32;
const WARM_NS: u64 = 100_000_000;
const MEASURED_NS: u64 = 500_000_000;

type Drives = Array<ModelDevice<MemoryDevice>>;

/// The figures of the clients.
#[derive(Default)]
struct Seen {
    latencies_ns: RefCell<Vec<u64>>,
    is_over: Cell<bool>,
}

async fn client(handle: Handle, array: Drives, seed: u64, seen: Rc<Seen>) {
    let mut prng = Prng::new(seed);
    let blocks = array.geometry().sectors() * SECTOR_BYTES / 4096;
    while !seen.is_over.get() {
        let at = Lba(prng.below(blocks) * 8);
        let begun = handle.now();
        if prng.below(10) < 7 {
            drop(array.read(at, Buf::new(4096)).await.expect("a read works"));
        } else {
            let data = Buf::zeroed(4096);
            array.write(at, data.into(), Durability::Cached).await.expect("a write works");
        }
        seen.latencies_ns.borrow_mut().push(handle.now() - begun);
    }
}

fn drive(handle: &Handle) -> ModelDevice<MemoryDevice> {
    let profile = Profile::find("ssd-d3700").expect("it is known");
    ModelDevice::new(handle.clone(), profile, MemoryDevice::new(MEMBER_BYTES))
}

/// The figures of a rebuild, and of the clients beside the rebuild.
#[derive(Default)]
struct Figures {
    rebuilt_mb_per_s: f64,
    requests_per_s: f64,
    p99_us: f64,
}

/// Clients on an array of which a member is lost or, with a pace, being rebuilt.
fn measure(clients: u64, is_lost: bool, pace: Option<Pace>) -> Figures {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let sectors = MEMBER_BYTES / SECTOR_BYTES;
        let geometry =
            Geometry::new(Level::Raid6, Layout::default(), MEMBERS, CHUNK_BYTES, sectors);
        let members = (0..MEMBERS).map(|_| Some(drive(&handle))).collect();
        let array = Array::new(&handle, geometry.expect("possible"), members).expect("possible");
        let seen = Rc::new(Seen::default());
        let tasks: Vec<_> = (0..clients)
            .map(|seed| handle.spawn(client(handle.clone(), array.clone(), seed, seen.clone())))
            .collect();
        if is_lost {
            array.fail(MemberIndex(3)).expect("two may go");
        }
        if let Some(pace) = pace {
            array.set_pace(BackgroundTask::Rebuild, pace);
            array.replace(MemberIndex(3), drive(&handle), [0; 16]).await.expect("it suits");
        }
        if clients > 0 {
            handle.sleep(WARM_NS).await;
        }
        seen.latencies_ns.borrow_mut().clear();
        let from = handle.now();
        // Progress grows by whole regions, so the rate is that between two steps.
        let mut steps = vec![(from, array.rebuild_status().progress.done_bytes)];
        // A short rebuild ends before the time is over.
        while handle.now() < from + MEASURED_NS
            && (pace.is_none() || array.rebuild_status().progress.is_running)
        {
            handle.sleep(WARM_NS / 1000).await;
            let progress = array.rebuild_status().progress;
            let done = if progress.is_running { progress.done_bytes } else { MEMBER_BYTES };
            if steps[steps.len() - 1].1 != done {
                steps.push((handle.now(), done));
            }
        }
        let first = if clients > 0 { steps[1.min(steps.len() - 1)] } else { steps[0] };
        let last = steps[steps.len() - 1];
        let seconds = (handle.now() - from) as f64 / 1e9;
        seen.is_over.set(true);
        for task in tasks {
            task.await;
        }
        array.cancel(BackgroundTask::Rebuild);
        array.ended(BackgroundTask::Rebuild).await;
        let mut latencies = seen.latencies_ns.take();
        latencies.sort_unstable();
        let p99 = latencies.get(latencies.len() * 99 / 100).map_or(0.0, |ns| *ns as f64 / 1e3);
        Figures {
            rebuilt_mb_per_s: if last.0 > first.0 {
                (last.1 - first.1) as f64 * 1e3 / (last.0 - first.0) as f64
            } else {
                0.0
            },
            requests_per_s: latencies.len() as f64 / seconds,
            p99_us: p99,
        }
    })
}

pub(crate) fn cases() {
    let healthy = measure(CLIENTS, false, None);
    let degraded = measure(CLIENTS, true, None);
    let place = "RAID 6 6+2, 8 modelled D3700, 32 clients 70:30";
    let case = format!("requests 4k, 1 lost, {place}");
    let none_lost = "none lost";
    emit(&case, "requests/s", degraded.requests_per_s, none_lost, healthy.requests_per_s);
    emit(&format!("p99, {case}"), "us", degraded.p99_us, none_lost, healthy.p99_us);
    for (priority, floor_bytes_per_second) in [
        (Priority::Idle, 50_000_000),
        (Priority::Low, 50_000_000),
        (Priority::Low, 200_000_000),
        (Priority::Normal, 50_000_000),
        (Priority::High, 50_000_000),
    ] {
        let floor = floor_bytes_per_second as f64 / 1e6;
        let pace = Pace { priority, floor_bytes_per_second };
        let beside = measure(CLIENTS, true, Some(pace));
        let case = |what: &str| {
            format!("{what}, {} priority, {floor:.0} MB/s, {place}", pace.priority.name())
        };
        emit(&case("rebuild"), "MB/s", beside.rebuilt_mb_per_s, "its floor", floor);
        let alone = "no rebuild, 1 lost";
        emit(&case("p99 beside a rebuild"), "us", beside.p99_us, alone, degraded.p99_us);
        let name = case("requests beside a rebuild");
        emit(&name, "requests/s", beside.requests_per_s, alone, degraded.requests_per_s);
    }
    let pace = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
    let alone = measure(0, true, Some(pace)).rebuilt_mb_per_s;
    let case = "rebuild, no clients, RAID 6 6+2, 8 modelled D3700";
    emit(case, "MB/s", alone, "sequential writes of one drive", 660.0);
}
