//! Preparing segments, so that the log always finds one to write in.
//!
//! Nothing is moved: the log writes around the lines that live in a segment (see `segments.rs`).
//! What takes care here is when a dead unit may be written again.

use std::rc::Rc;

use voltier_block::BlockDevice;

use crate::cache::Inner;
use crate::log::form::State;
use crate::map::segments::Preparing;

/// Prepared segments that are kept ahead of the log, at least: one flush makes all of them free.
const PREPARED_MIN: usize = 4;
/// Records after which a checkpoint is due at the latest: their heads are read in about 5 s.
const REPLAY_RECORDS_MAX: u64 = 400_000;
/// Records after which a checkpoint may be due at the earliest.
const REPLAY_RECORDS_MIN: u64 = 16_384;
/// Entries of records after which a checkpoint is due, as a part of the lines it holds: a start
/// replays so many, and the map that is written for them is a 50th of their data.
const REPLAY_ENTRIES_PART: u64 = 8;
/// The same for a small cache: 0.1 s of a start.
const REPLAY_ENTRIES_MIN: u64 = 1 << 20;
/// Records by which a checkpoint must shorten the replay: in ordered mode it may be few.
const REPLAY_ADVANCE_MIN: u64 = 16;

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// The task that keeps segments prepared and replays short.
    pub(crate) async fn reclaim(self: Rc<Self>) {
        loop {
            if self.failed() || (self.log_ending.get() && self.log_is_empty()) {
                return;
            }
            // From here on: what is asked for during a step must not be missed after it.
            let asked = self.reclaim_work.wait();
            self.collect();
            let progress = if self.checkpoint_is_due() {
                self.checkpoint().await.is_ok()
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

    /// Frees what can be freed and tells the log.
    pub(crate) fn collect(&self) {
        let mut state = self.state.borrow_mut();
        let before = state.segments.free_count();
        let durable = state.durable_sequence;
        state.segments.collect(durable);
        if state.segments.free_count() > before {
            self.log_work.notify();
        }
    }

    fn prepared_wanted(&self) -> usize {
        PREPARED_MIN + self.geometry.segment_count as usize / 64
    }

    fn free_is_low(&self) -> bool {
        self.state.borrow().segments.free_count() < self.prepared_wanted()
    }

    /// A replay should stay short, and should not keep too many segments from being reused.
    fn checkpoint_is_due(&self) -> bool {
        let checkpoint_units = self.geometry.checkpoint_bytes / 4096;
        let records = (16 * checkpoint_units).clamp(REPLAY_RECORDS_MIN, REPLAY_RECORDS_MAX);
        if self.state.borrow().loading.is_some() {
            // What is not in memory cannot be written.
            return false;
        }
        let entries = self.state.borrow().counts.entries - self.entries_at_checkpoint.get();
        let entries_max = self.geometry.capacity_lines() / REPLAY_ENTRIES_PART;
        let long = self.records_since_checkpoint.get() >= records
            || entries >= entries_max.max(REPLAY_ENTRIES_MIN)
            || self.state.borrow().segments.in_replay() > self.geometry.segment_count as usize / 4;
        long && self.replay_advance() >= REPLAY_ADVANCE_MIN
    }

    /// Records by which a checkpoint would shorten the replay.
    fn replay_advance(&self) -> u64 {
        let state = self.state.borrow();
        state.replay_point().0 - state.segments.replay_sequence
    }

    /// One step towards free segments; false when there is nothing to do now.
    async fn make_space(&self) -> bool {
        if self.state.borrow().segments.preparing() > 0 {
            // What emptied them may still be on its way to the SSD.
            let before = self.state.borrow().segments.free_count();
            let durable = self.all_acked().await.is_ok() && self.make_durable().await.is_ok();
            self.collect();
            // Else a read is under way: the log's next step asks again.
            return durable && self.state.borrow().segments.free_count() > before;
        }
        let (candidates, checkpoint_pays) = {
            let state = self.state.borrow();
            state.segments.candidates(&state.index, self.worth_opening())
        };
        if checkpoint_pays && self.state.borrow().loading.is_none() {
            if self.replay_advance() > 0 {
                return self.checkpoint().await.is_ok();
            }
            // In ordered mode only the cleaner can let the replay begin later.
            self.log_waits_for_cleaner.set(true);
            self.dirty_changed.notify();
        }
        self.prepare_some(&candidates)
    }

    /// Prepares the first of the candidates that have room, as many as are wanted.
    fn prepare_some(&self, candidates: &[u32]) -> bool {
        let mut state = self.state.borrow_mut();
        let wanted = self.prepared_wanted().saturating_sub(state.segments.free_count());
        let state = &mut *state;
        let (mut begun, mut read) = (0, false);
        for number in candidates {
            let next = state.next_sequence;
            match state.segments.prepare(*number, next, &state.index, &self.geometry) {
                Preparing::Begun => begun += 1,
                Preparing::Read => read = true,
                Preparing::NoRoom => {}
            }
            if begun == wanted {
                break;
            }
        }
        // While the map is loaded, better ones become known: nobody needs to hurry because of that.
        if begun == 0 && !read && state.loading.is_none() {
            begun = usize::from(self.prepare_emptiest(state));
            if begun == 0 {
                self.log_waits_for_cleaner.set(true);
                self.dirty_changed.notify();
                self.hurry.notify();
            }
        }
        begun > 0
    }

    /// Every segment is nearly full: takes the emptiest all the same, and its clean lines if it has
    /// not even one slot for heads and one for a line.
    fn prepare_emptiest(&self, state: &mut State) -> bool {
        let (all, _) = state.segments.candidates(&state.index, self.geometry.slots_per_segment);
        let Some(emptiest) = all.first() else { return false };
        let next = state.next_sequence;
        let prepare = |state: &mut State| {
            state.segments.prepare(*emptiest, next, &state.index, &self.geometry)
        };
        let mut prepared = prepare(state);
        if prepared == Preparing::NoRoom {
            state.give_up_clean(*emptiest);
            prepared = prepare(state);
        }
        prepared == Preparing::Begun
    }

    /// Live lines above which a segment is left alone: it would hold little more than a head.
    fn worth_opening(&self) -> u32 {
        let slots = self.geometry.slots_per_segment;
        slots - (slots / 32).max(2)
    }
}
