//! The bound of what a loss of the SSD may take, as it is on record.

use serde::{Deserialize, Serialize};

/// A bound of what the disk lacks. Programs of before there was one take settings without it, and refuse others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxUnshipped {
    /// The age of the oldest write that the disk lacks, in seconds, when a write is acknowledged; 0 for any.
    pub age_s: u64,
    /// Bytes that the disk lacks; 0 for any number.
    pub bytes: u64,
}

impl MaxUnshipped {
    /// Whether there is no bound.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}
