//! The interference of reads and writes of one drive.
//!
//! A mixture on flash costs neither the sum of its parts nor a fixed share more. Garbage collection and
//! programming get in the way of reads, and buffers hide some of that. The sum depends on the mixture
//! and on the size of the requests, so it is a measured table of both.

/// How many requests the recent mix goes back: beyond the swings in which layers above first read,
/// then write.
const RECENT: u64 = 1024;
/// One, of shares in fixed point.
const ONE: u64 = 1 << 32;

/// Costs of requests in mixtures, in thousandths of what they are by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interference {
    /// The mixtures of the columns: reads among a hundred requests, ascending.
    pub read_percents: &'static [u64],
    /// One row for each size of request, ascending.
    pub rows: &'static [InterferenceRow],
}

/// Costs of requests of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterferenceRow {
    /// The size, in bytes.
    pub bytes: u64,
    /// On the command path, for each mixture: what limits a deep queue.
    pub path_permille: &'static [u64],
    /// At a die, for each mixture: what a read on an idle drive waits for. Empty: as it is.
    pub die_permille: &'static [u64],
}

impl Interference {
    /// On the path and at the die. Values between the columns go by share, between the rows by the
    /// logarithm of the size, beyond the last ones as there.
    pub(super) fn permille(&self, mix: &RecentMix, bytes: u64) -> (u64, u64) {
        let percent = mix.reads * 100;
        let (left, across) = between(self.read_percents, percent, |value| value * ONE);
        let logarithm = fixed_log2(bytes.max(1));
        let (row, down) = between(self.rows, logarithm, |row| fixed_log2(row.bytes.max(1)));
        let at = |table: &[u64]| match table {
            [] => 1000,
            table => blend(table[left], table[(left + 1).min(table.len() - 1)], across),
        };
        let (low, high) = (&self.rows[row], &self.rows[(row + 1).min(self.rows.len() - 1)]);
        (
            blend(at(low.path_permille), at(high.path_permille), down),
            blend(at(low.die_permille), at(high.die_permille), down),
        )
    }
}

/// The last entry not above `value` and how far `value` is on the way to the next, of [`ONE`].
fn between<T>(entries: &[T], value: u64, key: impl Fn(&T) -> u64) -> (usize, u64) {
    let above = entries.partition_point(|entry| key(entry) <= value);
    if above == 0 {
        return (0, 0);
    }
    if above == entries.len() {
        return (above - 1, 0);
    }
    let (low, high) = (key(&entries[above - 1]), key(&entries[above]));
    let share = u128::from(value - low) * u128::from(ONE) / u128::from(high - low);
    (above - 1, share as u64)
}

fn blend(from: u64, to: u64, share: u64) -> u64 {
    (from * (ONE - share) + to * share) / ONE
}

/// The binary logarithm with 24 bits behind the point, linear between powers of two.
fn fixed_log2(value: u64) -> u64 {
    let whole = u64::from(value.ilog2());
    let rest = u128::from(value - (1 << whole)) << 24 >> whole;
    (whole << 24) + rest as u64
}

/// The share of reads among the latest requests; those longer ago count less and less.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentMix {
    /// Of [`ONE`].
    reads: u64,
    /// Requests so far, up to [`RECENT`].
    known: u64,
}

impl RecentMix {
    /// Takes a request into account.
    pub(super) fn note(&mut self, is_read: bool) {
        self.known = RECENT.min(self.known + 1);
        let now = if is_read { ONE } else { 0 };
        self.reads = self.reads - self.reads / self.known + now / self.known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Interference = Interference {
        read_percents: &[0, 50, 100],
        rows: &[
            InterferenceRow { bytes: 4096, path_permille: &[1000, 2000, 1000], die_permille: &[] },
            InterferenceRow {
                bytes: 16384,
                path_permille: &[1000, 4000, 1000],
                die_permille: &[1000, 3000, 1000],
            },
        ],
    };

    fn mix(percent: u64) -> RecentMix {
        RecentMix { reads: ONE * percent / 100, known: RECENT }
    }

    #[test]
    fn between_the_measured_mixtures_and_sizes_costs_go_gradually() {
        for (percent, bytes, expected) in [
            (0, 4096, (1000, 1000)),
            (50, 4096, (2000, 1000)),
            (25, 4096, (1500, 1000)),
            (50, 8192, (3000, 2000)),
            (50, 512, (2000, 1000)),
            (50, 1 << 20, (4000, 3000)),
            (100, 8192, (1000, 1000)),
        ] {
            let (path, die) = TABLE.permille(&mix(percent), bytes);
            assert!(
                path.abs_diff(expected.0) <= 1 && die.abs_diff(expected.1) <= 1,
                "{path} {die}"
            );
        }
    }

    #[test]
    fn the_recent_mix_follows_what_comes_and_begins_with_the_first() {
        let mut recent = RecentMix::default();
        recent.note(false);
        assert_eq!(recent.reads, 0);
        for number in 0..4096 {
            recent.note(number % 4 == 0);
        }
        assert!(recent.reads.abs_diff(ONE / 4) < ONE / 100, "{recent:?}");
        for _ in 0..10 * RECENT {
            recent.note(true);
        }
        assert!(recent.reads > ONE / 1000 * 999 && recent.reads <= ONE, "{recent:?}");
    }
}
