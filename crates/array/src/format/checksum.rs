//! Checks that all structures on the medium share: their heads, their CRC, and the range of their counters.

use voltier_block::{Format, Unsupported};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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

/// The first bytes of a superblock or label: their places and meaning are the same in every version.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U32,
    pub(crate) crc: U32,
    /// Identity of the array; of a spare that of its owner.
    pub(crate) array: [u8; 16],
    /// The bits of its features.
    pub(crate) features: U64,
}

impl Head {
    /// The head of a block that has these features; its CRC is made afterwards.
    pub(crate) fn new(magic: [u8; 8], format: &Format, array: [u8; 16], features: u64) -> Self {
        let (version, features) = (format.version.into(), features.into());
        Self { magic, version, crc: 0.into(), array, features }
    }
}

/// Why a block is not a superblock, or label, that can be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// The block does not begin as one.
    Absent,
    /// The block begins as one; the checksum, or the content, is wrong.
    Damaged,
    /// The block is whole, and written by a program that knows more.
    Unsupported {
        /// The array that it names.
        array: [u8; 16],
        /// The version or features that are unknown.
        why: Unsupported,
    },
}

/// Checks the head of a superblock or label, before anything else of it is believed.
///
/// # Errors
/// Why the block is none that this program can read.
pub(crate) fn check_head(block: &[u8], magic: [u8; 8], format: &Format) -> Result<(), Rejected> {
    let (head, _) = Head::ref_from_prefix(block).map_err(|_| Rejected::Absent)?;
    if head.magic != magic {
        return Err(Rejected::Absent);
    }
    if head.crc != crc_without(block, CRC_AT) {
        return Err(Rejected::Damaged);
    }
    let checked = format.check(head.version.get(), head.features.get());
    checked.map_err(|why| Rejected::Unsupported { array: head.array, why })
}
