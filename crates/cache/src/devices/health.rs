//! What the cache does when its SSD or its origin fails: guarantees 4 to 6.

use voltier_block::{BlockDevice, IoError, IoResult};

use crate::cache::Inner;
use crate::log::change::Change;

/// Read errors of the SSD after which it is given up. Single bad lines are repaired or reported one
/// by one; a device that fails this often is failing.
const SSD_READ_ERRORS_MAX: u64 = 64;
/// Damaged lines that are remembered by number; beyond it only the count grows.
const DAMAGED_LINES_MAX: usize = 4096;

/// Whether the SSD still takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Online,
    /// It is gone: requests go to the origin; dirty lines that were on it are lost.
    Failed,
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    pub(crate) fn failed(&self) -> bool {
        self.health.get() == Health::Failed
    }

    /// Gives the SSD up. The index stays as it is: its dirty lines are the list of what is lost.
    pub(crate) fn fail_ssd(&self) {
        if self.failed() {
            return;
        }
        self.health.set(Health::Failed);
        let unflushed = {
            let state = self.state.borrow();
            state.durable_sequence < state.acked_sequence
        };
        self.unflushed_loss.set(unflushed);
        self.state.borrow_mut().abandon();
        let gate = self.failure_gate.borrow_mut().take();
        if let Some(gate) = gate
            && let Some(inner) = self.me.upgrade()
        {
            self.gate_open.set(false);
            drop(self.handle.spawn(async move {
                gate().await;
                inner.gate_open.set(true);
                inner.gate_opened.notify();
            }));
        }
        self.wake_everybody();
    }

    /// After a failure nothing may change on the origin before the loss is on record: else an SSD
    /// that comes back could be trusted again.
    pub(crate) async fn past_gate(&self) {
        self.gate_opened.until(|| self.gate_open.get()).await;
    }

    pub(crate) fn wake_everybody(&self) {
        for signal in [
            &self.log_work,
            &self.log_progress,
            &self.reclaim_work,
            &self.dirty_changed,
            &self.flushed,
            &self.hurry,
            &self.loading_progress,
        ] {
            signal.notify();
        }
    }

    /// A read of the SSD failed; `error` decides whether it is given up.
    pub(crate) fn count_ssd_error(&self, error: IoError) {
        let errors = self.counters.ssd_errors.get() + 1;
        self.counters.ssd_errors.set(errors);
        if error == IoError::Gone || errors > SSD_READ_ERRORS_MAX {
            self.fail_ssd();
        }
    }

    /// These lines were written anew or given up: what was damaged is not asked for any more.
    pub(crate) fn forget_damage(&self, first: u64, last: u64) {
        let mut damaged = self.damaged.borrow_mut();
        if !damaged.is_empty() {
            damaged.retain(|line| !(first..=last).contains(line));
        }
    }

    /// Lines that are not dirty any more could be written out after all: what had failed was a read
    /// of them, once.
    pub(crate) fn forget_mended(&self) {
        let mut damaged = self.damaged.borrow_mut();
        if !damaged.is_empty() {
            let state = self.state.borrow();
            let dirty = |slot: u32| state.index.is_dirty(slot);
            damaged.retain(|line| state.index.lookup(*line).is_some_and(dirty));
        }
    }

    /// What a cached line's data is worth when the SSD returned an error or other bytes: a clean
    /// line is dropped (and the origin asked), a dirty one is reported and kept for no one.
    ///
    /// # Errors
    /// `Medium` when the line was dirty: its only copy is damaged.
    pub(crate) fn give_up_line(&self, line: u64, slot: u32) -> IoResult<()> {
        let mut state = self.state.borrow_mut();
        // The line may be in another slot by now; dirty is dirty wherever it is.
        let current = state.index.lookup(line);
        if current.is_some_and(|current| state.index.is_dirty(current)) {
            let mut damaged = self.damaged.borrow_mut();
            if damaged.len() < DAMAGED_LINES_MAX {
                damaged.insert(line);
            }
            self.counters.damaged_reads.set(self.counters.damaged_reads.get() + 1);
            return Err(IoError::Medium);
        }
        self.counters.repaired_lines.set(self.counters.repaired_lines.get() + 1);
        if !self.failed() && current == Some(slot) {
            state.internal.push(Change::Drop { line });
            drop(state);
            self.log_work.notify();
        }
        Ok(())
    }
}
