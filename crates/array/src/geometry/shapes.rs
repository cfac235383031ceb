//! Two shapes of one array at once: rows below a frontier have one member more than those above. Pure.
//!
//! A row of the new shape has one chunk of data more than one of the old. So d rows of the new shape hold
//! what d + 1 rows of the old one do: a *section*. The frontier counts sections that were moved:
//!
//! ```text
//!   rows   0 ......... p x d | ................ p x (d + 1) | .............. end
//!          new shape         | hold nothing                 | old shape
//! ```
//!
//! The last section may have fewer rows.

use std::ops::Range;

use voltier_block::{Lba, SectorRange};

use crate::geometry::chunks::{Geometry, Part};
use crate::geometry::numbers::{Row, Section};

/// The shape from before and the one that comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shapes {
    pub(crate) before: Geometry,
    pub(crate) after: Geometry,
}

/// Some sections that are moved at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The frontier from which and to which.
    pub(crate) sections: Range<Section>,
    /// The rows that the sections have in the old shape.
    pub(crate) old_rows: Range<Row>,
    /// And in the new one.
    pub(crate) new_rows: Range<Row>,
    /// The range of the volume that they hold.
    pub(crate) range: SectorRange,
}

impl Window {
    /// Whether what is written lies over what is read.
    pub(crate) fn overlaps_itself(&self) -> bool {
        self.new_rows.end > self.old_rows.start
    }
}

impl Shapes {
    /// The two of an array that comes to have this shape; none if it cannot have come so.
    pub(crate) fn of(after: &Geometry) -> Option<Self> {
        Some(Self { before: after.without_member()?, after: after.clone() })
    }

    /// Rows of the new shape in a section.
    pub(crate) fn section_rows(&self) -> u64 {
        self.before.data_chunks() as u64
    }

    fn section_sectors(&self) -> u64 {
        (self.section_rows() + 1) * self.before.stripe_sectors()
    }

    /// Sections in all: the frontier at the end.
    pub(crate) fn end(&self) -> Section {
        Section(self.before.stripe_count().div_ceil(self.section_rows() + 1))
    }

    /// Whether all sections but the first ones, short ones too, have room to be moved to.
    pub(crate) fn has_room(&self) -> bool {
        self.before.stripe_count() >= self.section_rows() * (self.section_rows() + 1)
    }

    /// Below this sector of the volume the shape is the new one.
    pub(crate) fn border(&self, frontier: Section) -> u64 {
        frontier.0.saturating_mul(self.section_sectors()).min(self.before.sectors())
    }

    /// Rows of the new shape: from the first one on.
    pub(crate) fn new_rows(&self, frontier: Section) -> Row {
        let chunks = self.before.stripe_count() * self.section_rows();
        let most = chunks.div_ceil(self.section_rows() + 1);
        Row(frontier.0.saturating_mul(self.section_rows()).min(most))
    }

    /// The first row of the old shape.
    pub(crate) fn old_rows(&self, frontier: Section) -> Row {
        Row(frontier.0.saturating_mul(self.section_rows() + 1).min(self.before.stripe_count()))
    }

    /// The shape of a row; none if it holds nothing.
    pub(crate) fn of_row(&self, frontier: Section, row: Row) -> Option<&Geometry> {
        if row < self.new_rows(frontier) {
            Some(&self.after)
        } else if row >= self.old_rows(frontier) && row.0 < self.before.stripe_count() {
            Some(&self.before)
        } else {
            None
        }
    }

    /// Cuts a range of the volume into its parts in single chunks, in the order of the volume.
    pub(crate) fn parts(&self, frontier: Section, range: SectorRange) -> Vec<Part> {
        let border = self.border(frontier).clamp(range.start.0, range.end().0);
        let below = SectorRange::new(range.start, border - range.start.0);
        let above = SectorRange::new(Lba(border), range.end().0 - border);
        self.after.parts(below).chain(self.before.parts(above)).collect()
    }

    /// The next so many sections, or as many as there are.
    pub(crate) fn window(&self, frontier: Section, sections: u64) -> Window {
        let end = Section(frontier.0.saturating_add(sections)).min(self.end());
        let (start_sector, end_sector) = (self.border(frontier), self.border(end));
        Window {
            sections: frontier..end,
            old_rows: self.old_rows(frontier)..self.old_rows(end),
            new_rows: self.new_rows(frontier)..self.new_rows(end),
            range: SectorRange::new(Lba(start_sector), end_sector - start_sector),
        }
    }

    /// The most sections from here on that do not lie over what they are moved to.
    pub(crate) fn sections_apart(&self, frontier: Section) -> u64 {
        frontier.0 / self.section_rows()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::level::{Layout, Level};
    use crate::geometry::numbers::{MemberIndex, count, each};
    use std::collections::BTreeMap;

    const CHUNK: u64 = 8;

    fn small() -> Vec<Shapes> {
        let mut all = Vec::new();
        for members in 3..=9 {
            let mut levels = vec![Level::Raid5, Level::Raid6, Level::Raid7_3];
            levels.extend(
                (1..=4)
                    .filter(|parity| members > parity + 1)
                    .map(|parity| Level::NPlusM { data: members - parity, parity }),
            );
            for level in levels {
                for layout in [
                    Layout::LeftSymmetric,
                    Layout::LeftSymmetricFixedParityRows,
                    Layout::AddedParityRows { rotating: 1 },
                    Layout::AddedParityRows { rotating: 2 },
                ] {
                    for rows in (1..=14).chain([23, 30, 41, 57]) {
                        let before =
                            Geometry::new(level, layout, members, CHUNK * 512, rows * CHUNK + 3);
                        let Ok(before) = before else { continue };
                        let after = before.with_member().expect("one more is possible");
                        all.push(Shapes { before, after });
                    }
                }
            }
        }
        all
    }

    #[test]
    fn a_shape_with_one_member_more_came_from_the_one_without() {
        for shapes in small() {
            assert_eq!(Shapes::of(&shapes.after), Some(shapes.clone()));
            let (before, after) = (&shapes.before, &shapes.after);
            assert_eq!(after.member_count(), before.member_count() + 1);
            assert_eq!(after.parity_chunks(), before.parity_chunks());
            assert_eq!(after.member_sectors(), before.member_sectors());
            assert!(after.sectors() > before.sectors());
        }
        for (level, members) in [(Level::Raid0, 3), (Level::Raid1, 3), (Level::Raid10, 4)] {
            let geometry = Geometry::new(level, Layout::LeftSymmetric, members, 4096, 800);
            assert_eq!(geometry.expect("possible").with_member(), Err(None));
        }
        let smallest = Geometry::new(Level::Raid5, Layout::LeftSymmetric, 3, 4096, 800);
        assert_eq!(smallest.expect("possible").without_member(), None);
        let smallest = Geometry::new(Level::Raid5, Layout::LeftSymmetric, 4, 4096, 800);
        assert!(smallest.expect("possible").without_member().is_some());
    }

    /// Where every chunk of the volume is, member and row: moved section by section, one chunk after the
    /// other.
    fn naive(shapes: &Shapes, frontier: Section) -> Vec<(MemberIndex, Row)> {
        let place = |geometry: &Geometry, chunk: u64| {
            let place = geometry.place_of(Lba(chunk * CHUNK));
            let slot = geometry.slot_of_column(place.stripe, place.column);
            (geometry.member_of(place.stripe, slot), geometry.row_of(place.stripe))
        };
        let data = shapes.before.data_chunks() as u64;
        let chunks = shapes.before.sectors() / CHUNK;
        let moved = frontier.0 * data * (data + 1);
        (0..chunks)
            .map(|chunk| place(if chunk < moved { &shapes.after } else { &shapes.before }, chunk))
            .collect()
    }

    #[test]
    fn every_chunk_is_where_a_naive_move_puts_it_and_no_two_are_in_one_place() {
        for shapes in small() {
            for frontier in each(Section(0)..shapes.end() + 1) {
                let expected = naive(&shapes, frontier);
                let whole = SectorRange::new(Lba(0), shapes.before.sectors());
                let parts = shapes.parts(frontier, whole);
                assert_eq!(parts.len(), expected.len());
                let mut rows = BTreeMap::new();
                for (part, (member, row)) in parts.iter().zip(&expected) {
                    let shape = shapes.of_row(frontier, *row).expect("it holds data");
                    assert_eq!((part.span.start, part.span.end), (0, CHUNK));
                    assert_eq!(shape.row_of(part.stripe), *row);
                    assert_eq!(shape.member_of(part.stripe, part.slot), *member);
                    let taken: &mut Vec<MemberIndex> = rows.entry(*row).or_default();
                    assert!(!taken.contains(member), "two chunks in one place");
                    taken.push(*member);
                }
                for row in each(Row(0)..Row(shapes.before.stripe_count())) {
                    let holds = shapes.of_row(frontier, row).is_some();
                    assert_eq!(holds, rows.contains_key(&row), "{shapes:?} {frontier} {row}");
                }
            }
            let end = shapes.end();
            assert_eq!(shapes.border(end), shapes.before.sectors());
            assert_eq!(shapes.old_rows(end), Row(shapes.before.stripe_count()));
        }
    }

    #[test]
    fn parts_of_any_range_are_those_of_the_whole() {
        for shapes in small().into_iter().step_by(97) {
            for frontier in each(Section(0)..shapes.end() + 1) {
                let sectors = shapes.before.sectors();
                for (start, count) in [(0, sectors), (5, sectors - 7), (sectors / 2, 3), (9, 0)] {
                    let range = SectorRange::new(Lba(start), count.min(sectors - start));
                    let mut at = range.start.0;
                    for part in shapes.parts(frontier, range) {
                        let border = shapes.border(frontier);
                        let shape = if at < border { &shapes.after } else { &shapes.before };
                        let only = shape.only_part(SectorRange::new(Lba(at), part.span.count()));
                        assert_eq!(only, Some(part));
                        at += part.span.count();
                    }
                    assert_eq!(at, range.end().0);
                }
            }
        }
    }

    #[test]
    fn windows_follow_each_other_and_nothing_is_written_over_what_is_still_to_be_moved() {
        for shapes in small() {
            let mut frontier = Section(0);
            while frontier < shapes.end() {
                let apart = shapes.sections_apart(frontier);
                let window = shapes.window(frontier, apart.max(1));
                let next = window.sections.end;
                assert_eq!(window.new_rows.start, shapes.new_rows(frontier));
                assert_eq!(window.range.start.0, shapes.border(frontier));
                assert!(window.new_rows.end <= shapes.old_rows(next), "what is behind it stays");
                let chunks = window.range.count / CHUNK;
                let rows = count::<Row>;
                let wide = shapes.after.data_chunks() as u64;
                assert_eq!(chunks, rows(&window.old_rows) * (wide - 1));
                assert_eq!(chunks.div_ceil(wide), rows(&window.new_rows));
                if apart > 0 {
                    assert!(!window.overlaps_itself(), "{shapes:?} {frontier}");
                }
                let is_whole = rows(&window.old_rows) == wide * (next - frontier);
                assert!(is_whole || apart > 0 || !shapes.has_room(), "a short one has room");
                frontier = next;
            }
        }
    }
}
