//! Checkpoints: the state of every slot, written while the cache serves.
//!
//! The state is copied chunk by chunk while lines move, so a checkpoint is fuzzy; it counts from
//! the log position of its begin, and a replay from there repairs whatever moved meanwhile. Two
//! areas take turns, and the superblock that names the new one is written last.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Lba};
use voltier_ring::join_all;

use crate::cache::Inner;
use crate::canary::{self, Canary};
use crate::devices::fingerprint::fingerprint;
use crate::format::chunk::{
    CHUNK_BYTES, CHUNK_HEAD_BYTES, CHUNK_MAGIC, ChunkHead, DIRTY_CHUNK_MAGIC,
};
use crate::format::geometry::Geometry;
use crate::format::superblock::{
    BLOCK_BYTES, NO_DIRTY_LIST, STATE_CLEAN, STATE_OPEN, SUPERBLOCK_OFFSETS,
};
use crate::map::index::Index;
use crate::status::add;

/// Chunks on their way at once.
const CHUNKS_IN_FLIGHT: u64 = 4;

/// A copy of the map in the making.
struct MapCopy {
    geometry: Geometry,
    /// What all chunks have in common.
    head: ChunkHead,
    /// Lines copied.
    lines: u64,
    /// Entries of the last chunk of the list of dirty lines.
    dirty: Vec<u8>,
    /// Chunks of the list that are full, and where in the area they belong.
    dirty_ready: Vec<(u64, Buf)>,
    /// All chunks of the list so far, or `NO_DIRTY_LIST` when it has no room for them.
    dirty_chunks: u32,
}

impl MapCopy {
    fn new(geometry: &Geometry, uuid: [u8; 16], replay_sequence: u64) -> Self {
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

    /// The state of the slots of chunk `index` as it is now.
    fn copy_chunk(&mut self, index: &Index, number: u64) -> Buf {
        let mut chunk = Buf::zeroed(CHUNK_BYTES);
        let slots = self.geometry.slots_of_chunk(number);
        let head = ChunkHead {
            index: (number as u32).into(),
            first_slot: slots.start.into(),
            count: (slots.len() as u32).into(),
            ..self.head
        };
        let bytes = self.geometry.state_bytes_per_slot();
        for (slot, into) in slots.zip(chunk[CHUNK_HEAD_BYTES..].chunks_exact_mut(bytes)) {
            if !index.is_used(slot) {
                continue;
            }
            self.lines += 1;
            index.encode(slot, into);
            if index.is_dirty(slot) && self.dirty_chunks != NO_DIRTY_LIST {
                self.dirty.extend_from_slice(&slot.to_le_bytes());
                self.dirty.extend_from_slice(into);
                if self.dirty.len() / (4 + bytes) == self.geometry.dirty_per_chunk() {
                    self.seal_dirty();
                }
            }
        }
        head.seal(&mut chunk);
        chunk
    }

    /// Ends a chunk of the list of dirty lines.
    fn seal_dirty(&mut self) {
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
        let place = self.geometry.chunk_count() + u64::from(self.dirty_chunks);
        self.dirty_ready.push((place, chunk));
        self.dirty_chunks += 1;
    }
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// Writes a checkpoint; the cache stays open.
    pub(crate) async fn checkpoint(&self) -> IoResult<()> {
        if self.checkpointing.replace(true) {
            return Ok(());
        }
        let written = self.write_checkpoint(STATE_OPEN).await;
        self.checkpointing.set(false);
        if written.is_err() {
            self.fail_ssd();
        }
        written
    }

    async fn write_checkpoint(&self, end_state: u32) -> IoResult<()> {
        let (replay_sequence, position) = {
            let state = self.state.borrow();
            state.replay_point()
        };
        assert!(self.state.borrow().loading.is_none(), "a checkpoint has the whole map");
        self.records_since_checkpoint.set(0);
        self.entries_at_checkpoint.set(self.state.borrow().counts.entries);
        self.intents.begin_clearing();
        let area = 1 - self.superblock.borrow().checkpoint_area.get();
        let (lines, dirty_chunks) = self.write_map(area, replay_sequence).await?;
        // The state may show records that are still on their way, also such as were formed while it
        // was copied: without them the map would point at slots that were never written.
        let shown = self.state.borrow().next_sequence;
        let acked = || self.state.borrow().acked_sequence >= shown;
        self.log_progress.until(|| self.failed() || acked()).await;
        if self.failed() {
            return Err(IoError::Gone);
        }
        if !canary::is(Canary::LabelBeforeBody) {
            self.ssd.flush().await?;
        }
        let origin_flushed = self.flush_origin().await.is_ok();
        let mut superblock = *self.superblock.borrow();
        superblock.sequence = (superblock.sequence.get() + 1).into();
        superblock.checkpoint_area = area.into();
        superblock.checkpoint_chunks = self.geometry.chunk_count().into();
        superblock.checkpoint_lines = lines.into();
        superblock.dirty_chunks = dirty_chunks.into();
        superblock.replay_sequence = replay_sequence.into();
        superblock.replay_segment = position.segment.into();
        superblock.replay_unit = position.unit.into();
        superblock.replay_slot = position.slot.into();
        superblock.next_segment = position.next_segment.into();
        superblock.next_segment_unit = position.next_segment_unit.into();
        superblock.state = end_state.into();
        superblock.dirty_lines = self.state.borrow().index.dirty_lines().into();
        // In ordered mode a replay may begin in an earlier life, whose suspect lines it would bring
        // back: nothing but the marks says that the start dropped them.
        let spans_a_start = replay_sequence < superblock.first_sequence.get();
        if end_state == STATE_CLEAN {
            // Every record is durable: a replay that ends before this one has met damage.
            superblock.first_sequence = self.state.borrow().next_sequence.into();
            match fingerprint(&self.origin).await {
                Ok(number) => superblock.fingerprint = number.into(),
                // Without one the next start is one after an unclean stop, which needs none.
                Err(_) => superblock.state = STATE_OPEN.into(),
            }
        }
        self.write_superblock(superblock).await?;
        self.state.borrow_mut().segments.replay_sequence = replay_sequence;
        self.collect();
        // Last: until the superblock is written, a replay may bring back lines whose mistrust only
        // the marks record. A failing origin keeps its marks; its writes report the error.
        if origin_flushed && !spans_a_start {
            self.intents.finish_clearing(&self.ssd).await
        } else {
            Ok(())
        }
    }

    /// Copies the state of all slots chunk by chunk, and writes the copies: the map, and the list of
    /// what is dirty in it. The lines in the map, and the chunks of the list.
    async fn write_map(&self, area: u32, replay_sequence: u64) -> IoResult<(u64, u32)> {
        let uuid = self.state.borrow().uuid;
        let mut copy = MapCopy::new(&self.geometry, uuid, replay_sequence);
        let chunks = self.geometry.chunk_count();
        let mut next = 0;
        while next < chunks {
            let until = (next + CHUNKS_IN_FLIGHT).min(chunks);
            let mut copies: Vec<(u64, Buf)> = Vec::new();
            for index in next..until {
                copies.push((index, copy.copy_chunk(&self.state.borrow().index, index)));
            }
            if until == chunks {
                copy.seal_dirty();
            }
            copies.append(&mut copy.dirty_ready);
            let writes = copies.into_iter().map(|(index, chunk)| {
                add(&self.counters.ssd_written_bytes, CHUNK_BYTES as u64);
                let at = self.geometry.chunk_lba(area, index);
                self.ssd.write(at, chunk.into(), Durability::Cached)
            });
            join_all(writes).await.into_iter().collect::<IoResult<()>>()?;
            next = until;
        }
        Ok((copy.lines, copy.dirty_chunks))
    }

    /// Ends the background tasks after what is queued has gone out.
    async fn end_tasks(&self) {
        // The cleaner ends first, then the log when all is out, then reclaiming, which the log may
        // need until then. Nobody waits for fills any more.
        self.stopping.set(true);
        self.state.borrow_mut().user.forget_fills();
        self.wake_everybody();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks.into_iter().rev() {
            self.wake_everybody();
            task.await;
            // The cleaner has ended: what it had under way is queued.
            self.log_ending.set(true);
            self.state.borrow_mut().ending = true;
        }
    }

    pub(crate) async fn stop(self: Rc<Self>) -> IoResult<()> {
        // A checkpoint has the whole map, or there is none.
        self.loaded().await;
        self.end_tasks().await;
        if self.failed() {
            return self.flush_origin().await;
        }
        self.make_durable().await?;
        self.flush_origin().await?;
        self.write_checkpoint(STATE_CLEAN).await
    }

    pub(crate) async fn dissolve(self: Rc<Self>) -> IoResult<()> {
        self.end_tasks().await;
        self.flush_origin().await?;
        if self.failed() {
            return Ok(());
        }
        for offset in SUPERBLOCK_OFFSETS {
            let zeroes = Buf::zeroed(BLOCK_BYTES).into();
            self.ssd.write(Lba::from_bytes(offset), zeroes, Durability::Durable).await?;
        }
        self.ssd.flush().await
    }
}
