//! A sweep over the origin: which dirty lines go next, in ascending order. Pure.

use crate::clean::runs::Dirty;
use crate::clean::stripes::Stripes;
use crate::map::contents::Contents;
use crate::map::index::LINES_PER_EXTENT;
use crate::numbers::Line;

/// Lines of one batch, which ends with a flush of the origin. A disk's flush (a rotation or two) is
/// small beside the writes of so many, and so few still follow the thresholds.
pub(super) const BATCH_LINES: usize = 1024;
/// Extents that a choosy sweep looks at before others have their turn.
const CHOOSY_EXTENTS: u64 = 256;
/// Sweeps that take everything after one that chose and found little.
const PLAIN_SWEEPS: u32 = 3;

/// A sweep over the origin.
#[derive(Default)]
pub(super) struct Sweep {
    /// The line at which the sweep goes on; 0 when the next one begins.
    line: Line,
    /// Dirty lines at the begin of the sweep, and dirty lines that the sweep took.
    dirty: u64,
    taken: u64,
    /// Whether the sweep leaves stripes of which little is dirty for later: more of them may become
    /// dirty until then. Nobody must be waiting.
    has_choice: bool,
    is_choosy: bool,
    /// So many sweeps will not be.
    plain_left: u32,
}

impl Sweep {
    /// Whether the next batch begins a sweep.
    pub(super) fn is_at_front(&self) -> bool {
        self.line == Line(0)
    }

    /// Whether the batch that was begun last leaves stripes of which little is dirty for later.
    pub(super) fn is_choosy(&self) -> bool {
        self.is_choosy
    }

    pub(super) fn begin_batch(&mut self, may_choose: bool, dirty: u64) {
        if self.is_at_front() {
            self.plain_left = if self.has_choice && self.taken * 4 < self.dirty {
                PLAIN_SWEEPS
            } else {
                self.plain_left.saturating_sub(1)
            };
            self.has_choice = may_choose && self.plain_left == 0;
            (self.dirty, self.taken) = (dirty, 0);
        }
        self.is_choosy = self.has_choice && may_choose;
    }

    /// The next lines of the sweep, about `lines_max` of them: windows of stripes never in parts.
    pub(super) fn next_batch(
        &mut self,
        map: &Contents,
        stripes: Option<&Stripes>,
        lines_max: usize,
        is_damaged: impl Fn(Line) -> bool,
    ) -> Vec<Dirty> {
        let origin_lines = map.geometry().origin_lines();
        let window_of = |line: Line| match stripes {
            Some(stripes) => stripes.window_of(line),
            None => line..line + 1,
        };
        let mut batch = Vec::new();
        let mut extents = 0;
        while let Some(found) = map.index().next_dirty_extent(self.line.0 / LINES_PER_EXTENT) {
            let last = Line(((found + 1) * LINES_PER_EXTENT).min(origin_lines) - 1);
            let start = window_of(self.line.max(Line(found * LINES_PER_EXTENT))).start;
            let lines = start..window_of(last).end;
            self.line = lines.end;
            let mut dirty = map.dirty_among(lines);
            dirty.retain(|(line, _)| !is_damaged(*line));
            if let (true, Some(stripes)) = (self.is_choosy, stripes) {
                dirty = stripes.mostly_dirty(dirty);
            }
            batch.extend(dirty.into_iter().map(|(line, slot)| Dirty { line, slot, version: None }));
            extents += 1;
            if stripes.is_none() && batch.len() > lines_max {
                batch.truncate(lines_max);
                self.line = batch[lines_max - 1].line + 1;
            }
            if self.line == Line(origin_lines) {
                break;
            }
            if batch.len() >= lines_max || (self.is_choosy && extents == CHOOSY_EXTENTS) {
                self.taken += batch.len() as u64;
                return batch;
            }
        }
        self.taken += batch.len() as u64;
        self.line = Line(0);
        batch
    }
}
