//! Checks that all structures on the medium share: their heads, their CRC, and the range of their counters.

/// Numbers that only grow are below this: at a thousand million a second it takes a century. A
/// structure with a higher one is not whole, and so no sum of them overflows.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// CRC-32C of a structure whose CRC field, at bytes `at..at + 4`, counts as zero.
pub(crate) fn crc_without(bytes: &[u8], at: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..at]);
    digest.update(&[0; 4]);
    digest.update(&bytes[at + 4..]);
    digest.finalize() as u32
}

/// Puts the CRC of a structure into its field at bytes `at..at + 4`.
pub(crate) fn seal(bytes: &mut [u8], at: usize) {
    let crc = crc_without(bytes, at);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Where superblocks and labels have their CRC: behind magic and version.
pub(crate) const CRC_AT: usize = 12;

/// Why a block is not a superblock, or label, that can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// The block does not begin as one.
    Absent,
    /// The block begins as one; the checksum, or the content, is wrong.
    Damaged,
    /// The block is whole and of a newer version.
    Newer(u32),
}

/// Checks the head of a superblock or label: place and meaning of magic, version and CRC are the same in
/// every version.
///
/// # Errors
/// Why the block is none that this program can read.
pub(crate) fn check_head(
    block: &[u8],
    magic: [u8; 8],
    version: u32,
    newest: u32,
) -> Result<(), Rejected> {
    if block[..8] != magic {
        return Err(Rejected::Absent);
    }
    if block[CRC_AT..CRC_AT + 4] != crc_without(block, CRC_AT).to_le_bytes() {
        return Err(Rejected::Damaged);
    }
    if version > newest { Err(Rejected::Newer(version)) } else { Ok(()) }
}
