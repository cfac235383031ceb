//! Why a device cannot take the journal.

use voltier_block::IoError;

/// Why a device cannot take the journal: one line for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// There is no journal to be put anywhere.
    #[error("the array has no journal: only one made with consistency `journal`, and parity, has")]
    NoJournal,
    /// The device is too small.
    #[error("the device has {has_kib} KiB and a journal of this array needs {needed_kib} KiB")]
    TooSmall {
        /// The device's size, in KiB.
        has_kib: u64,
        /// The least it must have.
        needed_kib: u64,
    },
    /// The device's blocks are larger than those of the array.
    #[error("the device has blocks of {has} bytes and the array of {array}: take another device")]
    Blocks {
        /// The device's block, in bytes.
        has: u32,
        /// The array's.
        array: u32,
    },
    /// The device cannot be written.
    #[error("the device is read-only: make it writable, or take another")]
    ReadOnly,
    /// The drive has not ended requests of before: they would land over newer data.
    #[error("the drive still has old requests in flight: wait until it answers, or take another")]
    Undrained,
    /// The device has the uuid of the one before.
    #[error("the journal device has this uuid already: give the new one a uuid of its own")]
    Uuid,
    /// The device failed while it was taken in.
    #[error("{0}, at the journal device: take another")]
    Device(IoError),
    /// The device cannot be read, and only the device has what was begun.
    #[error(
        "the journal device is damaged, and the array was not stopped: leave it out and force the \
         start, then check the data"
    )]
    Damaged,
}
