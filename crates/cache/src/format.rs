//! What is on the SSD, byte by byte. The tables are in `docs/formats/cache.md`.
//!
//! ```text
//! 0        superblock, copy 0          64 KiB   superblock, copy 1
//! 128 KiB  intent block, two copies    1 MiB    checkpoint area A, then B, then the segments
//! ```
//!
//! Everything is little-endian; every structure carries a CRC-32C over itself with the CRC field
//! zero, the uuid of its cache, and enough of its own address to betray a misdirected write.

use voltier_block::{KIB, Lba, MIB};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::canary::{self, Canary};
use crate::config::{FormatOptions, segment_bytes_for};
use crate::policy::LINE_LIMIT;

/// First bytes of every cache SSD: what the safety checks of other programs may look for too.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"VOLTIERC";
/// Readers refuse another version.
pub const FORMAT_VERSION: u32 = 3;
/// Bytes of a superblock or intent block on the SSD.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Byte offsets of the two superblock copies.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 * KIB];
/// Byte offsets of the two intent block copies.
pub(crate) const INTENT_OFFSETS: [u64; 2] = [128 * KIB, 132 * KIB];
/// Regions of the origin that an intent block tells apart.
pub(crate) const INTENT_REGIONS_MAX: u64 = (BLOCK_BYTES as u64 - 64) * 8;
/// Byte offset of the first checkpoint area.
const CHECKPOINT_BASE: u64 = MIB;
/// Bytes of one chunk of a checkpoint, head included.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a chunk's head.
pub(crate) const CHUNK_HEAD_BYTES: usize = 64;
/// Segments a cache needs to work at all: two open, four prepared, the rest with lines in them.
const SEGMENTS_MIN: u64 = 20;

/// Numbers that only grow (records, generations, epochs, writings of a block) are below this: at a
/// thousand million a second it takes a century. What has a higher one is not whole, and so no sum
/// of them overflows.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// Whether these are numbers that a counter can have reached.
fn are_counters(numbers: &[U64]) -> bool {
    numbers.iter().all(|number| number.get() < COUNTER_MAX)
}

/// CRC-32C as every structure here uses it.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of a structure whose CRC field, at bytes `at..at + 4`, counts as zero.
fn crc_without(bytes: &[u8], at: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..at]);
    digest.update(&[0; 4]);
    digest.update(&bytes[at + 4..]);
    digest.finalize() as u32
}

/// Whether the cache was stopped with everything in the checkpoint.
pub(crate) const STATE_CLEAN: u32 = 1;
/// The cache is in use, or was when the power went.
pub(crate) const STATE_OPEN: u32 = 2;

/// The head of a superblock; the rest of its 4096 bytes is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U32,
    pub(crate) crc: U32,
    pub(crate) uuid: [u8; 16],
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
    /// Which checkpoint area is valid: 0 or 1.
    pub(crate) checkpoint_area: U32,
    pub(crate) checkpoint_chunks: U64,
    /// Sequence number of the first record to replay.
    pub(crate) replay_sequence: U64,
    pub(crate) replay_segment: U32,
    pub(crate) replay_unit: U32,
    pub(crate) next_segment: U32,
    pub(crate) next_segment_unit: U32,
    /// What the origin looked like at a clean stop (see `fingerprint.rs`).
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

const _: () = assert!(size_of::<Superblock>() == 168);
const SUPERBLOCK_CRC_AT: usize = 12;

impl Superblock {
    /// The 4096 bytes of copy `copy`.
    pub(crate) fn encode(mut self, copy: u32) -> [u8; BLOCK_BYTES] {
        self.copy = copy.into();
        let mut block = [0; BLOCK_BYTES];
        block[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        let crc = crc_without(&block, SUPERBLOCK_CRC_AT);
        block[SUPERBLOCK_CRC_AT..SUPERBLOCK_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// The superblock in `block`, if it is one, whole, and meant for copy `copy`.
    pub(crate) fn decode(block: &[u8], copy: u32) -> Option<Self> {
        let superblock = Self::read_from_prefix(block).ok()?.0;
        let whole = superblock.magic == SUPERBLOCK_MAGIC
            && superblock.copy == copy
            && superblock.crc == crc_without(block, SUPERBLOCK_CRC_AT);
        let Self { sequence, generation, replay_sequence, first_sequence, .. } = superblock;
        let counters = [sequence, generation, replay_sequence, first_sequence];
        (whole && are_counters(&counters)).then_some(superblock)
    }
}

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
    pub(crate) reserved: [u8; 14],
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
pub(crate) const FLAG_PARTIAL: u8 = 2;

/// One change of the cache's state.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RecordEntry {
    /// Line number on the origin.
    pub(crate) line: U64,
    pub(crate) slot: U32,
    /// CRC-32C of the line's data.
    pub(crate) crc: U32,
    /// Valid sectors, lowest bit first; zero unless partial.
    pub(crate) mask: U128,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: [u8; 6],
}

pub(crate) const ENTRY_BYTES: usize = size_of::<RecordEntry>();
const _: () = assert!(ENTRY_BYTES == 40);

impl RecordHead {
    /// Puts head and CRC into `unit`, whose entries are already in place.
    pub(crate) fn seal(self, unit: &mut [u8]) {
        unit[..RECORD_HEAD_BYTES].copy_from_slice(self.as_bytes());
        unit[RECORD_CRC_AT..RECORD_CRC_AT + 4].fill(0);
        let crc = crc32c(unit);
        unit[RECORD_CRC_AT..RECORD_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// The head in `unit`, if it is one, whole, of cache `uuid`, and belongs at this place.
    pub(crate) fn decode(unit: &[u8], uuid: &[u8; 16], segment: u32, at: u32) -> Option<Self> {
        let head = Self::read_from_prefix(unit).ok()?.0;
        let plausible = head.magic == RECORD_MAGIC
            && head.uuid == *uuid
            && head.segment == segment
            && head.unit == at
            && head.entry_count.get() as usize <= entries_per_record(unit.len())
            && are_counters(&[head.sequence, head.generation, head.epoch]);
        let whole = head.crc == crc_without(unit, RECORD_CRC_AT);
        (plausible && (whole || canary::is(Canary::RecordChecksumIgnored))).then_some(head)
    }

    /// The entries behind a decoded head.
    pub(crate) fn entries(&self, unit: &[u8]) -> Vec<RecordEntry> {
        let count = self.entry_count.get() as usize;
        let bytes = &unit[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + count * ENTRY_BYTES];
        let entry = |chunk| RecordEntry::read_from_bytes(chunk).expect("40 bytes");
        bytes.chunks_exact(ENTRY_BYTES).map(entry).collect()
    }
}

/// Entries that fit into the first unit of a record.
pub(crate) const fn entries_per_record(unit_bytes: usize) -> usize {
    (unit_bytes - RECORD_HEAD_BYTES) / ENTRY_BYTES
}

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

/// A chunk of the map: the state of slots, in their order.
pub(crate) const CHUNK_MAGIC: u32 = 0x4b43_4c56;
/// A chunk of the list of dirty lines: each with its slot.
pub(crate) const DIRTY_CHUNK_MAGIC: u32 = 0x4443_4c56;

/// The head of a checkpoint chunk; the state of `count` slots follows, in the map those from
/// `first_slot` on, in the list of dirty lines each behind its slot's number.
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

/// What a chunk must call itself.
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

/// Where everything is on one SSD; follows from the superblock alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) line_bytes: u64,
    /// The grain of the log: a record's head takes one unit. At most a line.
    pub(crate) unit_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) segment_count: u32,
    pub(crate) slots_per_segment: u32,
    pub(crate) segments_base: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) origin_sectors: u64,
}

impl Geometry {
    /// Lays a cache out on an SSD of `ssd_bytes`.
    ///
    /// # Errors
    /// A sentence for the user when it is too small.
    pub(crate) fn plan(
        options: &FormatOptions,
        ssd_bytes: u64,
        origin_sectors: u64,
    ) -> Result<Self, String> {
        let line_bytes = options.line_size.bytes();
        let mut geometry = Self {
            line_bytes,
            unit_bytes: line_bytes.min(4096),
            segment_bytes: segment_bytes_for(ssd_bytes).max(16 * line_bytes),
            segment_count: 0,
            slots_per_segment: 0,
            segments_base: 0,
            checkpoint_bytes: 0,
            origin_sectors,
        };
        geometry.slots_per_segment = (geometry.segment_bytes / line_bytes) as u32;
        // Fewer segments need a smaller checkpoint: one correction step settles it.
        let mut count = ssd_bytes.saturating_sub(CHECKPOINT_BASE) / geometry.segment_bytes;
        for _ in 0..2 {
            geometry.segment_count = u32::try_from(count).unwrap_or(u32::MAX);
            geometry.checkpoint_bytes =
                (geometry.chunk_count() + geometry.dirty_chunks_max()) * CHUNK_BYTES as u64;
            geometry.segments_base = CHECKPOINT_BASE + 2 * geometry.checkpoint_bytes;
            count = ssd_bytes.saturating_sub(geometry.segments_base) / geometry.segment_bytes;
        }
        geometry.segment_count = u32::try_from(count).unwrap_or(u32::MAX);
        if count < SEGMENTS_MIN {
            let needed =
                CHECKPOINT_BASE + 4 * CHUNK_BYTES as u64 + SEGMENTS_MIN * geometry.segment_bytes;
            return Err(format!(
                "the SSD has {} KiB; a cache needs at least {} KiB",
                ssd_bytes / KIB,
                needed / KIB
            ));
        }
        if u64::from(geometry.segment_count) * u64::from(geometry.slots_per_segment) >= 1 << 32 {
            return Err("the SSD has more than 2^32 blocks; use a larger block size".to_owned());
        }
        if geometry.origin_lines() > LINE_LIMIT {
            return Err("the origin has 2^40 blocks or more; use a larger block size".to_owned());
        }
        Ok(geometry)
    }

    /// The geometry that a superblock describes, checked against the device it is on.
    ///
    /// # Errors
    /// A sentence for the user when the two do not fit.
    pub(crate) fn of(superblock: &Superblock, ssd_bytes: u64) -> Result<Self, String> {
        if superblock.ssd_bytes > ssd_bytes {
            return Err(format!(
                "the cache was made on {} bytes but the device has only {ssd_bytes}: it is truncated",
                superblock.ssd_bytes
            ));
        }
        let line_size = crate::config::LineSize::new(superblock.line_bytes.get().into())?;
        let options = FormatOptions {
            line_size,
            policy: crate::policy::PolicyKind::Lru,
            uuid: superblock.uuid,
        };
        let made_on = superblock.ssd_bytes.get();
        let geometry = Self::plan(&options, made_on, superblock.origin_sectors.get())?;
        let same = geometry.segment_bytes == u64::from(superblock.segment_bytes.get())
            && geometry.unit_bytes == u64::from(superblock.unit_bytes.get())
            && geometry.segment_count == superblock.segment_count.get();
        if same { Ok(geometry) } else { Err("its layout is not one this version makes".to_owned()) }
    }

    /// Bytes that the checkpoint keeps per slot: line, flags and CRC, mask.
    pub(crate) fn state_bytes_per_slot(&self) -> usize {
        5 + 4 + self.mask_bytes()
    }

    /// Bytes of a mask with one bit per sector of a line.
    pub(crate) fn mask_bytes(&self) -> usize {
        (self.line_sectors() as usize).div_ceil(8)
    }

    /// Slots in one checkpoint chunk.
    pub(crate) fn slots_per_chunk(&self) -> u32 {
        ((CHUNK_BYTES - CHUNK_HEAD_BYTES) / self.state_bytes_per_slot()) as u32
    }

    /// The slots whose state is in chunk `index` of the map.
    pub(crate) fn slots_of_chunk(&self, index: u64) -> std::ops::Range<u32> {
        let per_chunk = u64::from(self.slots_per_chunk());
        let end = ((index + 1) * per_chunk).min(self.slot_count().into());
        (index * per_chunk) as u32..end as u32
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        u64::from(self.slot_count()).div_ceil(u64::from(self.slots_per_chunk())).max(1)
    }

    /// Dirty lines in one chunk of their list.
    pub(crate) fn dirty_per_chunk(&self) -> usize {
        (CHUNK_BYTES - CHUNK_HEAD_BYTES) / (4 + self.state_bytes_per_slot())
    }

    /// Chunks of the list of dirty lines: room for a quarter of the slots.
    pub(crate) fn dirty_chunks_max(&self) -> u64 {
        u64::from(self.slot_count()).div_ceil(4 * self.dirty_per_chunk() as u64).max(1)
    }

    pub(crate) fn slot_count(&self) -> u32 {
        (u64::from(self.segment_count) * u64::from(self.slots_per_segment)).min(u64::from(u32::MAX))
            as u32
    }

    pub(crate) fn line_sectors(&self) -> u64 {
        self.line_bytes / 512
    }

    pub(crate) fn units_per_segment(&self) -> u32 {
        (self.segment_bytes / self.unit_bytes) as u32
    }

    pub(crate) fn units_per_line(&self) -> u32 {
        (self.line_bytes / self.unit_bytes) as u32
    }

    pub(crate) fn segment_of(&self, slot: u32) -> u32 {
        slot / self.slots_per_segment
    }

    /// Where a unit of a segment is on the SSD.
    pub(crate) fn lba_of(&self, segment: u32, unit: u32) -> Lba {
        let segment_start = self.segments_base + u64::from(segment) * self.segment_bytes;
        Lba::from_bytes(segment_start + u64::from(unit) * self.unit_bytes)
    }

    /// Where a slot is on the SSD.
    pub(crate) fn lba_of_slot(&self, slot: u32) -> Lba {
        Lba::from_bytes(self.segments_base + u64::from(slot) * self.line_bytes)
    }

    /// The unit in which the first head stands that goes into this slot of a segment.
    pub(crate) fn first_head_in(&self, slot: u32) -> u32 {
        (slot + 1) * self.units_per_line() - 1
    }

    /// The slot of a segment behind the one with this head.
    pub(crate) fn slot_behind(&self, unit: u32) -> u32 {
        unit / self.units_per_line() + 1
    }

    /// Where chunk `index` of checkpoint area `area` is on the SSD.
    pub(crate) fn chunk_lba(&self, area: u32, index: u64) -> Lba {
        let base = CHECKPOINT_BASE + u64::from(area) * self.checkpoint_bytes;
        Lba::from_bytes(base + index * CHUNK_BYTES as u64)
    }

    /// Lines of the origin; the last one may be short.
    pub(crate) fn origin_lines(&self) -> u64 {
        self.origin_sectors.div_ceil(self.line_sectors())
    }

    /// Lines the cache holds when full: a fourteenth of the slots stays free for record heads and for
    /// what the log writes next. Ten segments are the least: four prepared, two open, and enough
    /// dead units in the rest to prepare more.
    pub(crate) fn capacity_lines(&self) -> u64 {
        let reserve = (u64::from(self.segment_count) / 14).max(10);
        (u64::from(self.segment_count) - reserve) * u64::from(self.slots_per_segment)
    }

    /// What may wait for the log: `most` bytes, on a small SSD a sixteenth of the segments.
    pub(crate) fn backlog_bytes(&self, most: u64) -> u64 {
        most.min(u64::from(self.segment_count) * self.segment_bytes / 16)
    }

    /// Lines in one intent region.
    pub(crate) fn lines_per_region(&self) -> u64 {
        let floor = 16 * MIB / self.line_bytes;
        self.origin_lines().div_ceil(INTENT_REGIONS_MAX).max(floor)
    }
}
