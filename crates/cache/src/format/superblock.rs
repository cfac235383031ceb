//! The superblock: which cache an SSD holds, and where its newest checkpoint is.

use voltier_block::{Format, LabelPart, SECOND_CACHE_LABEL, Unsupported};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{are_counters, crc_without};
use crate::format::owner::Owner;
use crate::policy::PolicyKind;

/// First bytes of every cache SSD: what the safety checks of other programs may look for too.
pub const SUPERBLOCK_MAGIC: [u8; 8] = LabelPart::Cache.magic();
/// The format: no part of it is optional.
pub const FORMAT: Format = Format { version: 1, features: &[] };
/// Bytes of a superblock or intent block on the SSD.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Byte offsets of the two superblock copies.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, SECOND_CACHE_LABEL];

/// Whether the cache was stopped with everything in the checkpoint.
pub(crate) const STATE_CLEAN: u32 = 1;
/// The cache is in use, or was when the power went.
pub(crate) const STATE_OPEN: u32 = 2;
/// The cache was stopped while its map was being loaded. The map and the log are as after a crash; the
/// fingerprint is that of the stop.
pub(crate) const STATE_STOPPED_LOADING: u32 = 3;

/// The head of a superblock; of the rest of its 4096 bytes the owner has a part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U32,
    pub(crate) crc: U32,
    pub(crate) uuid: [u8; 16],
    /// The bits of its features: place and meaning of all fields up to here are the same in every version.
    pub(crate) features: U64,
    /// The valid copy with the higher number wins.
    pub(crate) sequence: U64,
    pub(crate) copy: U32,
    pub(crate) state: U32,
    /// Grows with every opening: an older SSD image betrays itself.
    pub(crate) generation: U64,
    pub(crate) ssd_bytes: U64,
    pub(crate) origin_sectors: U64,
    pub(crate) line_bytes: U32,
    pub(crate) segment_bytes: U32,
    pub(crate) unit_bytes: U32,
    pub(crate) segment_count: U32,
    pub(crate) policy: U32,
    /// The valid checkpoint area: 0 or 1.
    pub(crate) checkpoint_area: U32,
    pub(crate) checkpoint_chunks: U64,
    /// Sequence number of the first record to replay.
    pub(crate) replay_sequence: U64,
    pub(crate) replay_segment: U32,
    pub(crate) replay_unit: U32,
    pub(crate) next_segment: U32,
    pub(crate) next_segment_unit: U32,
    /// The origin's fingerprint at a stop, in states that say so (see `fingerprint.rs`).
    pub(crate) fingerprint: U64,
    pub(crate) dirty_lines: U64,
    /// First record of this generation: older ones with this number or a higher were cut off.
    pub(crate) first_sequence: U64,
    /// Lines in the checkpoint's map.
    pub(crate) checkpoint_lines: U64,
    /// Chunks of its list of dirty lines, or `NO_DIRTY_LIST`.
    pub(crate) dirty_chunks: U32,
    /// With `replay_unit`: the first slot of that segment that no record has taken.
    pub(crate) replay_slot: U32,
}

/// Says that more lines were dirty than the list has room for.
pub(crate) const NO_DIRTY_LIST: u32 = u32::MAX;

const _: () = assert!(size_of::<Superblock>() == 176);
const SUPERBLOCK_CRC_AT: usize = 12;

/// Why a block is no superblock that can be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// The block does not begin as one.
    Absent,
    /// The block begins as one, and is not whole or not meant for its place.
    Damaged,
    /// The block is whole, and written by a program that knows more.
    Unsupported {
        /// The cache that it names.
        uuid: [u8; 16],
        /// The version or features that are unknown.
        why: Unsupported,
    },
}

impl Superblock {
    /// The 4096 bytes of copy `copy`, with the volume that the cache belongs to.
    pub(crate) fn encode(mut self, copy: u32, owner: &Owner) -> [u8; BLOCK_BYTES] {
        self.copy = copy.into();
        let mut block = [0; BLOCK_BYTES];
        block[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        owner.encode_into(&mut block);
        let crc = crc_without(&block, SUPERBLOCK_CRC_AT);
        block[SUPERBLOCK_CRC_AT..SUPERBLOCK_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Whether the stop of the last life took the origin's fingerprint.
    pub(crate) fn has_fingerprint(&self) -> bool {
        [STATE_CLEAN, STATE_STOPPED_LOADING].contains(&self.state.get())
    }

    /// The superblock in `block`, if it is one, whole, and meant for copy `copy`. Version and features come
    /// first: of a block that has others nothing else is believed.
    ///
    /// # Errors
    /// Why the block is none that this program can read.
    pub(crate) fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected> {
        if !block.starts_with(&SUPERBLOCK_MAGIC) {
            return Err(Rejected::Absent);
        }
        let superblock = Self::read_from_prefix(block).map_err(|_| Rejected::Damaged)?.0;
        if superblock.crc != crc_without(block, SUPERBLOCK_CRC_AT) {
            return Err(Rejected::Damaged);
        }
        let checked = FORMAT.check(superblock.version.get(), superblock.features.get());
        checked.map_err(|why| Rejected::Unsupported { uuid: superblock.uuid, why })?;
        let Self { sequence, generation, replay_sequence, first_sequence, .. } = superblock;
        let counters = [sequence, generation, replay_sequence, first_sequence];
        let is_whole = superblock.copy == copy && are_counters(&counters);
        if is_whole { Ok(superblock) } else { Err(Rejected::Damaged) }
    }
}

/// The number that stands for a policy on the SSD.
pub(crate) fn policy_number(policy: PolicyKind) -> u32 {
    PolicyKind::ALL.iter().position(|kind| *kind == policy).expect("all are listed") as u32
}

/// The policy that a number on the SSD stands for; `lru` for a number that this program does not know.
pub(crate) fn policy_of(number: u32) -> PolicyKind {
    PolicyKind::ALL.get(number as usize).copied().unwrap_or(PolicyKind::Lru)
}
