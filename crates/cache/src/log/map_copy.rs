//! A copy of the map for a checkpoint, chunk by chunk. Pure.

use voltier_block::Buf;

use crate::format::chunk::{
    CHUNK_BYTES, CHUNK_HEAD_BYTES, CHUNK_MAGIC, ChunkHead, DIRTY_CHUNK_MAGIC,
};
use crate::format::geometry::Geometry;
use crate::format::superblock::NO_DIRTY_LIST;
use crate::map::index::Index;
use crate::numbers::{AreaChunk, MapChunk, each_slot};

/// A copy of the map in the making.
pub(super) struct MapCopy {
    geometry: Geometry,
    /// The head with the fields that all chunks share.
    head: ChunkHead,
    /// Lines copied.
    lines: u64,
    /// Entries of the last chunk of the list of dirty lines.
    dirty: Vec<u8>,
    /// Chunks of the list that are full, and where in the area they belong.
    dirty_ready: Vec<(AreaChunk, Buf)>,
    /// All chunks of the list so far, or `NO_DIRTY_LIST` when it has no room for them.
    dirty_chunks: u32,
}

impl MapCopy {
    pub(super) fn new(geometry: &Geometry, uuid: [u8; 16], replay_sequence: u64) -> Self {
        Self {
            geometry: geometry.clone(),
            head: ChunkHead {
                magic: CHUNK_MAGIC.into(),
                crc: 0.into(),
                uuid,
                replay_sequence: replay_sequence.into(),
                index: 0.into(),
                first_slot: 0.into(),
                count: 0.into(),
                reserved: [0; 20],
            },
            lines: 0,
            dirty: Vec::new(),
            dirty_ready: Vec::new(),
            dirty_chunks: 0,
        }
    }

    /// The state of the slots of chunk `number` as it is now.
    pub(super) fn copy_chunk(&mut self, index: &Index, number: MapChunk) -> Buf {
        let mut chunk = Buf::zeroed(CHUNK_BYTES);
        let slots = self.geometry.slots_of_chunk(number);
        let head = ChunkHead {
            index: number.0.into(),
            first_slot: slots.start.0.into(),
            count: (slots.end - slots.start).into(),
            ..self.head
        };
        let bytes = self.geometry.state_bytes_per_slot();
        for (slot, into) in each_slot(slots).zip(chunk[CHUNK_HEAD_BYTES..].chunks_exact_mut(bytes))
        {
            if !index.is_used(slot) {
                continue;
            }
            self.lines += 1;
            index.encode(slot, into);
            if index.is_dirty(slot) && self.dirty_chunks != NO_DIRTY_LIST {
                self.dirty.extend_from_slice(&slot.0.to_le_bytes());
                self.dirty.extend_from_slice(into);
                if self.dirty.len() / (4 + bytes) == self.geometry.dirty_per_chunk() {
                    self.seal_dirty();
                }
            }
        }
        head.seal(&mut chunk);
        chunk
    }

    /// The chunks of the list that are full and were not taken yet, and where in the area they belong.
    pub(super) fn take_ready(&mut self) -> Vec<(AreaChunk, Buf)> {
        std::mem::take(&mut self.dirty_ready)
    }

    /// Lines copied, and chunks of the list or `NO_DIRTY_LIST`.
    pub(super) fn totals(&self) -> (u64, u32) {
        (self.lines, self.dirty_chunks)
    }

    /// Ends a chunk of the list of dirty lines.
    pub(super) fn seal_dirty(&mut self) {
        if self.dirty.is_empty() || self.dirty_chunks == NO_DIRTY_LIST {
            return;
        }
        if u64::from(self.dirty_chunks) == self.geometry.dirty_chunks_max() {
            self.dirty_chunks = NO_DIRTY_LIST;
            self.dirty = Vec::new();
            return;
        }
        let entries = std::mem::take(&mut self.dirty);
        let count = entries.len() / (4 + self.geometry.state_bytes_per_slot());
        let mut chunk = Buf::zeroed(CHUNK_BYTES);
        chunk[CHUNK_HEAD_BYTES..CHUNK_HEAD_BYTES + entries.len()].copy_from_slice(&entries);
        let head = ChunkHead {
            magic: DIRTY_CHUNK_MAGIC.into(),
            index: self.dirty_chunks.into(),
            count: (count as u32).into(),
            ..self.head
        };
        head.seal(&mut chunk);
        self.dirty_ready.push((self.geometry.dirty_chunk_in_area(self.dirty_chunks), chunk));
        self.dirty_chunks += 1;
    }
}
