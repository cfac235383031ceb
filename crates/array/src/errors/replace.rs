//! Why a device does not become a member.

use voltier_block::IoError;

/// Why a device does not come to an array: one line for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// There is no such member.
    #[error("there is no member {member}: the array has {members}, from 0")]
    NoSuchMember {
        /// The number given.
        member: usize,
        /// How many there are.
        members: usize,
    },
    /// The device is too small.
    #[error("the device has {has} sectors and {needed} are needed: take a larger one")]
    TooSmall {
        /// The device's size.
        has: u64,
        /// The least it must have.
        needed: u64,
    },
    /// The device's blocks are larger than those of the array.
    #[error("the device has blocks of {has} bytes and the array of {array}: take another device")]
    Blocks {
        /// The device's block, in bytes.
        has: u32,
        /// The array's.
        array: u32,
    },
    /// The device does not take a chunk at once.
    #[error("the device takes {bytes} bytes at once, less than a chunk: take another device")]
    Transfer {
        /// The longest transfer of the device, in bytes.
        bytes: u32,
    },
    /// The device cannot be written.
    #[error("the device is read-only: make it writable, or take another")]
    ReadOnly,
    /// Another member has this uuid.
    #[error("a member of the array has this uuid already: give the device one of its own")]
    Uuid,
    /// The member is being filled already.
    #[error("member {member} is being rebuilt or replaced: wait, or fail it first")]
    Busy {
        /// The member.
        member: usize,
    },
    /// A spare is wanted back that is on its way into a place.
    #[error(
        "it takes the place of member {member} just now: replace that member by another device instead"
    )]
    SpareTaken {
        /// The place.
        member: usize,
    },
    /// The member's content cannot be computed.
    #[error("member {member} is lost and there is not enough redundancy to rebuild it")]
    Hopeless {
        /// The member.
        member: usize,
    },
    /// The array is stopped.
    #[error("the array is stopped: assemble it first")]
    Stopped,
    /// The array has no durable state, so the array does not note who is lost.
    #[error("a bare array takes no spares: replace the member")]
    Bare,
    /// No member is being filled.
    #[error("nothing is to be rebuilt: replace a lost member, or add a spare")]
    NothingToRebuild,
    /// A scrub is at work.
    #[error("a scrub is running: wait for it, or cancel it")]
    ScrubRuns,
    /// The drive has not ended requests from when it was a member: they would land over newer data.
    #[error("the drive still has {requests} old requests in flight: wait until it answers")]
    Undrained {
        /// How many.
        requests: usize,
    },
    /// The device failed while it was taken in.
    #[error("{0}, at the new device: take another")]
    Device(IoError),
}
