//! Checkpoints: the state of every slot, written while the cache serves.
//!
//! The state is copied chunk by chunk while lines move, so a checkpoint is fuzzy. A replay from the log
//! position of its begin repairs whatever moved meanwhile. Two areas take turns, and the superblock that
//! names the new one is written last.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{Buf, Bytes, DriveControl, IoResult};
use voltier_ring::{Signal, join_all};

use crate::canary::{self, Canary};
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::format::position::Position;
use crate::format::superblock::{STATE_CLEAN, STATE_OPEN, Superblock, policy_number};
use crate::log::commit::Log;
use crate::log::intents::Intents;
use crate::log::map_copy::MapCopy;
use crate::map::shared::Map;
use crate::numbers::{AreaChunk, each_map_chunk};
use crate::policy::PolicyKind;

/// Chunks on their way at once.
const CHUNKS_IN_FLIGHT: u32 = 4;

/// The checkpoints of one cache, and the superblock that names them.
pub(crate) struct Checkpointer<S, O> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    intents: Rc<Intents>,
    /// The superblock on the SSD. Checkpoints alone set this cell: the end of a checkpoint replaces all that
    /// was set in it since the superblock was composed.
    superblock: Cell<Superblock>,
    /// The number of the policy that the next superblock records.
    policy_number: Cell<u32>,
    /// Records and entries of the log when the last checkpoint began.
    totals_at_begin: Cell<(u64, u64)>,
    is_writing: Cell<bool>,
    /// Checkpoints that ended.
    ended: Signal,
}

/// When a checkpoint is written.
enum Moment {
    /// While the cache serves.
    Serving,
    /// When the log has ended: the cache stops.
    Stopped,
}

/// Facts at the begin of a checkpoint.
struct Begun {
    /// The area that the checkpoint is written to.
    area: u32,
    /// The first record to replay, and the place of its head.
    replay_sequence: u64,
    position: Position,
    /// Flushes of the origin that had failed.
    failed_flushes: u64,
    /// Whether a replay begins in an earlier life, as it may in ordered mode. The replay brings back the
    /// suspect lines of that life, and nothing but the intent bits says that the start dropped them.
    spans_a_start: bool,
}

/// A map that was written.
struct WrittenMap {
    lines: u64,
    /// Chunks of the list of dirty lines, or `NO_DIRTY_LIST`.
    dirty_chunks: u32,
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

impl<S: DriveControl, O: DriveControl> Checkpointer<S, O> {
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
            policy_number: Cell::new(superblock.policy.get()),
            superblock: Cell::new(superblock),
            totals_at_begin: Cell::new((0, 0)),
            is_writing: Cell::new(false),
            ended: Signal::new(),
        })
    }

    /// The next superblock that is composed records this policy.
    pub(crate) fn set_policy(&self, kind: PolicyKind) {
        self.policy_number.set(policy_number(kind));
    }

    /// The superblock that the SSD has, with what the next one records.
    pub(crate) fn superblock(&self) -> Superblock {
        Superblock { policy: self.policy_number.get().into(), ..self.superblock.get() }
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
            self.write_checkpoint(Moment::Serving).await
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
        self.write_checkpoint(Moment::Stopped).await
    }

    async fn write_checkpoint(&self, moment: Moment) -> IoResult<()> {
        let begun = self.begin();
        let written = self.write_map(&begun).await?;
        self.make_durable().await?;
        let is_origin_flushed = self.flush_origin(&begun).await;
        let superblock = match moment {
            Moment::Serving => self.superblock_of(&begun, &written),
            Moment::Stopped => self.as_stopped(self.superblock_of(&begun, &written)).await,
        };
        self.ssd.write_superblock(superblock).await?;
        self.take_over(superblock);
        // Last: until the superblock is written, a replay may bring back lines whose mistrust only
        // the intent bits record. A failing origin keeps its bits; its writes report the error.
        if is_origin_flushed && !begun.spans_a_start {
            self.clear_intents().await?;
        }
        Ok(())
    }

    /// Begins a checkpoint: takes down where a replay from it begins, before the first slot is copied.
    fn begin(&self) -> Begun {
        assert!(self.map.get().loading().is_none(), "a checkpoint has the whole map");
        let (replay_sequence, position) = self.log.replay_point();
        self.totals_at_begin.set(self.log.totals());
        self.intents.begin_clearing();
        let before = self.superblock.get();
        Begun {
            area: 1 - before.checkpoint_area.get(),
            replay_sequence,
            position,
            failed_flushes: self.origin.failed_flushes(),
            spans_a_start: replay_sequence < before.first_sequence.get(),
        }
    }

    /// Copies the state of all slots chunk by chunk, and writes the chunks. The map has
    /// chunks, and so has the list of dirty slots.
    async fn write_map(&self, begun: &Begun) -> IoResult<WrittenMap> {
        let geometry = self.map.geometry();
        let mut copy = MapCopy::new(geometry, self.log.uuid(), begun.replay_sequence);
        let Range { start: mut next, end } = geometry.map_chunks();
        while next < end {
            let until = (next + CHUNKS_IN_FLIGHT).min(end);
            let mut chunks: Vec<(AreaChunk, Buf)> = Vec::new();
            for number in each_map_chunk(next..until) {
                let chunk = copy.copy_chunk(self.map.get().index(), number);
                chunks.push((number.in_area(), chunk));
            }
            if until == end {
                copy.seal_dirty();
            }
            chunks.append(&mut copy.take_ready());
            let chunks: Vec<(AreaChunk, Bytes)> =
                chunks.into_iter().map(|(place, chunk)| (place, chunk.freeze())).collect();
            if let Err(error) = self.write_chunks(begun.area, &chunks).await {
                let attempt = async || self.write_chunks(begun.area, &chunks).await;
                self.ssd.write_again(error, attempt).await?;
            }
            next = until;
        }
        let (lines, dirty_chunks) = copy.totals();
        Ok(WrittenMap { lines, dirty_chunks })
    }

    async fn write_chunks(&self, area: u32, chunks: &[(AreaChunk, Bytes)]) -> IoResult<()> {
        let geometry = self.map.geometry();
        let writes = chunks.iter().map(|(place, chunk)| {
            self.ssd.write(geometry.chunk_lba(area, *place), chunk.clone().into())
        });
        join_all(writes).await.into_iter().collect()
    }

    /// Makes the map durable, and every record that it may show. Some of these may still be on their way,
    /// also such as were formed during the copy. Without the records the map would point at slots that were
    /// never written.
    async fn make_durable(&self) -> IoResult<()> {
        self.log.all_acked().await?;
        if canary::is(Canary::LabelBeforeBody) {
            return Ok(());
        }
        self.ssd.flush().await
    }

    /// Flushes the origin; whether all that was written past the log before the checkpoint is durable there.
    /// Nobody waits for a silent origin: the log needs segments, and has dirty lines to take.
    async fn flush_origin(&self, begun: &Begun) -> bool {
        self.origin.flush_unless_silent().await
            && self.origin.failed_flushes() == begun.failed_flushes
    }

    /// The superblock that names this map, of a cache that serves on.
    fn superblock_of(&self, begun: &Begun, written: &WrittenMap) -> Superblock {
        let (before, position) = (self.superblock.get(), begun.position);
        Superblock {
            sequence: (before.sequence.get() + 1).into(),
            state: STATE_OPEN.into(),
            policy: self.policy_number.get().into(),
            checkpoint_area: begun.area.into(),
            checkpoint_chunks: self.map.geometry().chunk_count().into(),
            checkpoint_lines: written.lines.into(),
            dirty_chunks: written.dirty_chunks.into(),
            dirty_lines: self.map.get().index().dirty_lines().into(),
            replay_sequence: begun.replay_sequence.into(),
            replay_segment: position.segment.0.into(),
            replay_unit: position.unit.into(),
            replay_slot: position.slot.0.into(),
            next_segment: position.next_segment.0.into(),
            next_segment_unit: position.next_segment_unit.into(),
            ..before
        }
    }

    /// The same superblock for a cache whose log has ended. The state says that the cache was stopped in
    /// order, if the next start may trust all lines.
    async fn as_stopped(&self, mut superblock: Superblock) -> Superblock {
        // Every record is durable: a replay that ends before this one has met damage.
        superblock.first_sequence = self.log.next_sequence().into();
        superblock.state = STATE_CLEAN.into();
        match self.origin.fingerprint(self.map.geometry().origin_sectors).await {
            Ok(number) => superblock.fingerprint = number.into(),
            // Without a fingerprint the next start is as after an unclean stop, which needs none.
            Err(_) => superblock.state = STATE_OPEN.into(),
        }
        if !self.is_origin_settled() {
            // The next start drops clean lines of marked regions, as after an unclean stop.
            superblock.state = STATE_OPEN.into();
        }
        superblock
    }

    /// Whether the origin returns after a power cut what it returns now. After a failed flush a drive may keep
    /// in its memory what it will never write: the fingerprint of that would be another origin's later.
    pub(crate) fn is_origin_settled(&self) -> bool {
        let lacks_lines = self.origin.may_lack_lines() && self.map.get().index().dirty_lines() > 0;
        !self.intents.keeps_any() && !lacks_lines
    }

    /// Goes on from the superblock that is durable now: segments before the begin of the replay may be
    /// written again.
    fn take_over(&self, superblock: Superblock) {
        self.superblock.set(superblock);
        let replay_sequence = superblock.replay_sequence.get();
        self.map.change().segments_mut().set_replay_sequence(replay_sequence);
        self.log.free_prepared();
    }

    /// Clears the intent bits of regions that were not written past the log since the checkpoint began.
    async fn clear_intents(&self) -> IoResult<()> {
        let ssd = self.ssd.device();
        let Err(error) = self.intents.finish_clearing(ssd).await else { return Ok(()) };
        self.ssd.write_again(error, async || self.intents.persist_bits(ssd).await).await
    }
}
