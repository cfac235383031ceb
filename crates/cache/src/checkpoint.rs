//! Checkpoints: the state of every slot, written while the cache serves.
//!
//! The state is copied chunk by chunk while lines move, so a checkpoint is fuzzy; it counts from
//! the log position of its begin, and a replay from there repairs whatever moved meanwhile. Two
//! areas take turns, and the superblock that names the new one is written last.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Lba};

use crate::cache::Inner;
use crate::canary::{self, Canary};
use crate::fingerprint::fingerprint;
use crate::format::{
    BLOCK_BYTES, CHUNK_BYTES, CHUNK_HEAD_BYTES, CHUNK_MAGIC, ChunkHead, STATE_CLEAN, STATE_OPEN,
    SUPERBLOCK_OFFSETS,
};
use crate::join::{Part, join_all};
use crate::status::add;

/// Chunks on their way at once.
const CHUNKS_IN_FLIGHT: u64 = 4;

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
        self.records_since_checkpoint.set(0);
        self.intents.begin_clearing();
        let area = 1 - self.superblock.borrow().checkpoint_area.get();
        let chunks = self.geometry.chunk_count();
        let mut next = 0;
        while next < chunks {
            let until = (next + CHUNKS_IN_FLIGHT).min(chunks);
            let parts: Vec<Part<'_, IoResult<()>>> = (next..until)
                .map(|index| {
                    let part: Part<'_, _> =
                        Box::pin(self.write_chunk(area, index, replay_sequence));
                    part
                })
                .collect();
            join_all(parts).await.into_iter().collect::<IoResult<()>>()?;
            next = until;
        }
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
        superblock.checkpoint_chunks = chunks.into();
        superblock.replay_sequence = replay_sequence.into();
        superblock.replay_segment = position.segment.into();
        superblock.replay_unit = position.unit.into();
        superblock.next_segment = position.next_segment.into();
        superblock.next_segment_unit = position.next_segment_unit.into();
        superblock.state = end_state.into();
        superblock.dirty_lines = self.state.borrow().index.dirty_lines().into();
        if end_state == STATE_CLEAN {
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
        // In ordered mode a replay may begin in an earlier life, whose suspect lines it would bring
        // back: nothing but the marks says that the start dropped them.
        let spans_a_start = replay_sequence < superblock.first_sequence.get();
        if origin_flushed && !spans_a_start {
            self.intents.finish_clearing(&self.ssd).await
        } else {
            Ok(())
        }
    }

    async fn write_chunk(&self, area: u32, index: u64, replay_sequence: u64) -> IoResult<()> {
        let mut chunk = Buf::zeroed(CHUNK_BYTES);
        let per_chunk = self.geometry.slots_per_chunk();
        let first_slot = index as u32 * per_chunk;
        let count = per_chunk.min(self.geometry.slot_count() - first_slot);
        {
            let state = self.state.borrow();
            let bytes = self.geometry.state_bytes_per_slot();
            let body = chunk[CHUNK_HEAD_BYTES..].chunks_exact_mut(bytes);
            for (slot, into) in (first_slot..first_slot + count).zip(body) {
                if state.index.is_used(slot) {
                    state.index.encode(slot, into);
                }
            }
        }
        let head = ChunkHead {
            magic: CHUNK_MAGIC.into(),
            crc: 0.into(),
            uuid: self.state.borrow().uuid,
            replay_sequence: replay_sequence.into(),
            index: (index as u32).into(),
            first_slot: first_slot.into(),
            count: count.into(),
            reserved: [0; 20],
        };
        head.seal(&mut chunk);
        add(&self.counters.ssd_written_bytes, CHUNK_BYTES as u64);
        let at = self.geometry.chunk_lba(area, index);
        self.ssd.write(at, chunk.into(), Durability::Cached).await
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
