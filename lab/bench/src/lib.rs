//! Benchmarks: programs that print one JSON line a case, which `cargo xtask bench` reads.
//!
//! | program | what it measures |
//! | --- | --- |
//! | `cache` | the cache in process, on memory and on modelled drives |
//! | `start` | the start of a full cache after an unclean stop |
//! | `array` | arrays in process, on memory and on modelled drives |
//! | `destage` | I/Os of an array's drives for each line that a cache destages |
//! | `parity` | the parity kernels beside ISA-L |
//! | `instructions` | requests of one kind, for callgrind to count (`scripts/instructions.sh`) |
//! | `worst` | a cache where caches are worst, on modelled drives |
//! | `worst_files` | the same on files, by the clock |
//! | `serve_memory` | nothing by itself: serves a memory drive to load generators |

pub mod worst;

use voltier_block::DriveControl;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_ring::Handle;

/// How benchmarks open a cache: in write-back mode.
pub fn write_back() -> OpenOptions {
    OpenOptions::with(Settings { mode: Mode::WriteBack, ..Settings::default() })
}

/// A new write-back cache.
pub async fn new_cache<S: DriveControl, O: DriveControl>(
    handle: &Handle,
    ssd: S,
    origin: O,
    line_size: LineSize,
    policy: PolicyKind,
) -> Cache<S, O> {
    let format = FormatOptions { line_size, policy, uuid: [3; 16] };
    Cache::format(&ssd, &origin, &format).await.expect("the SSD takes a cache");
    let opened = Cache::open(handle, ssd, origin, write_back()).await;
    opened.expect("the cache opens").0
}

/// Prints a case: a figure of ours beside that of a peer, with one digit behind the point.
pub fn emit(case: &str, unit: &str, ours: f64, peer: &str, theirs: f64) {
    emit_digits(1, case, unit, ours, peer, theirs);
}

/// [`emit`] with so many digits behind the point.
pub fn emit_digits(digits: usize, case: &str, unit: &str, ours: f64, peer: &str, theirs: f64) {
    println!(
        "{{\"case\":\"{case}\",\"unit\":\"{unit}\",\"ours\":{ours:.digits$},\"peer\":\"{peer}\",\
         \"theirs\":{theirs:.digits$}}}"
    );
}
