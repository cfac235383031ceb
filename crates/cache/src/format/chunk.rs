//! Chunks of a checkpoint: the map, and the list of dirty lines.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{crc_without, crc32c};

/// Bytes of one chunk of a checkpoint, head included.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a chunk's head.
pub(crate) const CHUNK_HEAD_BYTES: usize = 64;

/// A chunk of the map: the state of slots, in their order.
pub(crate) const CHUNK_MAGIC: u32 = 0x4b43_4c56;
/// A chunk of the list of dirty lines: each with its slot.
pub(crate) const DIRTY_CHUNK_MAGIC: u32 = 0x4443_4c56;

/// The head of a checkpoint chunk. The state of `count` slots follows: in the map those from `first_slot`
/// on, in the list of dirty lines each behind its slot's number.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ChunkHead {
    pub(crate) magic: U32,
    pub(crate) crc: U32,
    pub(crate) uuid: [u8; 16],
    /// The superblock's `replay_sequence` that this checkpoint belongs to.
    pub(crate) replay_sequence: U64,
    pub(crate) index: U32,
    pub(crate) first_slot: U32,
    pub(crate) count: U32,
    pub(crate) reserved: [u8; 20],
}

const _: () = assert!(size_of::<ChunkHead>() == CHUNK_HEAD_BYTES);

/// The name that a chunk must carry.
pub(crate) struct ChunkName {
    pub(crate) magic: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) replay_sequence: u64,
    pub(crate) index: u32,
}

impl ChunkHead {
    /// Puts head and CRC into a chunk whose body is in place.
    pub(crate) fn seal(self, chunk: &mut [u8]) {
        chunk[..CHUNK_HEAD_BYTES].copy_from_slice(self.as_bytes());
        chunk[4..8].fill(0);
        let crc = crc32c(chunk);
        chunk[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The head of a whole chunk, if it is the one that is `expected`: of this kind, cache and
    /// checkpoint, at its right place.
    pub(crate) fn decode(chunk: &[u8], expected: &ChunkName) -> Option<Self> {
        let head = Self::read_from_prefix(chunk).ok()?.0;
        let ours = head.magic == expected.magic
            && head.uuid == expected.uuid
            && head.replay_sequence == expected.replay_sequence
            && head.index == expected.index;
        (ours && head.crc == crc_without(chunk, 4)).then_some(head)
    }
}
