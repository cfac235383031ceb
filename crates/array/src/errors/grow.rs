//! Why an array does not grow.

use crate::errors::replace::ReplaceError;
use crate::geometry::level::Level;

/// Why an array does not grow: one line for the user. Devices are numbered from 1, as they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// The array has no durable state.
    #[error("an array without superblocks cannot grow: create a new one")]
    Bare,
    /// The level cannot have one parity row more.
    #[error(
        "{level} cannot be given another parity: 5, 6, 7.3, N+M, 50 and 60 can, and 1 can be \
         given another copy"
    )]
    Level {
        /// The level of the array.
        level: Level,
    },
    /// The level gets no capacity by an added member.
    #[error("{level} cannot be given a member for capacity: 5, 6, 7.3 and N+M can")]
    FixedWidth {
        /// The level of the array.
        level: Level,
    },
    /// Sections that are moved have no dirty regions to tell which checksums are right.
    #[error("an array with --integrity cannot be given a member for capacity: make a wider one")]
    Integrity,
    /// There is no room to move the first stripes.
    #[error("members of {rows} chunks are too small for an expansion: {needed} are needed")]
    TooShort {
        /// Chunks of a member.
        rows: u64,
        /// The least there must be.
        needed: u64,
    },
    /// The array moves to more members.
    #[error("the capacity of the array is being expanded: wait until that has ended")]
    Reshaping,
    /// Not one device for each group.
    #[error("{given} devices given: another parity takes {needed}, one for each group")]
    Devices {
        /// How many were given.
        given: usize,
        /// The groups.
        needed: usize,
    },
    /// Members are missing, or do not have everything yet.
    #[error("members are missing or being filled: replace them and wait for the rebuild first")]
    Degraded,
    /// Parity is still made anew after a crash.
    #[error("the parity of {regions} regions is still being recomputed: wait until it has been")]
    NeedsResync {
        /// The regions.
        regions: u64,
    },
    /// The journal is on a device of its own, whose ring is for transactions of the old width.
    #[error(
        "the journal is on a device: put it back on the members, grow, then put it there again"
    )]
    JournalDevice,
    /// Writes have failed, and stripes are half written.
    #[error("writes to the array have failed: look at its members, and assemble it again, first")]
    Failed,
    /// The array is growing at this moment.
    #[error("the array is already growing: wait until that has ended")]
    Growing,
    /// A device does not suit.
    #[error("device {}: {error}", .device + 1)]
    Device {
        /// The position of the device, from 0.
        device: usize,
        /// Why.
        error: ReplaceError,
    },
    /// A device has a cache that forgets, and clients were told that there is none.
    #[error("device {}: it has a volatile cache, and the others have none: take another", .device + 1)]
    VolatileCache {
        /// The position of the device, from 0.
        device: usize,
    },
    /// A device failed when the array had grown.
    #[error("the array has grown, and member {member} of it has failed at once: replace it")]
    Lost {
        /// The new member.
        member: usize,
    },
}
