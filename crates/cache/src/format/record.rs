//! Records of the log: a head, and one entry for each change.

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::canary::{self, Canary};
use crate::format::checksum::{are_counters, crc_without, crc32c};
use crate::numbers::Segment;

pub(crate) const RECORD_MAGIC: u32 = 0x4352_4c56;

/// The head of a log record; entries follow, then zeroes up to one unit. The lines' data stand
/// where the entries say, in slots of the same segment behind the one with the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RecordHead {
    pub(crate) magic: U32,
    pub(crate) crc: U32,
    pub(crate) uuid: [u8; 16],
    pub(crate) generation: U64,
    pub(crate) sequence: U64,
    /// Every record below this number was durable when this one was written.
    pub(crate) durable_sequence: U64,
    /// Completed flushes of clients before this record: the cuts of ordered destaging.
    pub(crate) epoch: U64,
    pub(crate) segment: U32,
    pub(crate) unit: U32,
    /// Where the next record's head is in this segment; `NO_UNIT` when it goes to the next one.
    pub(crate) next_unit: U32,
    /// Where the log goes on when this segment is full.
    pub(crate) next_segment: U32,
    pub(crate) next_segment_unit: U32,
    /// With `next_unit`: the first slot of this segment that no record has taken.
    pub(crate) next_slot: U32,
    pub(crate) entry_count: U16,
    /// When it was formed, in nanoseconds since 1970; 0 where that is not known, as in heads of before there was a
    /// time.
    pub(crate) wall_ns: U64,
    pub(crate) reserved: [u8; 6],
}

/// Says that a segment has no room for another record.
pub(crate) const NO_UNIT: u32 = u32::MAX;

pub(crate) const RECORD_HEAD_BYTES: usize = size_of::<RecordHead>();
const _: () = assert!(RECORD_HEAD_BYTES == 96);
const RECORD_CRC_AT: usize = 4;

/// Data of a line follows in the record.
pub(crate) const ENTRY_DATA: u8 = 1;
/// The line in `slot` has reached the origin.
pub(crate) const ENTRY_CLEAN: u8 = 2;
/// The line is not cached any more.
pub(crate) const ENTRY_DROP: u8 = 3;

/// With `ENTRY_DATA`: the origin does not have it yet.
pub(crate) const FLAG_DIRTY: u8 = 1;
/// With `ENTRY_DATA`: only the sectors of the mask are valid.
pub(crate) const FLAG_MASKED: u8 = 2;

/// One change of the cache's state.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RecordEntry {
    /// Line number on the origin.
    pub(crate) line: U64,
    pub(crate) slot: U32,
    /// CRC-32C of the line's data.
    pub(crate) crc: U32,
    /// Valid sectors, lowest bit first; zero unless masked.
    pub(crate) mask: U128,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: [u8; 6],
}

pub(crate) const ENTRY_BYTES: usize = size_of::<RecordEntry>();
const _: () = assert!(ENTRY_BYTES == 40);

impl RecordHead {
    /// Puts head and CRC into `block`, whose entries are already in it.
    pub(crate) fn seal(self, block: &mut [u8]) {
        block[..RECORD_HEAD_BYTES].copy_from_slice(self.as_bytes());
        block[RECORD_CRC_AT..RECORD_CRC_AT + 4].fill(0);
        let crc = crc32c(block);
        block[RECORD_CRC_AT..RECORD_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// The head in `block`, if it is one, whole, of cache `uuid`, and belongs at unit `at`.
    pub(crate) fn decode(block: &[u8], uuid: &[u8; 16], segment: Segment, at: u32) -> Option<Self> {
        let head = Self::read_from_prefix(block).ok()?.0;
        let plausible = head.magic == RECORD_MAGIC
            && head.uuid == *uuid
            && head.segment == segment.0
            && head.unit == at
            && head.entry_count.get() as usize <= entries_per_record(block.len())
            && are_counters(&[head.sequence, head.generation, head.epoch]);
        let whole = head.crc == crc_without(block, RECORD_CRC_AT);
        (plausible && (whole || canary::is(Canary::RecordChecksumIgnored))).then_some(head)
    }

    /// The entries behind a decoded head.
    pub(crate) fn entries(&self, block: &[u8]) -> Vec<RecordEntry> {
        let count = self.entry_count.get() as usize;
        let bytes = &block[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + count * ENTRY_BYTES];
        let entry = |chunk| RecordEntry::read_from_bytes(chunk).expect("40 bytes");
        bytes.chunks_exact(ENTRY_BYTES).map(entry).collect()
    }
}

/// Entries that fit into the first unit of a record.
pub(crate) const fn entries_per_record(unit_bytes: usize) -> usize {
    (unit_bytes - RECORD_HEAD_BYTES) / ENTRY_BYTES
}
