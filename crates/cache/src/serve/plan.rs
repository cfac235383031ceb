//! The plan of a read: which parts are on the SSD, and which only on the origin.

use std::rc::Rc;

use voltier_block::{DriveControl, SectorRange};

use crate::canary::{self, Canary};
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::map::index::Index;
use crate::map::shared::{Map, Pinned};
use crate::numbers::{Line, Slot};

/// A run of a request that is served in one way.
pub(super) enum Run<'a> {
    /// Whole lines that stand one behind the other on the SSD.
    Ssd { lines: Vec<(Line, Pinned<'a>)>, range: SectorRange },
    /// A part of a line, or a line of which only some sectors are cached.
    Line { line: Line, slot: Slot, range: SectorRange },
    /// Not cached.
    Origin { range: SectorRange },
}

impl Run<'_> {
    pub(super) fn range(&self) -> SectorRange {
        match self {
            Run::Ssd { range, .. } | Run::Line { range, .. } | Run::Origin { range } => *range,
        }
    }
}

/// The planner of one cache's reads.
pub(crate) struct Planner<S> {
    map: Rc<Map>,
    log: Rc<Log<S>>,
    ssd: Rc<Ssd<S>>,
}

impl<S: DriveControl> Planner<S> {
    pub(crate) fn new<O: DriveControl>(ground: &Ground<S, O>) -> Self {
        Self { map: ground.map.clone(), log: ground.log.clone(), ssd: ground.ssd.clone() }
    }

    /// A line that is whole and on the SSD, pinned: the fast path.
    pub(super) fn ready_hit(&self, line: Line) -> Option<Pinned<'_>> {
        if self.ssd.passes_clean() {
            return None;
        }
        let mut contents = self.map.change();
        let index = contents.index();
        let slot = index.lookup(line)?;
        let pending = index.is_pending(slot) && !canary::is(Canary::PendingRead);
        if pending || index.mask(slot).is_some() {
            return None;
        }
        contents.touch(slot, line);
        Some(self.map.pin(&mut contents, slot))
    }

    /// Whether a copy on the SSD counts. Clean ones on an SSD that is lost or silent are as good as none;
    /// dirty ones must not be forgotten.
    fn counts(&self, index: &Index, slot: Slot) -> bool {
        !self.ssd.passes_clean() || index.is_dirty(slot)
    }

    /// Cuts a request into runs, after waiting for lines that are on their way to the SSD.
    pub(super) async fn plan(&self, range: SectorRange) -> Vec<Run<'_>> {
        let (first, last) = self.map.geometry().lines_of(range);
        // Neighbours are far apart in the table: the waits for memory are had at once.
        self.map.get().index().warm_up_lines(first.through(last));
        loop {
            // Only what is on its way can be pending.
            let pending = !self.ssd.failed()
                && self.log.records_in_flight() > 0
                && self.has_pending(first, last);
            if !pending {
                return self.plan_now(range);
            }
            self.log.progress().await;
        }
    }

    fn plan_now(&self, range: SectorRange) -> Vec<Run<'_>> {
        let mut contents = self.map.change();
        let line_sectors = self.map.geometry().line_sectors();
        let mut runs: Vec<Run<'_>> = Vec::new();
        for piece in range.split_at_multiples(line_sectors) {
            let line = self.map.geometry().line_of(piece.start);
            let index = contents.index();
            let slot = index.lookup(line).filter(|slot| self.counts(index, *slot));
            let Some(slot) = slot else {
                match runs.last_mut() {
                    Some(Run::Origin { range }) => range.count += piece.count,
                    _ => runs.push(Run::Origin { range: piece }),
                }
                continue;
            };
            contents.touch(slot, line);
            let whole = piece.count == line_sectors && contents.index().mask(slot).is_none();
            if !whole || self.ssd.failed() {
                runs.push(Run::Line { line, slot, range: piece });
                continue;
            }
            let pinned = self.map.pin(&mut contents, slot);
            match runs.last_mut() {
                Some(Run::Ssd { lines, range })
                    if lines[lines.len() - 1].1.copy().at.plus(line_sectors)
                        == pinned.copy().at =>
                {
                    lines.push((line, pinned));
                    range.count += piece.count;
                }
                _ => runs.push(Run::Ssd { lines: vec![(line, pinned)], range: piece }),
            }
        }
        runs
    }

    fn has_pending(&self, first: Line, last: Line) -> bool {
        let contents = self.map.get();
        let index = contents.index();
        first
            .through(last)
            .filter_map(|line| index.lookup(line))
            .any(|slot| index.is_pending(slot) && self.counts(index, slot))
    }
}
