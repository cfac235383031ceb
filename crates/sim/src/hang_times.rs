//! For how long a drive answers nothing, and how long a client waits then.

use voltier_block::{Nanos, Prng};

/// The deadline in worlds where drives hang.
pub(crate) const DEADLINE_NS: Nanos = 2_000_000_000;
/// So many deadlines a request of a client takes at most. A request may meet several drives that hang, one
/// after the other.
const PATIENCE: Nanos = 30;

/// For how long a drive answers nothing: less than the deadline, about as long, longer, or longer than any
/// client waits.
pub(crate) fn draw_time_ns(dice: &mut Prng) -> Nanos {
    let most = *dice.pick(&[DEADLINE_NS / 8, DEADLINE_NS, 2 * DEADLINE_NS, 4 * DEADLINE_NS]);
    let time_ns = if dice.one_in(8) { 2 * PATIENCE * DEADLINE_NS } else { most };
    time_ns / 2 + dice.below(time_ns)
}

/// A request of a client has taken so long, in a world where drives hang.
///
/// # Panics
/// When the time is longer than any drive that hangs can excuse.
pub(crate) fn check_patience(took_ns: Nanos) {
    let is_bounded = took_ns < PATIENCE * DEADLINE_NS;
    assert!(is_bounded, "a request stands still for {} ms", took_ns / 1_000_000);
}
