//! Loading state: the part of a checkpoint's map that is not in memory yet, or out of date. Pure.

use crate::format::chunk::ChunkName;
use crate::format::geometry::Geometry;
use crate::format::superblock::Superblock;
use crate::map::ranges::LineRanges;
use crate::memory::{self, NoMemory, bytes_of};
use crate::numbers::{IntentRegion, Line, MapChunk, Slot};

/// Where the map of a checkpoint is on the SSD.
#[derive(Clone, Copy)]
pub(crate) struct StoredMap {
    pub(crate) area: u32,
    pub(crate) chunks: u64,
    replay_sequence: u64,
}

impl StoredMap {
    pub(crate) fn of(found: &Superblock) -> Self {
        Self {
            area: found.checkpoint_area.get(),
            chunks: found.checkpoint_chunks.get(),
            replay_sequence: found.replay_sequence.get(),
        }
    }

    pub(crate) fn chunk_name(&self, uuid: [u8; 16], magic: u32, index: u32) -> ChunkName {
        ChunkName { magic, uuid, replay_sequence: self.replay_sequence, index }
    }
}

/// The intent bits as they were at some moment.
pub(crate) struct IntentBits {
    bits: Vec<u8>,
    sectors_per_region: u64,
}

impl IntentBits {
    pub(crate) fn new(bits: Vec<u8>, sectors_per_region: u64) -> Self {
        Self { bits, sectors_per_region }
    }

    /// Whether the bit of this sector's region is set.
    pub(crate) fn is_set(&self, sector: u64) -> bool {
        let (byte, bit) = IntentRegion::of_sector(sector, self.sectors_per_region).bit();
        self.bits[byte] & bit != 0
    }
}

/// A map that is not loaded yet, or not all of it.
pub(crate) struct Loading {
    map: StoredMap,
    /// Where to begin: behind the end of the log is what it left longest ago, the emptiest of all.
    first_chunk: MapChunk,
    /// One bit for every slot of which the map is not to be asked.
    decided: Vec<u64>,
    /// Lines of which the map is not to be asked.
    void: LineRanges,
    /// After an unclean stop: regions in which clean lines are not trusted.
    distrusted: Option<IntentBits>,
    /// Clean lines in what was not taken in yet, out of date or not.
    lines_left: u64,
}

impl Loading {
    /// The whole of the map that the superblock names.
    pub(crate) fn new(found: &Superblock, geometry: &Geometry) -> Result<Self, NoMemory> {
        Ok(Self {
            map: StoredMap::of(found),
            first_chunk: MapChunk(0),
            decided: memory::zeroes(geometry.slot_count().div_ceil(64).into())?,
            void: LineRanges::default(),
            distrusted: None,
            lines_left: found.checkpoint_lines.get().min(geometry.slot_count().into()),
        })
    }

    /// The memory of a loading.
    pub(crate) fn bytes_for(geometry: &Geometry) -> u64 {
        bytes_of::<u64>(geometry.slot_count().div_ceil(64).into())
    }

    pub(crate) fn lines_left(&self) -> u64 {
        self.lines_left
    }

    /// So many clean lines of the map have been taken in, or were out of date.
    pub(crate) fn count_taken(&mut self, lines: u64) {
        self.lines_left = self.lines_left.saturating_sub(lines);
    }

    /// Where the map is, and the chunk with which loading begins.
    pub(crate) fn source(&self) -> (StoredMap, MapChunk) {
        (self.map, self.first_chunk)
    }

    /// Loading begins with this chunk.
    pub(crate) fn begin_with(&mut self, chunk: MapChunk) {
        self.first_chunk = chunk;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.decided.len() * 8 + self.void.len() * 16
    }

    pub(crate) fn is_decided(&self, slot: Slot) -> bool {
        self.decided[slot.index() / 64] & 1 << (slot.0 % 64) != 0
    }

    /// Whether what the map says of a line is out of date.
    pub(crate) fn is_void(&self, line: Line) -> bool {
        self.void.contains(line)
    }

    /// Whether a clean line that begins with this sector is not trusted.
    pub(crate) fn is_distrusted(&self, sector: u64) -> bool {
        self.distrusted.as_ref().is_some_and(|bits| bits.is_set(sector))
    }

    /// Notes that the content of a slot is known.
    pub(crate) fn decide(&mut self, slot: Slot) {
        self.decided[slot.index() / 64] |= 1 << (slot.0 % 64);
    }

    /// Notes that the stored map is out of date about these lines.
    pub(crate) fn void(&mut self, first: Line, last: Line) {
        self.void.insert(first, last);
    }

    /// A replayed record took a line out of a slot.
    pub(crate) fn replay_drop(&mut self, line: Line, slot: Slot) {
        // A line that the same log had brought there may be in the map elsewhere.
        if self.is_decided(slot) {
            self.void(line, line);
        }
        self.decide(slot);
    }

    /// Clean lines of regions whose bit is set are not to be taken in.
    pub(crate) fn distrust(&mut self, bits: IntentBits) {
        self.distrusted = Some(bits);
    }
}
