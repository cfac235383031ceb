//! The export that the fuzzed server has.

/// Size of the exported volume: small, so that offsets near its end are found.
pub(super) const VOLUME_BYTES: u64 = 256 << 10;
pub(super) const NAME: &str = "disk";
pub(super) const DESCRIPTION: &str = "a fuzzed disk";
