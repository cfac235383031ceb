//! Checks that all structures on the medium share: their CRC, and the range of their counters.

/// Numbers that only grow are below this: at a thousand million a second it takes a century. What
/// has a higher one is not whole, and so no sum of them overflows.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// CRC-32C of a structure whose CRC field, at bytes `at..at + 4`, counts as zero.
pub(crate) fn crc_without(bytes: &[u8], at: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..at]);
    digest.update(&[0; 4]);
    digest.update(&bytes[at + 4..]);
    digest.finalize() as u32
}
