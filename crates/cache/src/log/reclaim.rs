//! Preparing segments, so that the log always finds one to write in.
//!
//! Nothing is moved: the log writes around the lines that live in a segment (see `segments.rs`).
//! The care lies in the moment at which a dead unit may be written again.

use std::rc::Rc;

use voltier_block::BlockDevice;

use crate::devices::ssd::Ssd;
use crate::log::checkpoint::Checkpointer;
use crate::log::commit::Log;
use crate::log::pressure::Pressure;
use crate::log::stage::Lifecycle;
use crate::map::contents::Contents;
use crate::map::segments::Preparing;
use crate::map::shared::Map;
use crate::numbers::Segment;

/// Prepared segments that are kept ahead of the log, at least: one flush makes all of them free.
const PREPARED_MIN: usize = 4;
/// Records after which a checkpoint is due at the latest: their heads are read in about 5 s.
const REPLAY_RECORDS_MAX: u64 = 400_000;
/// Records after which a checkpoint may be due at the earliest.
const REPLAY_RECORDS_MIN: u64 = 16_384;
/// Entries of records after which a checkpoint is due, as a part of the lines of the checkpoint. A
/// start replays so many, and the map that is written for them is a 50th of their data.
const REPLAY_ENTRIES_PART: u64 = 8;
/// The least number of such entries, for a small cache: 0.1 s of a start.
const REPLAY_ENTRIES_MIN: u64 = 1 << 20;
/// Records by which a checkpoint must shorten the replay: in ordered mode it may be few.
const REPLAY_ADVANCE_MIN: u64 = 16;

/// The reclaimer of one cache.
pub(crate) struct Reclaimer<S, O> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    checkpointer: Rc<Checkpointer<S, O>>,
    pressure: Rc<Pressure>,
    lifecycle: Rc<Lifecycle>,
}

impl<S: BlockDevice, O: BlockDevice> Reclaimer<S, O> {
    pub(crate) fn new(
        map: Rc<Map>,
        ssd: Rc<Ssd<S>>,
        log: Rc<Log<S>>,
        checkpointer: Rc<Checkpointer<S, O>>,
        pressure: Rc<Pressure>,
        lifecycle: Rc<Lifecycle>,
    ) -> Rc<Self> {
        Rc::new(Self { map, ssd, log, checkpointer, pressure, lifecycle })
    }

    /// The task that keeps segments prepared and replays short.
    pub(crate) async fn reclaim(self: Rc<Self>) {
        loop {
            if !self.ssd.takes_writes() || (self.lifecycle.is_log_ending() && self.log.is_empty()) {
                return;
            }
            // From here on: what is asked for during a step must not be missed after it.
            let asked = self.map.segments_asked_for();
            self.log.free_prepared();
            let progress = if self.checkpoint_is_due() {
                self.checkpointer.checkpoint().await.is_ok()
            } else if self.free_is_low() {
                self.make_space().await
            } else {
                false
            };
            if !progress {
                asked.await;
            }
        }
    }

    fn prepared_wanted(&self) -> usize {
        PREPARED_MIN + self.map.geometry().segment_count as usize / 64
    }

    fn free_is_low(&self) -> bool {
        self.map.get().segments().free_count() < self.prepared_wanted()
    }

    /// A replay should stay short, and should not keep too many segments from being reused.
    fn checkpoint_is_due(&self) -> bool {
        let geometry = self.map.geometry();
        let checkpoint_pages = geometry.checkpoint_bytes / 4096;
        let records_max = (16 * checkpoint_pages).clamp(REPLAY_RECORDS_MIN, REPLAY_RECORDS_MAX);
        let contents = self.map.get();
        if contents.loading().is_some() {
            // Checkpoints hold the whole map, and a part of it is not in memory yet.
            return false;
        }
        let (records, entries) = self.checkpointer.since();
        let entries_max = geometry.capacity_lines() / REPLAY_ENTRIES_PART;
        let long = records >= records_max
            || entries >= entries_max.max(REPLAY_ENTRIES_MIN)
            || contents.segments().in_replay() > geometry.segment_count as usize / 4;
        drop(contents);
        long && self.replay_advance() >= REPLAY_ADVANCE_MIN
    }

    /// Records by which a checkpoint would shorten the replay.
    fn replay_advance(&self) -> u64 {
        self.log.replay_point().0 - self.map.get().segments().replay_sequence()
    }

    /// One step towards free segments; false when there is nothing to do now.
    async fn make_space(&self) -> bool {
        if self.map.get().segments().preparing() > 0 {
            // Records that emptied them may still be on their way to the SSD.
            let before = self.map.get().segments().free_count();
            let durable =
                self.log.all_acked().await.is_ok() && self.log.make_durable().await.is_ok();
            self.log.free_prepared();
            // Else a read is under way: the log's next step asks again.
            return durable && self.map.get().segments().free_count() > before;
        }
        let (candidates, checkpoint_pays) = {
            let contents = self.map.get();
            contents.segments().candidates(contents.index(), self.worth_opening())
        };
        if checkpoint_pays && self.map.get().loading().is_none() {
            if self.replay_advance() > 0 {
                return self.checkpointer.checkpoint().await.is_ok();
            }
            // In ordered mode only the cleaner can let the replay begin later.
            self.pressure.let_log_wait();
        }
        self.prepare_some(&candidates)
    }

    /// Prepares the first of the candidates that have room, as many as are wanted.
    fn prepare_some(&self, candidates: &[Segment]) -> bool {
        let mut contents = self.map.change();
        let wanted = self.prepared_wanted().saturating_sub(contents.segments().free_count());
        let next = self.log.next_sequence();
        let (mut begun, mut read) = (0, false);
        for segment in candidates {
            match contents.prepare_segment(*segment, next) {
                Preparing::Begun => begun += 1,
                Preparing::Read => read = true,
                Preparing::NoRoom => {}
            }
            if begun == wanted {
                break;
            }
        }
        // While the map is loaded, better ones become known: nobody needs to hurry because of that.
        if begun == 0 && !read && contents.loading().is_none() {
            begun = usize::from(self.prepare_emptiest(&mut contents, next));
            if begun == 0 {
                self.pressure.let_log_wait();
                self.pressure.hurry();
            }
        }
        begun > 0
    }

    /// Every segment is nearly full: takes the emptiest all the same. The segment's clean lines go if it
    /// has not even one slot for heads and one for a line.
    fn prepare_emptiest(&self, contents: &mut Contents, next_sequence: u64) -> bool {
        let slots = self.map.geometry().slots_per_segment;
        let (all, _) = contents.segments().candidates(contents.index(), slots);
        let Some(emptiest) = all.first() else { return false };
        let mut prepared = contents.prepare_segment(*emptiest, next_sequence);
        if prepared == Preparing::NoRoom {
            contents.give_up_clean(*emptiest);
            prepared = contents.prepare_segment(*emptiest, next_sequence);
        }
        prepared == Preparing::Begun
    }

    /// Live lines above which a segment is left alone: it would hold little more than a head.
    fn worth_opening(&self) -> u32 {
        let slots = self.map.geometry().slots_per_segment;
        slots - (slots / 32).max(2)
    }
}
