//! Checkpoints: the state of every slot, written while the cache serves.
//!
//! The state is copied chunk by chunk while lines move, so a checkpoint is fuzzy. A replay from the log
//! position of its begin repairs whatever moved meanwhile. Two areas take turns, and the superblock that
//! names the new one is written last.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, IoResult};
use voltier_ring::{Signal, join_all};

use crate::canary::{self, Canary};
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::format::superblock::{STATE_CLEAN, STATE_OPEN, Superblock, policy_number};
use crate::log::commit::Log;
use crate::log::intents::Intents;
use crate::log::map_copy::MapCopy;
use crate::map::shared::Map;
use crate::policy::PolicyKind;

/// Chunks on their way at once.
const CHUNKS_IN_FLIGHT: u64 = 4;

/// The checkpoints of one cache, and the superblock that names them.
pub(crate) struct Checkpointer<S, O> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    intents: Rc<Intents>,
    superblock: Cell<Superblock>,
    /// Records and entries of the log when the last checkpoint began.
    totals_at_begin: Cell<(u64, u64)>,
    is_writing: Cell<bool>,
    /// Checkpoints that ended.
    ended: Signal,
}

/// A checkpoint under way, until dropped.
struct Writing<'a> {
    is_writing: &'a Cell<bool>,
    ended: &'a Signal,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.is_writing.set(false);
        self.ended.notify();
    }
}

impl<S: BlockDevice, O: BlockDevice> Checkpointer<S, O> {
    pub(crate) fn new(
        map: Rc<Map>,
        ssd: Rc<Ssd<S>>,
        origin: Rc<Origin<O>>,
        log: Rc<Log<S>>,
        intents: Rc<Intents>,
        superblock: Superblock,
    ) -> Rc<Self> {
        Rc::new(Self {
            map,
            ssd,
            origin,
            log,
            intents,
            superblock: Cell::new(superblock),
            totals_at_begin: Cell::new((0, 0)),
            is_writing: Cell::new(false),
            ended: Signal::new(),
        })
    }

    /// The next checkpoint records this policy.
    pub(crate) fn set_policy(&self, kind: PolicyKind) {
        let mut superblock = self.superblock.get();
        superblock.policy = policy_number(kind).into();
        self.superblock.set(superblock);
    }

    /// Records and their entries since the last checkpoint began.
    pub(super) fn since(&self) -> (u64, u64) {
        let ((records, entries), begin) = (self.log.totals(), self.totals_at_begin.get());
        (records - begin.0, entries - begin.1)
    }

    /// Writes a checkpoint; the cache stays open. Another one under way is enough, when that has ended.
    ///
    /// # Errors
    /// The SSD's; it takes no more writes then.
    pub(crate) async fn checkpoint(&self) -> IoResult<()> {
        if self.is_writing.replace(true) {
            self.ended.until(|| !self.is_writing.get()).await;
            return Ok(());
        }
        let written = {
            let _writing = Writing { is_writing: &self.is_writing, ended: &self.ended };
            self.write_checkpoint(STATE_OPEN).await
        };
        if written.is_err() {
            self.ssd.refuse_writes();
        }
        written
    }

    /// Writes the checkpoint of a cache whose log has ended: the next start finds it stopped in order.
    ///
    /// # Errors
    /// The SSD's.
    pub(crate) async fn checkpoint_at_stop(&self) -> IoResult<()> {
        self.write_checkpoint(STATE_CLEAN).await
    }

    async fn write_checkpoint(&self, end_state: u32) -> IoResult<()> {
        let (replay_sequence, position) = self.log.replay_point();
        assert!(self.map.get().loading().is_none(), "a checkpoint has the whole map");
        self.totals_at_begin.set(self.log.totals());
        self.intents.begin_clearing();
        let failed_flushes = self.origin.failed_flushes();
        let area = 1 - self.superblock.get().checkpoint_area.get();
        let (lines, dirty_chunks) = self.write_map(area, replay_sequence).await?;
        // The state may show records that are still on their way, also such as were formed during the
        // copy. Without them the map would point at slots that were never written.
        self.log.all_acked().await?;
        if !canary::is(Canary::LabelBeforeBody) {
            self.ssd.flush().await?;
        }
        // The log needs segments, and has dirty lines to take, while the origin does not answer.
        let origin_flushed = self.origin.flush_unless_silent().await
            && self.origin.failed_flushes() == failed_flushes;
        let (geometry, mut superblock) = (self.map.geometry(), self.superblock.get());
        superblock.sequence = (superblock.sequence.get() + 1).into();
        superblock.checkpoint_area = area.into();
        superblock.checkpoint_chunks = geometry.chunk_count().into();
        superblock.checkpoint_lines = lines.into();
        superblock.dirty_chunks = dirty_chunks.into();
        superblock.replay_sequence = replay_sequence.into();
        superblock.replay_segment = position.segment.0.into();
        superblock.replay_unit = position.unit.into();
        superblock.replay_slot = position.slot.0.into();
        superblock.next_segment = position.next_segment.0.into();
        superblock.next_segment_unit = position.next_segment_unit.into();
        superblock.state = end_state.into();
        superblock.dirty_lines = self.map.get().index().dirty_lines().into();
        // In ordered mode a replay may begin in an earlier life, whose suspect lines it would bring back.
        // Nothing but the intent bits says that the start dropped them.
        let spans_a_start = replay_sequence < superblock.first_sequence.get();
        if end_state == STATE_CLEAN {
            // Every record is durable: a replay that ends before this one has met damage.
            superblock.first_sequence = self.log.next_sequence().into();
            let sectors = self.map.geometry().origin_sectors;
            match self.origin.fingerprint(sectors).await {
                Ok(number) => superblock.fingerprint = number.into(),
                // Without one the next start is one after an unclean stop, which needs none.
                Err(_) => superblock.state = STATE_OPEN.into(),
            }
            if self.intents.keeps_any() {
                // The next start drops clean lines, as after an unclean stop.
                superblock.state = STATE_OPEN.into();
            }
        }
        self.ssd.write_superblock(superblock).await?;
        self.superblock.set(superblock);
        self.map.change().segments_mut().set_replay_sequence(replay_sequence);
        self.log.free_prepared();
        // Last: until the superblock is written, a replay may bring back lines whose mistrust only
        // the intent bits record. A failing origin keeps its bits; its writes report the error.
        if origin_flushed && !spans_a_start {
            let cleared = self.intents.finish_clearing(self.ssd.device()).await;
            let Err(error) = cleared else { return Ok(()) };
            let attempt = async || self.intents.persist_bits(self.ssd.device()).await;
            return self.ssd.write_again(error, attempt).await;
        }
        Ok(())
    }

    /// Copies the state of all slots chunk by chunk, and writes the copies: the map, and the list of
    /// what is dirty in it. The lines in the map, and the chunks of the list.
    async fn write_map(&self, area: u32, replay_sequence: u64) -> IoResult<(u64, u32)> {
        let geometry = self.map.geometry();
        let mut copy = MapCopy::new(geometry, self.log.uuid(), replay_sequence);
        let chunks = geometry.chunk_count();
        let mut next = 0;
        while next < chunks {
            let until = (next + CHUNKS_IN_FLIGHT).min(chunks);
            let mut copies: Vec<(u64, Buf)> = Vec::new();
            for index in next..until {
                copies.push((index, copy.copy_chunk(self.map.get().index(), index)));
            }
            if until == chunks {
                copy.seal_dirty();
            }
            copies.append(&mut copy.take_ready());
            let copies: Vec<(u64, Bytes)> =
                copies.into_iter().map(|(index, chunk)| (index, chunk.freeze())).collect();
            if let Err(error) = self.write_chunks(area, &copies).await {
                let attempt = async || self.write_chunks(area, &copies).await;
                self.ssd.write_again(error, attempt).await?;
            }
            next = until;
        }
        Ok(copy.totals())
    }

    async fn write_chunks(&self, area: u32, chunks: &[(u64, Bytes)]) -> IoResult<()> {
        let geometry = self.map.geometry();
        let writes = chunks.iter().map(|(index, chunk)| {
            self.ssd.write(geometry.chunk_lba(area, *index), chunk.clone().into())
        });
        join_all(writes).await.into_iter().collect()
    }
}
