//! The plan of a read: which parts are on the SSD, and which only on the origin.

use std::rc::Rc;

use voltier_block::{Bytes, DriveControl, Lba, SectorRange};

use crate::canary::{self, Canary};
use crate::devices::ssd::Ssd;
use crate::format::geometry::mask_of;
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::map::contents::Contents;
use crate::map::index::Index;
use crate::map::recent::RecentLines;
use crate::map::shared::{Map, Pinned};
use crate::numbers::{Line, Slot};
use crate::serve::line_reads::{LineRead, LineReader, LineReads};

/// A run of a request that is served in one way.
pub(super) enum Run<'a> {
    /// Whole lines that stand one behind the other on the SSD.
    Ssd { lines: Vec<(Line, Pinned<'a>)>, range: SectorRange },
    /// A part of a line, or a line of which only some sectors are cached. Who wants another part of a line that
    /// is whole may join.
    Line { line: Line, slot: Slot, range: SectorRange, for_all: Option<LineReader> },
    /// A part of a line that is in memory: these are its bytes.
    Memory { data: Bytes, range: SectorRange },
    /// A part of a line that another request reads, from the origin if it is a miss.
    Joined { read: Rc<LineRead>, is_miss: bool, range: SectorRange },
    /// Not cached.
    Origin { range: SectorRange },
    /// Runs of which the origin reads those that are not cached in one piece, `disk`, over others that are.
    Over { range: SectorRange, disk: SectorRange, runs: Vec<Run<'a>> },
}

impl Run<'_> {
    pub(super) fn range(&self) -> SectorRange {
        match self {
            Run::Ssd { range, .. }
            | Run::Line { range, .. }
            | Run::Memory { range, .. }
            | Run::Joined { range, .. }
            | Run::Over { range, .. }
            | Run::Origin { range } => *range,
        }
    }
}

impl Run<'_> {
    /// Whether something of it is not cached.
    pub(super) fn is_miss(&self) -> bool {
        match self {
            Run::Origin { .. } | Run::Joined { is_miss: true, .. } => true,
            Run::Over { runs, .. } => runs.iter().any(Run::is_miss),
            _ => false,
        }
    }
}

/// The planner of one cache's reads.
pub(crate) struct Planner<S> {
    map: Rc<Map>,
    log: Rc<Log<S>>,
    ssd: Rc<Ssd<S>>,
    recent: Rc<RecentLines>,
    line_reads: Rc<LineReads>,
}

impl<S: DriveControl> Planner<S> {
    pub(crate) fn new<O: DriveControl>(ground: &Ground<S, O>, line_reads: Rc<LineReads>) -> Self {
        Self {
            map: ground.map.clone(),
            log: ground.log.clone(),
            ssd: ground.ssd.clone(),
            recent: ground.recent.clone(),
            line_reads,
        }
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
    /// A request that does not join others reads all by itself.
    pub(super) async fn plan(&self, range: SectorRange, joins: bool) -> Vec<Run<'_>> {
        let (first, last) = self.map.geometry().lines_of(range);
        // Parts of lines that are in memory, or on their way there, need no record.
        let is_elsewhere = |line: Line| {
            let whole = self.map.geometry().line_range(line);
            let is_part = joins && !range.contains(whole);
            is_part && self.part_in_memory(&self.map.get(), line, range).is_some()
        };
        // Neighbours are far apart in the table: the waits for memory are had at once.
        self.map.get().index().warm_up_lines(first.through(last));
        loop {
            // Only what is on its way can be pending.
            let pending = !self.ssd.failed()
                && self.log.records_in_flight() > 0
                && self.has_pending(first, last, is_elsewhere);
            if !pending {
                return self.plan_now(range, joins);
            }
            self.log.progress().await;
        }
    }

    /// The part of a line that a range has, if it is in memory or being read.
    fn part_in_memory(
        &self,
        contents: &Contents,
        line: Line,
        range: SectorRange,
    ) -> Option<Run<'_>> {
        if self.ssd.failed() {
            return None;
        }
        let whole = self.map.geometry().line_range(line);
        let start = range.start.0.max(whole.start.0);
        let part = SectorRange::new(Lba(start), range.end().0.min(whole.end().0) - start);
        if let Some((data, mask)) = self.recent.get(line, 0) {
            let in_line = start - whole.start.0;
            let wanted = mask_of(in_line, part.count);
            if mask.is_none_or(|mask| mask & wanted == wanted) {
                let from = in_line as usize * 512;
                let data = data.slice(from..from + part.bytes() as usize);
                return Some(Run::Memory { data, range: part });
            }
        }
        let read = self.line_reads.under_way(line)?;
        let is_miss = contents.index().lookup(line).is_none();
        Some(Run::Joined { read, is_miss, range: part })
    }

    fn plan_now(&self, range: SectorRange, joins: bool) -> Vec<Run<'_>> {
        let mut contents = self.map.change();
        let line_sectors = self.map.geometry().line_sectors();
        let mut runs: Vec<Run<'_>> = Vec::new();
        for piece in range.split_at_multiples(line_sectors) {
            let line = self.map.geometry().line_of(piece.start);
            let is_part = piece.count < line_sectors;
            if is_part
                && joins
                && let Some(run) = self.part_in_memory(&contents, line, piece)
            {
                if let Some(slot) = contents.index().lookup(line) {
                    contents.touch(slot, line);
                }
                runs.push(run);
                continue;
            }
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
            let is_whole = contents.index().mask(slot).is_none();
            if is_part || !is_whole || self.ssd.failed() {
                let for_all = (is_part && is_whole && joins).then(|| self.line_reads.begin(line));
                runs.push(Run::Line { line, slot, range: piece, for_all: for_all.flatten() });
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

    fn has_pending(&self, first: Line, last: Line, is_elsewhere: impl Fn(Line) -> bool) -> bool {
        let contents = self.map.get();
        let index = contents.index();
        first.through(last).filter_map(|line| index.lookup(line).map(|slot| (line, slot))).any(
            |(line, slot)| {
                let is_pending = index.is_pending(slot) && self.counts(index, slot);
                is_pending && !is_elsewhere(line)
            },
        )
    }
}
