//! Lines that were read or changed in part a moment ago, in memory.
//!
//! The requests of a stream that begins within a line share lines at their ends. Whoever comes next takes its
//! part of such a line from here: a disk would need a revolution to read it again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use voltier_block::Bytes;

use crate::map::locks::{LineLocks, Mark};
use crate::numbers::Line;

/// Lines that are remembered, and their bytes, at most: one or two for each stream.
const LINES_MAX: usize = 32;
const BYTES_MAX: usize = 1 << 20;

/// What a line holds, and the sectors that count; `None` for all.
pub(crate) type Content = (Bytes, Option<u128>);

/// The lines of one cache, the latest last.
pub(crate) struct RecentLines {
    locks: Rc<LineLocks>,
    lines: RefCell<VecDeque<Recent>>,
}

struct Recent {
    line: Line,
    mark: Mark,
    content: Content,
}

impl RecentLines {
    pub(crate) fn new(locks: Rc<LineLocks>) -> Self {
        Self { locks, lines: RefCell::default() }
    }

    /// What a line holds that nobody has taken for a change since, but the caller so many times. The caller has
    /// the line.
    pub(crate) fn get(&self, line: Line, own: u32) -> Option<Content> {
        let lines = self.lines.borrow();
        let recent = lines.iter().rev().find(|recent| recent.line == line)?;
        let is_valid = self.locks.is_unchanged(line, recent.mark, own);
        is_valid.then(|| recent.content.clone())
    }

    /// Remembers a line, which the caller has.
    pub(crate) fn put(&self, line: Line, content: Content) {
        self.forget(line);
        let mut lines = self.lines.borrow_mut();
        let most = LINES_MAX.min(BYTES_MAX / content.0.len());
        while lines.len() >= most {
            lines.pop_front();
        }
        lines.push_back(Recent { line, mark: self.locks.mark(line), content });
    }

    pub(crate) fn forget(&self, line: Line) {
        self.lines.borrow_mut().retain(|recent| recent.line != line);
    }
}
