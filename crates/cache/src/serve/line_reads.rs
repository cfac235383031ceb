//! Lines that are being read because a request wants a part of them: requests that want another part join.
//!
//! Whoever reads a line and all who join hold its lock for reading, so nothing can have changed meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::Bytes;
use voltier_ring::Signal;

use crate::numbers::Line;

/// The reads of one cache that others may join.
#[derive(Default)]
pub(crate) struct LineReads(RefCell<BTreeMap<Line, Rc<LineRead>>>);

/// A read of a line under way.
#[derive(Default)]
pub(super) struct LineRead {
    /// The whole line at the end; nothing in it if the read failed.
    outcome: RefCell<Option<Option<Bytes>>>,
    ended: Signal,
}

/// Whoever reads a line for all, until dropped.
pub(super) struct LineReader {
    of: Rc<LineReads>,
    line: Line,
    read: Rc<LineRead>,
}

impl LineReads {
    /// The read of a line that is under way.
    pub(super) fn under_way(&self, line: Line) -> Option<Rc<LineRead>> {
        self.0.borrow().get(&line).cloned()
    }

    /// Begins a read of a line that nobody reads yet.
    pub(super) fn begin(self: &Rc<Self>, line: Line) -> Option<LineReader> {
        let mut reads = self.0.borrow_mut();
        if reads.contains_key(&line) {
            return None;
        }
        let read = Rc::new(LineRead::default());
        reads.insert(line, read.clone());
        Some(LineReader { of: self.clone(), line, read })
    }
}

impl LineRead {
    /// The whole line, when it is there; `None` if the read failed.
    pub(super) async fn line(&self) -> Option<Bytes> {
        self.ended.until(|| self.outcome.borrow().is_some()).await;
        self.outcome.borrow().clone().flatten()
    }
}

impl LineReader {
    pub(super) fn line(&self) -> Line {
        self.line
    }

    /// The whole line, for all who have joined.
    pub(super) fn end(self, line: Bytes) {
        self.read.outcome.replace(Some(Some(line)));
    }
}

impl Drop for LineReader {
    fn drop(&mut self) {
        self.of.0.borrow_mut().remove(&self.line);
        self.read.outcome.borrow_mut().get_or_insert(None);
        self.read.ended.notify();
    }
}
