//! Preparing segments, so that the log always finds one to write in.
//!
//! Nothing is moved: the log writes around the lines that live in a segment (see `segments.rs`).
//! The care lies in the moment at which a dead unit may be written again.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::DriveControl;

use crate::devices::ssd::Ssd;
use crate::log::checkpoint::Checkpointer;
use crate::log::commit::Log;
use crate::log::pressure::Pressure;
use crate::log::stage::Lifecycle;
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
/// And the part of the replay.
const REPLAY_ADVANCE_PART: u64 = 4;
/// The part of a segment that must be free for the log to open it, while other segments have clean lines to
/// give up. Each one that it opens joins the replay. In ordered mode all would, for a line or two each.
const WORTH_OPENING_PART: u32 = 16;

/// Segments looked at for clean lines before others have their turn.
const SEGMENTS_PER_TURN: u32 = 16;

/// The reclaimer of one cache.
pub(crate) struct Reclaimer<S, O> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    checkpointer: Rc<Checkpointer<S, O>>,
    pressure: Rc<Pressure>,
    lifecycle: Rc<Lifecycle>,
    /// The segment that is asked first for its clean lines.
    next_given_up: Cell<Segment>,
}

/// The outcome of an attempt to prepare some segments.
#[derive(PartialEq, Eq)]
enum Prepared {
    Some,
    /// None, but one of them is only being read.
    Read,
    None,
}

impl<S: DriveControl, O: DriveControl> Reclaimer<S, O> {
    pub(crate) fn new(
        map: Rc<Map>,
        ssd: Rc<Ssd<S>>,
        log: Rc<Log<S>>,
        checkpointer: Rc<Checkpointer<S, O>>,
        pressure: Rc<Pressure>,
        lifecycle: Rc<Lifecycle>,
    ) -> Rc<Self> {
        let next_given_up = Cell::new(Segment(0));
        Rc::new(Self { map, ssd, log, checkpointer, pressure, lifecycle, next_given_up })
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
        // In ordered mode the replay may stay long, and a checkpoint is all of the map.
        let whole = self.log.next_sequence() - self.map.get().segments().replay_sequence();
        long && self.replay_advance() >= REPLAY_ADVANCE_MIN.max(whole / REPLAY_ADVANCE_PART)
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
        if self.map.get().loading().is_some() {
            // Better ones become known: nobody needs to hurry because of that.
            return self.prepare_some(&candidates) == Prepared::Some;
        }
        if checkpoint_pays {
            if self.replay_advance() > 0 {
                return self.checkpointer.checkpoint().await.is_ok();
            }
            // In ordered mode only the cleaner can let the replay begin later.
            self.pressure.let_log_wait();
        }
        match self.prepare_some(&candidates) {
            Prepared::Some => return true,
            // The end of the read asks again.
            Prepared::Read => return false,
            Prepared::None => {}
        }
        if self.give_up_clean_lines().await {
            return true;
        }
        if self.replay_advance() > 0 {
            // In ordered mode every segment may be in the replay.
            let is_written = self.checkpointer.checkpoint().await.is_ok();
            self.log.wake_waiters();
            return is_written;
        }
        if self.prepare_emptiest() {
            return true;
        }
        // Only the cleaner can let the replay begin later, or make lines clean.
        self.pressure.let_log_wait();
        self.pressure.hurry();
        self.log.wake_waiters();
        false
    }

    /// Prepares the first of the candidates that have room, as many as are wanted.
    fn prepare_some(&self, candidates: &[Segment]) -> Prepared {
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
        match (begun, read) {
            (0, false) => Prepared::None,
            (0, true) => Prepared::Read,
            _ => Prepared::Some,
        }
    }

    /// Prepares the emptiest segment, however little room it has.
    fn prepare_emptiest(&self) -> bool {
        let slots = self.map.geometry().slots_per_segment;
        let mut contents = self.map.change();
        let (all, _) = contents.segments().candidates(contents.index(), slots);
        let next = self.log.next_sequence();
        all.first().is_some_and(|it| contents.prepare_segment(*it, next) == Preparing::Begun)
    }

    /// Every segment that may be written is nearly full: one gives up its clean lines. Taken is the next one
    /// with half of its slots clean, or else the one with the most. False when none has any.
    async fn give_up_clean_lines(&self) -> bool {
        let count = self.map.geometry().segment_count;
        let enough = self.map.geometry().slots_per_segment / 2;
        let begin = self.next_given_up.get();
        let mut best = (0, begin);
        for step in 0..count {
            let segment = Segment((begin.0 + step) % count);
            let clean = self.map.get().clean_in_usable(segment);
            best = best.max((clean, segment));
            if clean >= enough {
                break;
            }
            if step % SEGMENTS_PER_TURN == SEGMENTS_PER_TURN - 1 {
                self.ssd.handle().yield_now().await;
            }
        }
        let (clean, segment) = best;
        let mut contents = self.map.change();
        // Others had their turn meanwhile.
        if clean == 0 || contents.clean_in_usable(segment) == 0 {
            return clean > 0;
        }
        self.next_given_up.set(Segment((segment.0 + 1) % count));
        contents.give_up_clean(segment);
        contents.prepare_segment(segment, self.log.next_sequence()) == Preparing::Begun
    }

    /// Live lines above which a segment is left alone: it would hold little more than a head.
    fn worth_opening(&self) -> u32 {
        let slots = self.map.geometry().slots_per_segment;
        slots - (slots / WORTH_OPENING_PART).max(2)
    }
}
