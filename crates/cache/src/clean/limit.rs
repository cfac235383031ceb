//! The limit on what is written back, in bytes a second: for a line or a cluster that others use, too.
//!
//! Batches end early enough for one to be worth a second. The next one begins when the last one is paid for, so no
//! idle time is saved up for a burst.

use std::cell::Cell;

use voltier_block::Nanos;

const SECOND_NS: u128 = 1_000_000_000;

/// The last batch, as far as a limit counts.
#[derive(Default)]
pub(super) struct RateLimit {
    begun_ns: Cell<Nanos>,
    bytes: Cell<u64>,
}

impl RateLimit {
    /// Notes a batch: when it began, and the bytes that it wrote.
    pub(super) fn note(&self, begun_ns: Nanos, bytes: u64) {
        self.begun_ns.set(begun_ns);
        self.bytes.set(bytes);
    }

    /// When the next batch may begin by this limit, in bytes a second; `None` for now.
    pub(super) fn next_ns(&self, now: Nanos, rate: u64) -> Option<Nanos> {
        let paid_ns = u128::from(self.bytes.get()) * SECOND_NS / u128::from(rate.max(1));
        let paid_ns = Nanos::try_from(paid_ns).unwrap_or(Nanos::MAX);
        let next_ns = self.begun_ns.get().saturating_add(paid_ns);
        (rate > 0 && now < next_ns).then_some(next_ns)
    }

    /// Lines of a batch under this limit: at least one and at most `lines_max`.
    pub(super) fn lines(rate: u64, line_bytes: u64, lines_max: usize) -> usize {
        match rate {
            0 => lines_max,
            rate => {
                usize::try_from(rate / line_bytes).map_or(lines_max, |it| it.clamp(1, lines_max))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_batch_is_paid_for_before_the_next_one_and_idle_time_is_not_saved_up() {
        let limit = RateLimit::default();
        assert_eq!(limit.next_ns(0, 1000), None);
        limit.note(5 * SECOND, 3000);
        assert_eq!(limit.next_ns(6 * SECOND, 1000), Some(8 * SECOND));
        assert_eq!(
            limit.next_ns(6 * SECOND, 2000),
            Some(6 * SECOND + SECOND / 2),
            "a change counts at once"
        );
        assert_eq!(limit.next_ns(6 * SECOND, 0), None);
        assert_eq!(limit.next_ns(8 * SECOND, 1000), None);
        limit.note(100 * SECOND, 3000);
        assert_eq!(limit.next_ns(100 * SECOND, 1000), Some(103 * SECOND));
        limit.note(SECOND, u64::MAX);
        assert_eq!(limit.next_ns(SECOND, 1), Some(Nanos::MAX));
    }

    #[test]
    fn a_batch_has_a_second_of_lines_and_never_none() {
        assert_eq!(RateLimit::lines(0, 4096, 1024), 1024);
        assert_eq!(RateLimit::lines(1 << 20, 4096, 1024), 256);
        assert_eq!(RateLimit::lines(1 << 30, 4096, 1024), 1024);
        assert_eq!(RateLimit::lines(1, 65536, 1024), 1);
    }
}
