//! The cases of `cargo xtask bench worst`: one JSON line a case. Each is a cache beside the plain disk, on
//! modelled drives and in virtual time: an answer takes seconds, and is the same each time.
//!
//! A case is a pattern, a direction, a mode, how much is cached, an offset, a size and a depth. An argument
//! limits the cases to those whose name has it.

use std::rc::Rc;

use voltier_bench::emit;
use voltier_bench::worst::{Case, Selection, State};
use voltier_block::{BlockDevice, Buf, DriveControl, Durability, Lba, MIB, Nanos, SECTOR_BYTES};
use voltier_cache::{Cache, Mode};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const DISK: &str = "hdd-7200";
const SSD: &str = "ssd-sata";
const DISK_BYTES: u64 = 256 * MIB;
const SSD_BYTES: u64 = 192 * MIB;
/// A random request costs the disk a seek.
const CASES: Selection<'static> = Selection {
    offsets: &[0, 512, 32256],
    sizes: &[512, 4096, 16384, 65536, 131_072, 1_048_576],
    depths: &[1, 8, 32],
    random_max: 400,
    sequential_max: 3000,
    region_max: 24 * MIB,
};
/// Until what came before has come to rest, but the cleaner: it begins when clients are idle for longer.
const REST_NS: Nanos = 500_000_000;

/// Has the cache hold what the case says.
async fn prepare<S: DriveControl, O: DriveControl>(
    case: &Case,
    handle: &Handle,
    cache: &Cache<S, O>,
) {
    let (_, is_dirty) = case.state.share();
    let (starts, bytes) = case.pieces();
    for start in starts {
        let (at, buf) = (Lba(start / SECTOR_BYTES), Buf::zeroed(bytes as usize));
        if is_dirty {
            let written = cache.write(at, buf.into(), Durability::Cached).await;
            written.expect("a write works");
        } else {
            drop(cache.read(at, buf).await.expect("a read works"));
        }
    }
    if !is_dirty {
        handle.sleep(30 * REST_NS).await;
    }
}

/// The head of a disk is elsewhere at the beginning, or the first request of one run would wait for a revolution
/// and that of another would not.
async fn move_away<D: BlockDevice>(handle: &Handle, disk: &D) {
    let away = Lba(DISK_BYTES / SECTOR_BYTES - 8);
    drop(disk.read(away, Buf::new(4096)).await.expect("a read works"));
    handle.sleep(REST_NS).await;
}

fn drive(handle: &Handle, profile: &str, bytes: u64) -> ModelDevice<MemoryDevice> {
    let profile = Profile::find(profile).expect("a profile");
    ModelDevice::new(handle.clone(), profile, MemoryDevice::new(bytes))
}

fn measure(case: Case) {
    let rate_of = |profile, bytes| {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let bare = drive(&handle, profile, bytes);
            if bytes == DISK_BYTES {
                move_away(&handle, &bare).await;
            }
            case.rate(&handle, Rc::new(bare)).await
        })
    };
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let ours = executor.block_on(async move {
        let ssd = drive(&handle, SSD, SSD_BYTES);
        let disk = drive(&handle, DISK, DISK_BYTES);
        let cache = case.cache(&handle, ssd, disk, 1).await;
        prepare(&case, &handle, &cache).await;
        move_away(&handle, cache.origin()).await;
        case.rate(&handle, cache).await
    });
    // What is on the SSD is served by it alone.
    let is_ssd = match (case.is_write, case.state) {
        (true, _) => case.mode.writes_back(),
        (false, state) => state == State::Clean(100),
    };
    let disk = rate_of(DISK, DISK_BYTES) / 1e6;
    let name = case.to_string();
    emit(&name, "MB/s", ours / 1e6, "the plain disk", disk);
    if is_ssd {
        emit(&name, "MB/s", ours / 1e6, "the bare SSD", rate_of(SSD, SSD_BYTES) / 1e6);
    }
}

/// A stream of writes four times as long as the SSD: bytes a second until the last one is answered, and for the
/// plain disk until it is on the medium.
fn measure_fill(mode: Mode, bytes: u64, depth: u64) {
    const FILL_SSD_BYTES: u64 = 64 * MIB;
    let case = Case {
        is_random: false,
        is_write: true,
        mode,
        state: State::Cold,
        offset: 0,
        bytes,
        depth,
        requests_max: u64::MAX,
        region_max: 4 * FILL_SSD_BYTES,
    };
    let run = |is_cached: bool| {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let disk = drive(&handle, DISK, 2 * DISK_BYTES);
            move_away(&handle, &disk).await;
            if !is_cached {
                return case.send(&handle, Rc::new(disk), case.starts(), true).await;
            }
            let ssd = drive(&handle, SSD, FILL_SSD_BYTES);
            let cache = case.cache(&handle, ssd, disk, 1).await;
            case.send(&handle, cache, case.starts(), false).await
        })
    };
    let name = format!("fill {mode} of four times the SSD, size {bytes}, depth {depth}");
    emit(&name, "MB/s", run(true) / 1e6, "the plain disk", run(false) / 1e6);
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let cases = CASES.cases().into_iter().filter(|case| case.to_string().contains(&wanted));
    cases.for_each(measure);
    if "fill".contains(&wanted) {
        for mode in [Mode::WriteThrough, Mode::WriteBack] {
            for (bytes, depth) in [(4096, 32), (131_072, 1), (131_072, 8), (1_048_576, 8)] {
                measure_fill(mode, bytes, depth);
            }
        }
    }
}
