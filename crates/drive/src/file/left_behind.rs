//! Drives that a device was let go of while they had requests.
//!
//! A drive that hangs keeps the requests of a device which nobody has any more. When the drive answers at
//! last, it does the writes among them: over what was written since, if somebody opened it meanwhile. So
//! nobody opens it before. The kernel's own claims (a lock, an exclusive open) are as good where they work,
//! and do not say why.

use std::sync::{Mutex, PoisonError};

use voltier_ring::FdWatch;

/// A file or a block device, by whichever path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    pub(super) is_block_device: bool,
    /// Device and inode of a file; the number of a block device.
    pub(super) number: (u64, u64),
}

/// Of all cores: a drive that one of them let go may be opened on another.
static LEFT: Mutex<Vec<(FileIdentity, FdWatch)>> = Mutex::new(Vec::new());

fn with_left<T>(look: impl FnOnce(&mut Vec<(FileIdentity, FdWatch)>) -> T) -> T {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|(_, descriptor)| descriptor.holders() > 0);
    look(&mut left)
}

/// A device lets its descriptor go, which it still holds.
pub(super) fn note(drive: FileIdentity, descriptor: FdWatch) {
    if descriptor.holders() > 1 {
        keep(drive, descriptor);
    }
}

/// A device has failed with its domain, and its descriptor stays open for a while.
pub(super) fn keep(drive: FileIdentity, descriptor: FdWatch) {
    with_left(|left| left.push((drive, descriptor)));
}

/// Whether any drive has requests of a device that was let go.
pub(super) fn are_any() -> bool {
    with_left(|left| !left.is_empty())
}

/// Whether a drive has requests of a device that was let go.
pub(super) fn is_undrained(drive: FileIdentity) -> bool {
    with_left(|left| left.iter().any(|(own, _)| *own == drive))
}
