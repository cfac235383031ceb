//! Latencies in fio's own bins, so that figures of fio and of ours merge without loss.
//!
//! There are 29 groups of 64 bins. Values below 128 ns have a bin each; above that a bin is at most
//! 1/64 of its value wide. (See fio's `stat.h`, `FIO_IO_U_PLAT_*`; benchmarks by fio's json+ name a bin
//! by its midpoint.)

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bins of a histogram.
pub const BINS: usize = 29 * 64;

/// Bits of a value that choose the bin within its group.
const GROUP_BITS: u32 = 6;

/// Counts of latencies per bin; only bins that hold something are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<u16, u64>", into = "BTreeMap<u16, u64>")]
pub struct Histogram {
    counts: BTreeMap<u16, u64>,
}

impl TryFrom<BTreeMap<u16, u64>> for Histogram {
    type Error = String;

    fn try_from(counts: BTreeMap<u16, u64>) -> Result<Self, String> {
        if let Some(bin) = counts.keys().find(|bin| usize::from(**bin) >= BINS) {
            return Err(format!("a histogram has no bin {bin}"));
        }
        let total = counts.values().try_fold(0_u64, |sum, count| sum.checked_add(*count));
        if total.is_none() {
            return Err("a histogram counts more than 2^64".to_owned());
        }
        Ok(Histogram { counts })
    }
}

impl From<Histogram> for BTreeMap<u16, u64> {
    fn from(histogram: Histogram) -> Self {
        histogram.counts
    }
}

impl Histogram {
    /// The bin of a latency of `ns`.
    pub fn bin_of(ns: u64) -> usize {
        let top_bit = 63 - (ns | 1).leading_zeros();
        if top_bit <= GROUP_BITS {
            return ns as usize;
        }
        let shift = top_bit - GROUP_BITS;
        let group = (shift as usize + 1) << GROUP_BITS;
        (group + ((ns >> shift) & 63) as usize).min(BINS - 1)
    }

    /// The midpoint of a bin in nanoseconds, as fio names it.
    pub fn midpoint_ns(bin: usize) -> u64 {
        if bin < 128 {
            return bin as u64;
        }
        let shift = (bin >> GROUP_BITS) - 1;
        let base = 1_u64 << (shift as u32 + GROUP_BITS);
        base + ((bin as u64 & 63) << shift) + (1_u64 << shift) / 2
    }

    /// Counts one latency.
    pub fn record(&mut self, ns: u64) {
        self.add(Histogram::bin_of(ns), 1);
    }

    /// Adds `count` latencies to a bin.
    ///
    /// # Panics
    /// When there is no such bin.
    pub fn add(&mut self, bin: usize, count: u64) {
        assert!(bin < BINS, "bin {bin} of {BINS}");
        if count > 0 {
            let sum = self.counts.entry(bin as u16).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Adds another histogram: the result is that of all latencies together.
    pub fn merge(&mut self, other: &Histogram) {
        for (bin, count) in &other.counts {
            let sum = self.counts.entry(*bin).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// Latencies counted.
    pub fn total(&self) -> u64 {
        self.counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Bins that hold something, in order: bin and count.
    pub fn bins(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().map(|(bin, count)| (usize::from(*bin), *count))
    }

    /// The midpoint of the first bin at which `percent` of all latencies are reached, as fio
    /// computes it; `None` of an empty histogram.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let wanted = percent / 100.0 * self.total() as f64;
        let mut seen = 0_u64;
        let mut last = None;
        for (bin, count) in self.bins() {
            seen = seen.saturating_add(count);
            last = Some(Histogram::midpoint_ns(bin));
            if seen as f64 >= wanted {
                break;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_have_bins_of_their_own() {
        for ns in 0..128 {
            assert_eq!(Histogram::bin_of(ns), ns as usize);
            assert_eq!(Histogram::midpoint_ns(ns as usize), ns);
        }
    }

    #[test]
    fn a_midpoint_lies_in_its_bin_and_within_one_in_128_of_every_value() {
        for bin in 0..BINS {
            assert_eq!(Histogram::bin_of(Histogram::midpoint_ns(bin)), bin);
        }
        for ns in (128..10_000_000_u64).step_by(977) {
            let middle = Histogram::midpoint_ns(Histogram::bin_of(ns));
            assert!(middle.abs_diff(ns) * 128 <= ns, "{ns} in the bin of {middle}");
        }
        assert_eq!(Histogram::bin_of(u64::MAX), BINS - 1);
    }

    #[test]
    fn merged_parts_equal_the_whole() {
        let (mut whole, mut one, mut other) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for ns in 1..5000_u64 {
            whole.record(ns * 37);
            if ns % 3 == 0 { &mut one } else { &mut other }.record(ns * 37);
        }
        one.merge(&other);
        assert_eq!(one, whole);
        assert_eq!(one.percentile_ns(99.0), whole.percentile_ns(99.0));
        assert_eq!(Histogram::default().percentile_ns(50.0), None);
    }
}
