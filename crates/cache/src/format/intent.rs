//! The intent block: one bit for each region of the origin.

use voltier_block::KIB;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{are_counters, crc_without, crc32c};
use crate::format::superblock::BLOCK_BYTES;

/// Byte offsets of the two intent block copies.
pub(crate) const INTENT_OFFSETS: [u64; 2] = [128 * KIB, 132 * KIB];
/// Regions of the origin that an intent block tells apart.
pub(crate) const INTENT_REGIONS_MAX: u64 = (BLOCK_BYTES as u64 - 64) * 8;

pub(crate) const INTENT_MAGIC: u32 = 0x4949_4c56;

/// The head of an intent block; one bit per region of the origin follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IntentHead {
    pub(crate) magic: U32,
    pub(crate) crc: U32,
    pub(crate) uuid: [u8; 16],
    pub(crate) generation: U64,
    pub(crate) sequence: U64,
    pub(crate) reserved: [u8; 24],
}

pub(crate) const INTENT_HEAD_BYTES: usize = size_of::<IntentHead>();
const _: () = assert!(INTENT_HEAD_BYTES == 64);

impl IntentHead {
    /// The block with this head and these bits.
    pub(crate) fn encode(&self, bits: &[u8]) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[..INTENT_HEAD_BYTES].copy_from_slice(self.as_bytes());
        block[INTENT_HEAD_BYTES..INTENT_HEAD_BYTES + bits.len()].copy_from_slice(bits);
        block[4..8].fill(0);
        let crc = crc32c(&block);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// The head in `block`, if it is one of cache `uuid`, and whole.
    pub(crate) fn decode(block: &[u8], uuid: &[u8; 16]) -> Option<Self> {
        let head = Self::read_from_prefix(block).ok()?.0;
        let ours =
            head.magic == INTENT_MAGIC && head.uuid == *uuid && are_counters(&[head.sequence]);
        (ours && head.crc == crc_without(block, 4)).then_some(head)
    }
}
