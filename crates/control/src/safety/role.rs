//! The parts that devices are examined for.

/// The part that a device is about to have, and so the findings that count against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The data stay in place: only use by others, and a cache or a member of ours on it, count.
    Origin,
    /// The device will be overwritten.
    Cache,
    /// The device will be overwritten, and waits for that as a spare. The label of a spare does not
    /// count: whoever reads it knows whose it is.
    Spare,
}
