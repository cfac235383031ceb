//! Traces whose curves are known: uniform, Zipf, loop, scan, and a mixture.

use std::str::FromStr;

use voltier_block::Prng;

use super::{Op, Request};

/// Bytes of a request, all of them on multiples of it.
pub const BLOCK_BYTES: u64 = 4096;

/// Share of the requests of `mixed` that scan, and that go round the loop; the rest is Zipf's.
const MIXED_SCAN: f64 = 0.2;
const MIXED_LOOP: f64 = 0.2;

/// In what order blocks are touched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Every block as likely as any other: LRU of `c` of `n` blocks misses `1 - c/n` in the long run.
    Uniform,
    /// The block of rank `r` with a weight of `r^-alpha`, ranks spread over the addresses.
    Zipf(f64),
    /// One after the other, round and round: LRU of less than all blocks never hits.
    Loop,
    /// One after the other, never twice: nothing ever hits.
    Scan,
    /// Zipf's of half of the blocks, a loop over a tenth, and a scan beside them.
    Mixed(f64),
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let (kind, alpha) = name.split_once(':').unwrap_or((name, "0.99"));
        let alpha = alpha.parse::<f64>().ok().filter(|alpha| (0.0..=5.0).contains(alpha));
        let has_alpha = name.contains(':');
        match (kind, alpha) {
            ("zipf", Some(alpha)) => Ok(Pattern::Zipf(alpha)),
            ("mixed", Some(alpha)) => Ok(Pattern::Mixed(alpha)),
            ("uniform", _) if !has_alpha => Ok(Pattern::Uniform),
            ("loop", _) if !has_alpha => Ok(Pattern::Loop),
            ("scan", _) if !has_alpha => Ok(Pattern::Scan),
            _ => Err(format!(
                "`{name}` is no pattern: uniform, zipf[:ALPHA], loop, scan or mixed[:ALPHA], with \
                 ALPHA from 0 to 5"
            )),
        }
    }
}

/// The description of a trace that is made.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// The order.
    pub pattern: Pattern,
    /// How many requests.
    pub requests: u64,
    /// Blocks of 4 KiB that are touched, beside those of scans.
    pub blocks: u64,
    /// Writes among a hundred requests.
    pub write_percent: u8,
    /// Requests per second, evenly.
    pub rate: f64,
    /// All the chance in it.
    pub seed: u64,
}

/// Requests of a recipe, one after the other.
pub struct Made {
    recipe: Recipe,
    prng: Prng,
    /// Sums of Zipf's weights by rank.
    sums: Vec<f64>,
    count: u64,
    looped: u64,
    scanned: u64,
}

impl Made {
    /// The same requests every time for the same recipe.
    pub fn new(recipe: Recipe) -> Made {
        let (ranks, alpha) = match recipe.pattern {
            Pattern::Zipf(alpha) => (recipe.blocks, alpha),
            Pattern::Mixed(alpha) => (recipe.blocks.div_ceil(2), alpha),
            _ => (0, 0.0),
        };
        let mut sum = 0.0;
        let weight = |rank: u64| (rank as f64).powf(-alpha);
        let sums = (1..=ranks).map(|rank| {
            sum += weight(rank);
            sum
        });
        let sums = sums.collect();
        let prng = Prng::new(recipe.seed);
        Made { recipe, prng, sums, count: 0, looped: 0, scanned: 0 }
    }

    fn share(&mut self) -> f64 {
        (self.prng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn zipf(&mut self) -> u64 {
        let at = self.share() * self.sums.last().copied().unwrap_or(0.0);
        let rank = self.sums.partition_point(|sum| *sum < at) as u64;
        // An odd number goes round all of a power of two; what lies past the end goes on.
        let blocks = self.sums.len() as u64;
        let mask = blocks.next_power_of_two() - 1;
        let mut place = rank;
        loop {
            place = place.wrapping_mul(0x9e37_79b1).wrapping_add(1) & mask;
            if place < blocks {
                return place;
            }
        }
    }

    fn round(&mut self, first: u64, blocks: u64) -> u64 {
        let place = first + self.looped % blocks.max(1);
        self.looped += 1;
        place
    }

    fn scan(&mut self, first: u64) -> u64 {
        self.scanned += 1;
        first + self.scanned - 1
    }

    fn block(&mut self) -> u64 {
        let blocks = self.recipe.blocks;
        match self.recipe.pattern {
            Pattern::Uniform => self.prng.below(blocks),
            Pattern::Zipf(_) => self.zipf(),
            Pattern::Loop => self.round(0, blocks),
            Pattern::Scan => self.scan(0),
            Pattern::Mixed(_) => {
                let (half, tenth) = (blocks.div_ceil(2), blocks.div_ceil(10));
                match self.share() {
                    share if share < MIXED_SCAN => self.scan(blocks),
                    share if share < MIXED_SCAN + MIXED_LOOP => self.round(half, tenth),
                    _ => self.zipf(),
                }
            }
        }
    }
}

impl Iterator for Made {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.count == self.recipe.requests {
            return None;
        }
        // From 1 us on: fio takes a time of zero for none.
        let at_ns = (self.count as f64 * 1e9 / self.recipe.rate) as u64 + 1000;
        self.count += 1;
        let is_write = self.prng.below(100) < u64::from(self.recipe.write_percent);
        let offset = self.block() * BLOCK_BYTES;
        let op = if is_write { Op::Write } else { Op::Read };
        Some(Request { at_ns, op, volume: 0, offset, bytes: BLOCK_BYTES })
    }
}
