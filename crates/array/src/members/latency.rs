//! How long a member takes: a sample now and then, in buckets.

use voltier_block::Nanos;

/// Buckets of a quarter of a power of two each: 256 ns to 18 minutes.
const BUCKETS: usize = 128;
/// The exponent of the first bucket.
const FIRST_EXPONENT: u32 = 8;
/// Buckets of a power of two, as an exponent.
const STEPS_LOG2: u32 = 2;
/// The number of samples that are remembered; beyond that, older ones count less.
const SAMPLES_MAX: u32 = 1024;

/// Recent samples, chosen by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Samples that are remembered.
    pub samples: u32,
    /// Their median, in nanoseconds, accurate to a quarter.
    pub p50_ns: Nanos,
    /// Their 99th percentile, in nanoseconds, accurate to a quarter.
    pub p99_ns: Nanos,
}

/// A histogram that forgets, and the sum of the samples since it was last asked for.
pub(crate) struct Samples {
    buckets: [u32; BUCKETS],
    count: u32,
    sum_ns: Nanos,
    summed: u32,
}

impl Default for Samples {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], count: 0, sum_ns: 0, summed: 0 }
    }
}

impl Samples {
    pub(crate) fn add(&mut self, took_ns: Nanos) {
        if self.count == SAMPLES_MAX {
            self.buckets.iter_mut().for_each(|bucket| *bucket /= 2);
            self.count = self.buckets.iter().sum();
        }
        self.buckets[bucket_of(took_ns)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(took_ns);
        self.summed += 1;
    }

    /// The mean since it was last forgotten, of `at_least` samples or more. `under_way` is one that
    /// has taken so long already: it is enough by itself.
    pub(crate) fn mean_ns(&self, at_least: u32, under_way: Option<Nanos>) -> Option<Nanos> {
        let sum = self.sum_ns.saturating_add(under_way.unwrap_or(0));
        let count = self.summed + u32::from(under_way.is_some());
        (under_way.is_some() || count >= at_least.max(1)).then(|| sum / Nanos::from(count))
    }

    pub(crate) fn forget_mean(&mut self) {
        (self.sum_ns, self.summed) = (0, 0);
    }

    pub(crate) fn latency(&self) -> Latency {
        let (p50_ns, p99_ns) = (self.quantile_ns(50), self.quantile_ns(99));
        Latency { samples: self.count, p50_ns, p99_ns }
    }

    /// The end of the bucket in which so many of a hundred samples have ended.
    fn quantile_ns(&self, percent: u64) -> Nanos {
        let rank = (u64::from(self.count) * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank && rank > 0 {
                return end_of(bucket);
            }
        }
        0
    }
}

fn bucket_of(took_ns: Nanos) -> usize {
    let took_ns = took_ns.max(1 << FIRST_EXPONENT);
    let exponent = took_ns.ilog2();
    let step = (took_ns >> (exponent - STEPS_LOG2)) & ((1 << STEPS_LOG2) - 1);
    let bucket = (Nanos::from(exponent - FIRST_EXPONENT) << STEPS_LOG2) + step;
    (bucket as usize).min(BUCKETS - 1)
}

fn end_of(bucket: usize) -> Nanos {
    let exponent = FIRST_EXPONENT + (bucket as u32 >> STEPS_LOG2);
    let step = bucket as Nanos & ((1 << STEPS_LOG2) - 1);
    ((1 << STEPS_LOG2) + step + 1) << (exponent - STEPS_LOG2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_quarter() {
        let mut samples = Samples::default();
        assert_eq!(samples.latency(), Latency::default());
        for took in 1..=1000 {
            samples.add(took * 1000);
        }
        let Latency { samples: count, p50_ns, p99_ns } = samples.latency();
        assert_eq!(count, 1000);
        assert!((500_000..=625_000).contains(&p50_ns), "{p50_ns}");
        assert!((990_000..=1_237_500).contains(&p99_ns), "{p99_ns}");
    }

    #[test]
    fn every_length_has_a_bucket_that_ends_behind_it() {
        let mut length = 1;
        while length < 1 << 39 {
            let end = end_of(bucket_of(length));
            assert!(length < end && end <= (length + length / 4 + 1).max(320), "{length}: {end}");
            length += length / 7 + 1;
        }
        assert_eq!(bucket_of(Nanos::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_was_long_ago_counts_less_and_in_the_end_nothing() {
        let mut samples = Samples::default();
        (0..SAMPLES_MAX).for_each(|_| samples.add(1_000_000));
        (0..8 * SAMPLES_MAX).for_each(|_| samples.add(1_000));
        assert!(samples.latency().p99_ns < 2_000, "{:?}", samples.latency());
        assert!(samples.count <= SAMPLES_MAX);
    }

    #[test]
    fn a_mean_needs_enough_samples_or_one_that_does_not_end() {
        let mut samples = Samples::default();
        samples.add(100);
        assert_eq!(samples.mean_ns(2, None), None);
        assert_eq!(samples.mean_ns(1, None), Some(100));
        assert_eq!(samples.mean_ns(2, Some(300)), Some(200));
        samples.forget_mean();
        assert_eq!(samples.mean_ns(0, None), None);
    }
}
