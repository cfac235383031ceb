//! Recognising an origin that was changed behind the cache's back.
//!
//! The origin carries nothing of ours, so a clean stop remembers samples of the origin. Samples are its
//! beginning and end, where partition tables and file systems keep what every mount changes, and places
//! spread over the rest. Other samples at the next start mean that somebody wrote to it.

use voltier_block::{BlockDevice, Buf, IoResult, Lba};

/// Sectors sampled at the beginning: partition table, superblocks of ext4, xfs, btrfs, LVM labels.
const HEAD_SECTORS: u64 = 256;
/// Samples spread over the rest, of this many sectors each.
const SAMPLE_COUNT: u64 = 64;
const SAMPLE_SECTORS: u64 = 8;

/// A number that changes when the sampled places do. Samples are from the first `sectors` sectors:
/// an origin may have grown since.
pub(crate) async fn fingerprint<O: BlockDevice>(origin: &O, sectors: u64) -> IoResult<u64> {
    let mut samples = vec![(0, HEAD_SECTORS.min(sectors) / SAMPLE_SECTORS * SAMPLE_SECTORS)];
    if sectors > HEAD_SECTORS + SAMPLE_SECTORS {
        let step = (sectors - SAMPLE_SECTORS) / SAMPLE_COUNT;
        samples.extend(
            (1..=SAMPLE_COUNT)
                .map(|number| (number * step / SAMPLE_SECTORS * SAMPLE_SECTORS, SAMPLE_SECTORS)),
        );
    }
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    for (start, count) in samples {
        let sample = origin.read(Lba(start), Buf::new(count as usize * 512)).await?;
        digest.update(&sample);
    }
    Ok(digest.finalize())
}
