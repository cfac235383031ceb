//! Dirty lines whose data on the SSD is not what was written, and clean lines that are repaired.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{DriveControl, IoError, IoResult};

use crate::counters::{Counters, add};
use crate::devices::ssd::Ssd;
use crate::log::change::Change;
use crate::log::commit::Log;
use crate::map::shared::Map;
use crate::numbers::{Line, Slot};

/// Damaged lines that are remembered by number; beyond it only the count grows.
const DAMAGED_LINES_MAX: usize = 4096;

/// The damaged lines of one cache.
pub(crate) struct Damage<S> {
    lines: RefCell<BTreeSet<Line>>,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    counters: Rc<Counters>,
}

impl<S: DriveControl> Damage<S> {
    pub(crate) fn new(
        map: Rc<Map>,
        ssd: Rc<Ssd<S>>,
        log: Rc<Log<S>>,
        counters: Rc<Counters>,
    ) -> Rc<Self> {
        Rc::new(Self { lines: RefCell::new(BTreeSet::new()), map, ssd, log, counters })
    }

    /// The damaged lines that are known.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lines.borrow().iter().copied().collect()
    }

    /// How many are known.
    pub(crate) fn count(&self) -> usize {
        self.lines.borrow().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.borrow().is_empty()
    }

    pub(crate) fn contains(&self, line: Line) -> bool {
        self.lines.borrow().contains(&line)
    }

    /// All damaged lines are to be tried once more.
    pub(crate) fn clear(&self) {
        self.lines.borrow_mut().clear();
    }

    /// Forgets the damage of lines that were written anew or given up.
    #[inline]
    pub(crate) fn forget(&self, first: Line, last: Line) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            lines.retain(|line| !(first..=last).contains(line));
        }
    }

    /// Lines that are not dirty any more could be written out after all: what had failed was a read
    /// of them, once.
    pub(crate) fn forget_mended(&self) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            let contents = self.map.get();
            let index = contents.index();
            lines.retain(|line| index.lookup(*line).is_some_and(|slot| index.is_dirty(slot)));
        }
    }

    /// Counts a damaged copy of which a newer one has taken the place.
    pub(crate) fn note_replaced(&self) {
        add(&self.counters.cache.repaired_lines, 1);
    }

    /// Judges a cached line of which the SSD returned an error or other bytes. A clean line is dropped
    /// (and the origin asked), a dirty line is reported and remembered.
    ///
    /// # Errors
    /// `Medium` when the line was dirty: its only copy is damaged.
    pub(crate) fn give_up_line(&self, line: Line, slot: Slot) -> IoResult<()> {
        let current = {
            let contents = self.map.get();
            // The line may be in another slot by now; dirty is dirty wherever it is.
            let current = contents.index().lookup(line);
            if current.is_some_and(|current| contents.index().is_dirty(current)) {
                let mut lines = self.lines.borrow_mut();
                if lines.len() < DAMAGED_LINES_MAX {
                    lines.insert(line);
                }
                add(&self.counters.cache.damaged_reads, 1);
                return Err(IoError::Medium);
            }
            current
        };
        if !self.ssd.silence().is_given_up() {
            add(&self.counters.cache.repaired_lines, 1);
        }
        if !self.ssd.failed() && current == Some(slot) {
            self.log.queue_internal([Change::Drop { line }]);
        }
        Ok(())
    }
}
