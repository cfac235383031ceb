//! The choice of small writes that are merged, and of how long they wait.

use voltier_block::Nanos;

voltier_block::words! {
    /// The choice of writes of less than a stripe that wait for others.
    #[derive(Default)]
    pub enum MergeMode, "not a way to merge" {
        /// None.
        #[default]
        Off = "off",
        /// Those of sequential streams with several writes under way, as long as that pays.
        Adaptive = "adaptive",
        /// All.
        Always = "always",
    }
}

/// How small writes are merged. For levels with parity; copies and RAID 0 have nothing to gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergePolicy {
    /// The choice of writes that wait.
    pub mode: MergeMode,
    /// How long for the next one, in nanoseconds.
    pub wait_ns: Nanos,
    /// How long in all, in nanoseconds.
    pub max_ns: Nanos,
}

impl Default for MergePolicy {
    fn default() -> Self {
        Self { mode: MergeMode::Off, wait_ns: 100_000, max_ns: 10_000_000 }
    }
}
