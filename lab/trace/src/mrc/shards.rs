//! SHARDS: stack distances of a sample of the lines, scaled up.
//!
//! After Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction with SHARDS" (FAST 2015). A
//! line is in the sample when its hash modulo 2^24 is below a threshold, so all its references are. With
//! a fixed rate the threshold stays. With a fixed size the lines of the largest hash leave when there are
//! too many. The threshold falls to theirs, and what was counted before weighs less. Adjusted: what the
//! sample has more or fewer references than its rate says goes to the smallest distance.

use std::collections::BTreeMap;

use super::stack::Stack;
use crate::lines::spread;

/// Hashes are taken modulo this.
const MODULUS: u64 = 1 << 24;

/// Distances of sampled lines, and what they say of all.
#[derive(Debug)]
pub(super) struct Shards {
    threshold: u64,
    lines_max: usize,
    seed: u64,
    stack: Stack,
    /// Numbers in the stack of the lines in the sample, by hash and key.
    sample: BTreeMap<(u64, u64), u32>,
    free: Vec<u32>,
    /// References by scaled distance, each counted at the rate of its time times `weight`.
    counts: BTreeMap<u64, f64>,
    cold: f64,
    /// The weight of one reference now; the weight grows when the rate falls, as older ones become lighter.
    weight: f64,
    references: u64,
}

impl Shards {
    /// A sample of this share of the lines.
    pub(super) fn of_rate(rate: f64, seed: u64) -> Self {
        Self::new(((MODULUS as f64 * rate).round() as u64).clamp(1, MODULUS), usize::MAX, seed)
    }

    /// A sample of so many lines at most.
    pub(super) fn of_size(lines: u32, seed: u64) -> Self {
        Self::new(MODULUS, lines as usize, seed)
    }

    fn new(threshold: u64, lines_max: usize, seed: u64) -> Self {
        Self {
            threshold,
            lines_max,
            seed,
            stack: Stack::new(),
            sample: BTreeMap::new(),
            free: Vec::new(),
            counts: BTreeMap::new(),
            cold: 0.0,
            weight: 1.0,
            references: 0,
        }
    }

    /// The share of the lines in the sample.
    pub(super) fn rate(&self) -> f64 {
        self.threshold as f64 / MODULUS as f64
    }

    /// How many lines there are, about.
    pub(super) fn lines(&self) -> u64 {
        (self.sample.len() as f64 / self.rate()).round() as u64
    }

    /// Of sample, stack and counts; nodes of trees at twice what they hold.
    pub(super) fn memory_bytes(&self) -> usize {
        self.stack.memory_bytes() + self.sample.len() * 48 + self.counts.len() * 32
    }

    #[inline]
    pub(super) fn touch(&mut self, key: u64) {
        self.references += 1;
        let hash = spread(key ^ self.seed) % MODULUS;
        if hash < self.threshold {
            self.sampled(hash, key);
        }
    }

    fn sampled(&mut self, hash: u64, key: u64) {
        let next = self.sample.len() as u32;
        let free = &mut self.free;
        let line = *self.sample.entry((hash, key)).or_insert_with(|| free.pop().unwrap_or(next));
        match self.stack.touch(line) {
            Some(distance) => {
                let scaled = (distance as f64 / self.rate()).round() as u64;
                *self.counts.entry(scaled).or_default() += self.weight;
            }
            None => self.cold += self.weight,
        }
        if self.sample.len() > self.lines_max {
            self.shrink();
        }
    }

    /// The lines of the largest hash leave.
    fn shrink(&mut self) {
        let Some((&(hash, _), _)) = self.sample.last_key_value() else { return };
        let leaving = self.sample.split_off(&(hash, 0));
        for line in leaving.into_values() {
            self.stack.remove(line);
            self.free.push(line);
        }
        let threshold = hash.max(1);
        self.weight *= self.threshold as f64 / threshold as f64;
        self.threshold = threshold;
    }

    /// Miss ratio of a cache of so many lines, adjusted.
    pub(super) fn miss_ratio(&self, lines: u64) -> f64 {
        let far: f64 = self.counts.range(lines..).map(|(_, count)| count).sum();
        let expected = self.references as f64 * self.rate() * self.weight;
        if expected == 0.0 { 0.0 } else { ((far + self.cold) / expected).clamp(0.0, 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stack::Distances;
    use super::*;
    use crate::lines::references;
    use crate::make::{BLOCK_BYTES, Made, Pattern, Recipe};

    #[test]
    fn samples_come_near_the_exact_curve_and_all_of_the_lines_are_the_curve() {
        let blocks = 20_000;
        let recipe = Recipe {
            pattern: Pattern::Mixed(0.8),
            requests: 200_000,
            blocks,
            write_percent: 0,
            rate: 1e3,
            seed: 9,
        };
        let mut exact = Shards::of_rate(1.0, 1);
        let mut samples =
            [("rate 0.1", Shards::of_rate(0.1, 1)), ("4096 lines", Shards::of_size(4096, 1))];
        let (mut stack, mut distances) = (Stack::new(), Distances::default());
        let mut total = 0_u64;
        for request in Made::new(recipe) {
            for reference in references(&request, BLOCK_BYTES) {
                total += 1;
                if let Some(distance) = stack.touch(reference.key as u32) {
                    distances.record(distance);
                }
                exact.touch(reference.key);
                samples.iter_mut().for_each(|(_, shards)| shards.touch(reference.key));
            }
        }
        let sizes = [200, 1000, 2000, 5000, 10_000, 20_000];
        for lines in sizes {
            let misses = (total - distances.hits(lines)) as f64 / total as f64;
            assert!((exact.miss_ratio(lines) - misses).abs() < 1e-9, "{lines}");
        }
        for (name, shards) in &samples {
            let error = |lines: &u64| (shards.miss_ratio(*lines) - exact.miss_ratio(*lines)).abs();
            let mean = sizes.iter().map(error).sum::<f64>() / sizes.len() as f64;
            println!("SHARDS, {name}: mean error {mean:.4} at rate {:.4}", shards.rate());
            assert!(mean < 0.06, "{name}: {mean}");
        }
        let [(_, _), (_, sized)] = &samples;
        assert!(sized.sample.len() <= 4096 && sized.rate() < 0.25 && sized.rate() > 0.05);
        assert!(sized.lines().abs_diff(exact.lines()) * 20 < exact.lines(), "{}", sized.lines());
    }
}
