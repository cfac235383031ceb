//! Small writes that wait for each other: how they are merged, and clients that write so.

use voltier_array::{MergeMode, MergePolicy};
use voltier_block::{Lba, Nanos, Prng, SectorRange};

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const MERGE: u64 = 0x6d65_7267_0000_cf8f;
/// One seed in so many merges small writes.
const MERGE_ONE_IN: u64 = 4;
/// Most writes at once of one client.
const BURST_MAX: u64 = 12;

/// How a seed's arrays merge small writes.
pub(super) fn merge_of(seed: u64) -> MergePolicy {
    let mut prng = Prng::new(seed ^ MERGE);
    if !prng.one_in(MERGE_ONE_IN) {
        return MergePolicy::default();
    }
    let wait_ns = *prng.pick(&[20_000, 100_000, 300_000]);
    MergePolicy {
        mode: *prng.pick(&[MergeMode::Adaptive, MergeMode::Adaptive, MergeMode::Always]),
        wait_ns,
        max_ns: wait_ns * *prng.pick::<Nanos>(&[1, 4, 40]),
    }
}

/// Writes one behind the other, sometimes with a gap between them or over each other. The writes go from
/// the start of a range on and not beyond an end. All of whole blocks.
pub(crate) fn burst(dice: &mut Prng, block: u64, from: SectorRange, end: u64) -> Vec<SectorRange> {
    let mut ranges = vec![from];
    let (longest, writes) = (1 + dice.below(8 / block.min(8)), 1 + dice.below(BURST_MAX));
    let mut start = from.end();
    for _ in 0..writes {
        match dice.below(8) {
            0 => start = start.plus(block),
            1 => start = Lba(start.0 - block),
            _ => {}
        }
        let count = block * (1 + dice.below(longest));
        if start.0 + count > end {
            break;
        }
        ranges.push(SectorRange::new(start, count));
        start = start.plus(count);
    }
    if dice.one_in(4) {
        // Ranges as clients send them over several connections.
        let other = dice.below(ranges.len() as u64) as usize;
        ranges.swap(0, other);
    }
    ranges
}
