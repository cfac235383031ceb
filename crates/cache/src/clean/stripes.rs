//! The stripes of an origin that keeps parity: which lines to write together, so that it reads as little
//! as it can. Pure.
//!
//! On RAID 6 a line of 4 KiB by itself takes six I/Os of the drives; a stripe of 10+2 takes twelve for 160
//! lines. The cleaner has the lines until it writes them, so it can choose.
//!
//! A *window* is the shortest extent of whole lines that is whole stripes: as a rule one stripe.

use std::ops::Range;

use voltier_block::{Lba, Limits, SECTOR_BYTES, SectorRange};

use crate::format::geometry::Geometry;
use crate::numbers::{Line, Slot};

/// Longest single write to the origin, unless a window is longer.
pub(crate) const RUN_BYTES_MAX: u64 = 1 << 20;
/// Longer windows are not gathered: they would be held in memory, 32 at a time.
const WINDOW_BYTES_MAX: u64 = 4 << 20;

/// Stripes of the origin, as the cache's lines lie on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stripes {
    data_sectors: u64,
    chunk_sectors: u64,
    parity_chunks: u64,
    line_sectors: u64,
    origin_lines: u64,
    window_lines: u64,
    /// Lines of the longest write: whole windows.
    run_lines: u64,
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

impl Stripes {
    /// The stripes of an origin with these limits, if it has some that can be gathered.
    pub(crate) fn of(origin: &Limits, geometry: &Geometry) -> Option<Self> {
        let shape = origin.stripe?;
        let data_sectors = u64::from(shape.data_bytes) / SECTOR_BYTES;
        let line_sectors = geometry.line_sectors();
        let common = greatest_common_divisor(data_sectors, line_sectors);
        let window_lines = data_sectors / common;
        let window_bytes = window_lines * geometry.line_bytes;
        if window_bytes > WINDOW_BYTES_MAX.min(origin.max_transfer_bytes.into()) {
            return None;
        }
        Some(Self {
            data_sectors,
            chunk_sectors: u64::from(shape.chunk_bytes) / SECTOR_BYTES,
            parity_chunks: shape.parity_chunks.into(),
            line_sectors,
            origin_lines: geometry.origin_lines(),
            window_lines,
            run_lines: window_lines * (RUN_BYTES_MAX / window_bytes).max(1),
        })
    }

    /// The lines of the window that has this line.
    pub(crate) fn window_of(&self, line: Line) -> Range<Line> {
        let start = line.0 - line.0 % self.window_lines;
        Line(start)..Line((start + self.window_lines).min(self.origin_lines))
    }

    /// Whether two windows, one behind the other, can go in one write.
    pub(crate) fn are_of_one_run(&self, first: Line, later: Line) -> bool {
        first.0 / self.run_lines == later.0 / self.run_lines
    }

    /// Of ascending dirty lines those whose window is dirty for the most part.
    pub(crate) fn mostly_dirty(&self, dirty: Vec<(Line, Slot)>) -> Vec<(Line, Slot)> {
        let windows = dirty.chunk_by(|one, next| self.window_of(one.0) == self.window_of(next.0));
        let is_mostly = |lines: &&[(Line, Slot)]| {
            let window = self.window_of(lines[0].0);
            lines.len() as u64 * 4 >= (window.end - window.start) * 3
        };
        windows.filter(is_mostly).flatten().copied().collect()
    }

    /// Whether the whole window takes the origin's drives fewer I/Os, and no more bytes, than each run
    /// of dirty lines by itself. The reads of what lies between the runs count too.
    pub(crate) fn is_better_whole(&self, window: &Range<Line>, runs: &[Range<Line>]) -> bool {
        let apart = sum(runs.iter().map(|run| self.write_cost(run.clone())));
        let ends = runs.iter().flat_map(|run| [run.start, run.end]);
        let borders: Vec<Line> =
            std::iter::once(window.start).chain(ends).chain([window.end]).collect();
        let holes = borders.chunks_exact(2).map(|hole| self.sectors(hole[0]..hole[1]));
        let read = holes.map(|hole| Cost { ios: self.chunk_parts(hole), sectors: hole.count });
        let whole = sum(read.chain([self.write_cost(window.clone())]));
        whole.ios < apart.ios && whole.sectors <= apart.sectors
    }

    fn sectors(&self, lines: Range<Line>) -> SectorRange {
        let count = (lines.end - lines.start) * self.line_sectors;
        SectorRange::new(Lba(lines.start.0 * self.line_sectors), count)
    }

    /// Chunks that a range is in.
    fn chunk_parts(&self, range: SectorRange) -> u64 {
        range.split_at_multiples(self.chunk_sectors).count() as u64
    }

    /// The cost of a write of these lines: of each stripe the cheaper way.
    fn write_cost(&self, lines: Range<Line>) -> Cost {
        sum(self.sectors(lines).split_at_multiples(self.data_sectors).map(|part| {
            let (parts, count) = (self.chunk_parts(part), part.count);
            let is_whole = |it: &SectorRange| it.count == self.chunk_sectors;
            let whole = part.split_at_multiples(self.chunk_sectors).filter(is_whole).count();
            let chunks = self.data_sectors / self.chunk_sectors;
            let parity = self.parity_chunks;
            // Parity changes where data do.
            let depth = if parts == 1 { count } else { self.chunk_sectors };
            let modify = Cost { ios: 2 * (parts + parity), sectors: 2 * (count + parity * depth) };
            let reconstruct = Cost {
                ios: chunks - whole as u64 + parts + parity,
                sectors: (chunks + parity) * depth,
            };
            modify.min(reconstruct)
        }))
    }
}

/// Work of the origin's drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    ios: u64,
    sectors: u64,
}

fn sum(costs: impl Iterator<Item = Cost>) -> Cost {
    costs.fold(Cost::default(), |sum, cost| Cost {
        ios: sum.ios + cost.ios,
        sectors: sum.sectors + cost.sectors,
    })
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn lines(numbers: Range<u64>) -> Range<Line> {
        Line(numbers.start)..Line(numbers.end)
    }

    /// 4 KiB lines on stripes of four chunks of four lines, and two parities.
    fn stripes() -> Stripes {
        Stripes {
            data_sectors: 128,
            chunk_sectors: 32,
            parity_chunks: 2,
            line_sectors: 8,
            origin_lines: 1000,
            window_lines: 16,
            run_lines: 256,
        }
    }

    #[test]
    fn a_write_costs_what_the_cheaper_way_takes() {
        let stripes = stripes();
        assert_eq!(
            stripes.write_cost(lines(0..1)).ios,
            6,
            "old data and two parities, read and written"
        );
        assert_eq!(stripes.write_cost(lines(0..16)).ios, 6, "a whole stripe");
        assert_eq!(
            stripes.write_cost(lines(0..8)).ios,
            6,
            "two chunks read, two and the parities written"
        );
        assert_eq!(stripes.write_cost(lines(0..7)).ios, 7, "two chunks and a part read");
        assert_eq!(stripes.write_cost(lines(8..24)).ios, 12, "two halves");
    }

    #[test]
    fn a_window_is_completed_only_where_that_takes_fewer_ios() {
        let stripes = stripes();
        let is_whole = |runs: &[Range<u64>]| {
            let runs: Vec<_> = runs.iter().cloned().map(lines).collect();
            stripes.is_better_whole(&lines(0..16), &runs)
        };
        assert!(is_whole(&[0..7, 9..16]), "one hole of two chunks: 8 instead of 14");
        assert!(!is_whole(from_ref(&(0..15))), "the origin itself does no better");
        assert!(!is_whole(from_ref(&(3..4))), "one line");
        assert!(!is_whole(&[0..1, 8..9]), "two lines: fewer I/Os and more bytes");
        assert!(is_whole(&[0..1, 3..4, 6..7, 9..10, 12..13, 15..16]), "lines all over it");
    }

    #[test]
    fn windows_are_whole_stripes_and_whole_lines() {
        let stripes = stripes();
        assert_eq!(stripes.window_of(Line(17)), lines(16..32));
        assert_eq!(stripes.window_of(Line(999)), lines(992..1000), "the origin ends there");
        let one_run = |first, later| stripes.are_of_one_run(Line(first), Line(later));
        assert!(one_run(0, 240) && !one_run(240, 256));
        let dirty = (0..11).chain(20..32).map(|line| (Line(line), Slot(7))).collect();
        let chosen = stripes.mostly_dirty(dirty);
        assert_eq!(
            chosen.iter().map(|(line, _)| line.0).collect::<Vec<_>>(),
            (20..32).collect::<Vec<_>>()
        );
    }
}
