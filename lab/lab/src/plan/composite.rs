//! The enterprise composite workload: requests of many sizes, some places hotter than others.
//!
//! Sizes, shares and places are those of JESD219 as fio's own example of it has them.

use crate::fio::Job;

/// Bytes of a request, and its share of all requests in percent.
const SIZES: [(u64, u32); 12] = [
    (512, 4),
    (1024, 1),
    (1536, 1),
    (2048, 1),
    (2560, 1),
    (3072, 1),
    (3584, 1),
    (4096, 67),
    (8192, 10),
    (16_384, 7),
    (32_768, 3),
    (65_536, 3),
];

/// Share of the requests, and of the addresses they go to, from the first address on.
const ZONES: &str = "zoned:50/5:30/15:20/80";

/// Share of reads, percent.
pub(super) const READ_PERCENT: u8 = 40;

/// Addresses are multiples of this.
pub(super) const ALIGNMENT: u64 = 4096;

/// The job with the sizes and places of the workload. A size that is no multiple of the target's block
/// becomes as many requests of 4 KiB, or of a block where that is larger.
pub(super) fn composite(mut job: Job, block_bytes: u64) -> Job {
    let least = block_bytes.max(ALIGNMENT);
    let mut sizes = Vec::<(u64, u32)>::new();
    for (bytes, share) in SIZES {
        let bytes = if bytes.is_multiple_of(block_bytes.max(1)) { bytes } else { least };
        match sizes.iter_mut().find(|(known, _)| *known == bytes) {
            Some((_, sum)) => *sum += share,
            None => sizes.push((bytes, share)),
        }
    }
    sizes.sort_unstable();
    let split: Vec<String> =
        sizes.iter().map(|(bytes, share)| format!("{bytes}/{share}")).collect();
    job.block_bytes = least;
    job.more.push(("bssplit", split.join(":")));
    job.more.push(("random_distribution", ZONES.to_owned()));
    job
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::{Pattern, Target, Until};

    #[test]
    fn sizes_below_the_block_of_the_target_are_folded_and_shares_stay_whole() {
        let job = Job {
            name: "pts".to_owned(),
            pattern: Pattern::of(true, READ_PERCENT),
            block_bytes: 4096,
            iodepth: 1,
            numjobs: 1,
            size_bytes: 1 << 30,
            until: Until::Time(std::time::Duration::from_secs(1)),
            more: Vec::new(),
        };
        let split = |block| composite(job.clone(), block).more[0].1.clone();
        assert!(split(512).starts_with("512/4:1024/1:") && split(512).ends_with(":65536/3"));
        assert_eq!(split(4096), "4096/77:8192/10:16384/7:32768/3:65536/3");
        for block in [512, 4096, 8192] {
            let shares: u32 = split(block)
                .split(':')
                .map(|part| part.split_once('/').unwrap().1.parse::<u32>().unwrap())
                .sum();
            assert_eq!(shares, 100);
        }
        let target = Target::Files { paths: vec!["disk".to_owned()], engine: "libaio" };
        let words = composite(job, 512).arguments(&target);
        for word in ["--rwmixread=40", "--ba=4k", "--random_distribution=zoned:50/5:30/15:20/80"] {
            assert!(words.iter().any(|known| known == word), "{word} in {words:?}");
        }
    }
}
