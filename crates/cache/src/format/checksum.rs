//! Checksums of the structures on the SSD, and the bound of their counters.

use zerocopy::little_endian::U64;

/// Numbers that only grow (records, generations, epochs, writings of a block) are below this: at a
/// thousand million a second it takes a century. A structure with a higher one is not whole, and so
/// no sum of counters overflows.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// Whether all `numbers` are such as a counter can have reached.
pub(crate) fn are_counters(numbers: &[U64]) -> bool {
    numbers.iter().all(|number| number.get() < COUNTER_MAX)
}

/// CRC-32C as every structure here uses it.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The bits of a line's CRC that the map and its checkpoint keep.
pub(crate) const fn kept_crc_bits(crc: u32) -> u32 {
    crc & 0xff_ffff
}

/// CRC-32C of a structure whose CRC field, at bytes `at..at + 4`, counts as zero.
pub(crate) fn crc_without(bytes: &[u8], at: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..at]);
    digest.update(&[0; 4]);
    digest.update(&bytes[at + 4..]);
    digest.finalize() as u32
}
