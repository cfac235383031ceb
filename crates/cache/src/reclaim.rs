//! Reclaiming: old segments are emptied so that the log always finds a free one.
//!
//! Eviction and overwriting empty most segments by themselves. When free ones run low, the closed
//! segment with the fewest live lines is read, checked, and its lines are appended again. A segment
//! is reused only when everything that emptied it is durable and no replay would walk it.

use std::rc::Rc;

use voltier_block::{BlockDevice, IoResult};

use crate::cache::Inner;
use crate::join::{Part, join_all};
use crate::log::{Change, Source};
use crate::segments::RECLAIM_RESERVE;

/// Lines moved at once: four records' worth, so that moving keeps the SSD busy and a client's
/// write never waits behind more than that.
const MOVE_LINES: usize = 64;
/// Records after which a checkpoint is due at the latest: their heads are read in about 5 s.
const REPLAY_RECORDS_MAX: u64 = 400_000;
/// Records after which a checkpoint may be due at the earliest.
const REPLAY_RECORDS_MIN: u64 = 16_384;

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// The task that keeps free segments and short replays.
    pub(crate) async fn reclaim(self: Rc<Self>) {
        loop {
            if self.failed() || (self.stopping.get() && self.log_is_empty()) {
                return;
            }
            self.collect();
            let progress = if self.checkpoint_is_due() {
                self.checkpoint().await.is_ok()
            } else if self.free_is_low() {
                self.make_space().await
            } else {
                false
            };
            if !progress {
                self.reclaim_work.wait().await;
            }
        }
    }

    /// Frees what can be freed and tells the log.
    pub(crate) fn collect(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let before = state.segments.free_count();
        state.segments.collect(&state.index, state.next_sequence, state.durable_sequence);
        if state.segments.free_count() > before {
            self.log_work.notify();
        }
    }

    fn free_is_low(&self) -> bool {
        let low = RECLAIM_RESERVE + 1 + self.geometry.segment_count as usize / 64;
        self.state.borrow().segments.free_count() < low
    }

    /// A replay should stay short, and should not keep too many segments from being reused.
    fn checkpoint_is_due(&self) -> bool {
        let checkpoint_units = self.geometry.checkpoint_bytes / 4096;
        let records = (16 * checkpoint_units).clamp(REPLAY_RECORDS_MIN, REPLAY_RECORDS_MAX);
        self.records_since_checkpoint.get() >= records
            || self.state.borrow().segments.in_replay() > self.geometry.segment_count as usize / 4
    }

    /// One step towards a free segment; false when there is nothing to do.
    async fn make_space(&self) -> bool {
        let (want_flush, want_checkpoint) = {
            let state = self.state.borrow();
            state.segments.waiting(state.durable_sequence)
        };
        if want_flush > 0 {
            // What emptied them may still be on its way to the SSD.
            return self.all_acked().await.is_ok() && self.make_durable().await.is_ok();
        }
        if want_checkpoint > 0 {
            return self.checkpoint().await.is_ok();
        }
        let victim = {
            let state = self.state.borrow();
            let stuck = self.stuck_segments.borrow();
            state.segments.victim(&state.index, |segment| {
                !stuck.contains(&segment) && state.index.live_in(segment) <= self.worth_emptying()
            })
        };
        match victim {
            Some(segment) => self.empty_segment(segment).await.is_ok(),
            None => false,
        }
    }

    /// Live lines above which emptying a segment gains too little: its record heads alone may take
    /// what it frees.
    fn worth_emptying(&self) -> u32 {
        let slots = self.geometry.slots_per_segment;
        slots - (slots / 16).max(1)
    }

    /// Appends the live lines of a segment again.
    async fn empty_segment(&self, segment: u32) -> IoResult<()> {
        let first = segment * self.geometry.slots_per_segment;
        let mut slots = first..first + self.geometry.slots_per_segment;
        loop {
            let batch: Vec<u32> = {
                let state = self.state.borrow();
                slots.by_ref().filter(|slot| state.index.is_used(*slot)).take(MOVE_LINES).collect()
            };
            if batch.is_empty() {
                return Ok(());
            }
            let reads: Vec<Part<'_, Option<Change>>> = batch
                .into_iter()
                .map(|slot| {
                    let part: Part<'_, _> = Box::pin(self.prepare_move(slot));
                    part
                })
                .collect();
            let moves = join_all(reads).await.into_iter().flatten();
            let number = self.queue_internal(moves);
            if number > 0 {
                self.internal_acked(number).await?;
            }
        }
    }

    async fn prepare_move(&self, slot: u32) -> Option<Change> {
        let pending = || self.state.borrow().index.is_pending(slot);
        self.log_progress.until(|| self.failed() || !pending()).await;
        let (line, mask) = {
            let state = self.state.borrow();
            if !state.index.is_used(slot) || self.failed() {
                return None;
            }
            (state.index.line_of(slot), state.index.mask(slot))
        };
        match self.read_slot(slot).await {
            Ok(data) => {
                let source = Source::Move { from: slot };
                Some(Change::Data { line, data: data.freeze(), mask, source })
            }
            Err(_) => {
                if self.give_up_line(line, slot).is_err() {
                    // A damaged dirty line cannot be moved: its segment stays as it is.
                    let segment = self.geometry.segment_of(slot);
                    self.stuck_segments.borrow_mut().insert(segment);
                }
                None
            }
        }
    }
}
