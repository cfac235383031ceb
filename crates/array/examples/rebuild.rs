//! Rebuild rate and what requests feel of it, in virtual time on modelled drives: RAID 6 over eight
//! D3700, 4 KiB requests of which seven in ten are reads, priorities and floors side by side.
//!
//! `cargo run --release -p voltier-array --example rebuild`

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{Array, BackgroundTask, Geometry, Layout, Level, Pace, Priority};
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

/// What clients saw.
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

/// One row: without a rebuild if there is no pace.
fn measure(clients: u64, pace: Option<Pace>) {
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
        if let Some(pace) = pace {
            array.fail(3).expect("two may go");
            array.set_pace(BackgroundTask::Rebuild, pace);
            array.replace(3, drive(&handle), [0; 16]).await.expect("it suits");
        }
        if clients > 0 {
            handle.sleep(WARM_NS).await;
        }
        seen.latencies_ns.borrow_mut().clear();
        let (from, done) = (handle.now(), array.rebuild_status().progress.done_bytes);
        // A short rebuild ends before the time is over.
        while handle.now() < from + MEASURED_NS
            && (pace.is_none() || array.rebuild_status().progress.is_running)
        {
            handle.sleep(WARM_NS / 100).await;
        }
        let status = array.rebuild_status().progress;
        let done = if status.is_running { status.done_bytes } else { MEMBER_BYTES } - done;
        let seconds = (handle.now() - from) as f64 / 1e9;
        let rebuilt = if pace.is_some() { done as f64 / 1e6 / seconds } else { 0.0 };
        seen.is_over.set(true);
        for task in tasks {
            task.await;
        }
        let mut latencies = seen.latencies_ns.take();
        latencies.sort_unstable();
        let percentile = |part: usize| {
            latencies.get(latencies.len() * part / 1000).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        let name = pace.map_or("no rebuild".to_owned(), |pace| {
            format!("{}, {} MB/s", pace.priority.name(), pace.floor_bytes_per_second / 1_000_000)
        });
        println!(
            "{clients:>7} | {name:<18} | {rebuilt:>12.0} | {:>10.0} | {:>9.0} | {:>9.0}",
            latencies.len() as f64 / seconds,
            percentile(500),
            percentile(990),
        );
        array.cancel(BackgroundTask::Rebuild);
        array.ended(BackgroundTask::Rebuild).await;
    });
}

fn main() {
    println!("clients | priority and floor | rebuild MB/s | requests/s | median us |    p99 us");
    measure(CLIENTS, None);
    for (priority, floor_bytes_per_second) in [
        (Priority::Idle, 10_000_000),
        (Priority::Low, 50_000_000),
        (Priority::Low, 100_000_000),
        (Priority::Low, 200_000_000),
        (Priority::Normal, 10_000_000),
        (Priority::High, 0),
    ] {
        measure(CLIENTS, Some(Pace { priority, floor_bytes_per_second }));
    }
    measure(0, Some(Pace { priority: Priority::High, floor_bytes_per_second: 0 }));
}
