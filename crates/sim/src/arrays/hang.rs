//! Drives that answer nothing for a time: in which worlds of arrays.

use voltier_array::HealthPolicy;
use voltier_block::Prng;

use crate::hang_times::DEADLINE_NS;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const HANG: u64 = 0x6875_6e67_0010_554b;
/// One seed in so many has drives that hang.
const HANG_ONE_IN: u64 = 4;

/// Whether drives hang in the world of a seed.
pub(super) fn hangs(seed: u64) -> bool {
    Prng::new(seed ^ HANG).one_in(HANG_ONE_IN)
}

/// The limits of members of arrays in such worlds.
pub(crate) fn policy() -> HealthPolicy {
    HealthPolicy { deadline_ns: DEADLINE_NS, ..HealthPolicy::default() }
}
