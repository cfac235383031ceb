//! Whole-file locks, taken without waiting for whoever really holds them.

use std::fs::File;
use std::time::Duration;

use rustix::fs::FlockOperation;

/// A process between fork and exec shares the locks of its parent for a moment. A lock just given back
/// can look taken for as long as that lasts, a few milliseconds on a busy machine.
pub(crate) const TRIES: u32 = 20;
pub(crate) const TRY_STEP: Duration = Duration::from_millis(5);

/// Locks a file for this process alone; false when somebody else has it.
pub(crate) fn try_exclusive(file: &File) -> bool {
    (0..TRIES).any(|attempt| {
        if attempt > 0 {
            std::thread::park_timeout(TRY_STEP);
        }
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}
