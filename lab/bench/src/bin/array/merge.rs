//! Small writes merged, on modelled drives in virtual time: what a stream of them gains, and that others
//! lose nothing.

use voltier_array::{Array, Consistency, MergeMode, MergePolicy};
use voltier_bench::emit;
use voltier_block::SECTOR_BYTES;
use voltier_ring::{Executor, NoFiles};

use crate::drives::{drive, write_every_region};
use crate::load::{Load, Work, rate};
use crate::{KIB, raid_6};

const DRIVES: usize = 12;
const CHUNK_BYTES: u64 = 16 * KIB;
/// Some thousand regions; every one is written first.
const DRIVE_BYTES: u64 = 4 << 30;
const SECONDS: f64 = 0.3;

/// The figures of a load on an array whose small writes are merged so.
struct Made {
    /// Requests a second.
    rate: f64,
    /// I/Os of drives for a hundred of them, the journal's included.
    ios: f64,
}

fn made(mode: MergeMode, consistency: Consistency, load: Load) -> Made {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let options = raid_6(DRIVES, CHUNK_BYTES, consistency);
        let members = (0..DRIVES).map(|_| drive(&handle, DRIVE_BYTES)).collect();
        let array = Array::create(&handle, &options, members).await.expect("possible");
        write_every_region(&handle, &array, CHUNK_BYTES).await;
        array.set_merge_policy(MergePolicy { mode, ..MergePolicy::default() });
        let span_bytes = array.geometry().sectors() * SECTOR_BYTES;
        let before = array.counts();
        let rate = rate(&handle, std::slice::from_ref(&array), load, span_bytes, SECONDS).await;
        let after = array.counts();
        let all = |counts: voltier_array::Counts| {
            counts.member_reads + counts.member_writes + counts.journal_writes
        };
        let writes = (after.writes - before.writes) as f64;
        Made { rate, ios: (all(after) - all(before)) as f64 / writes * 100.0 }
    })
}

pub(crate) fn cases() {
    let place = "RAID 6 10+2, 16k chunks, 12 modelled D3700";
    for consistency in [Consistency::Bitmap, Consistency::Journal] {
        let word = if consistency == Consistency::Bitmap { "bitmap" } else { "journal" };
        for depth in [4, 32, 128] {
            let load = Load { depth, ..Load::sequential(Work::Write, 4 * KIB) };
            let off = made(MergeMode::Off, consistency, load);
            for mode in [MergeMode::Adaptive, MergeMode::Always] {
                let merged = made(mode, consistency, load);
                let name = mode.name();
                let case =
                    format!("write 4k in sequence, {depth} at once, {name}, {place}, {word}");
                emit(&case, "requests/s", merged.rate, "merge=off", off.rate);
                emit(&case, "drive I/Os of 100", merged.ios, "merge=off", off.ios);
            }
        }
    }
    for (what, load) in [
        ("in sequence, 1 at once", Load { depth: 1, ..Load::sequential(Work::Write, 4 * KIB) }),
        ("at random, 1 at once", Load { depth: 1, ..Load::random(Work::Write) }),
        ("at random, 128 at once", Load { depth: 128, ..Load::random(Work::Write) }),
    ] {
        let [off, merged] = [MergeMode::Off, MergeMode::Adaptive]
            .map(|mode| made(mode, Consistency::Journal, load).rate);
        let case = format!("write 4k {what}, adaptive, {place}, journal");
        emit(&case, "requests/s", merged, "merge=off", off);
    }
}
