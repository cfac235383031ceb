//! Ranges of lines, merged. Pure.

use std::collections::BTreeMap;

use crate::numbers::Line;

/// Ranges of lines: begin, and the first one behind it.
#[derive(Clone, Default)]
pub(crate) struct LineRanges(BTreeMap<Line, Line>);

impl LineRanges {
    /// Adds the lines from `first` to `last`, both included.
    pub(crate) fn insert(&mut self, first: Line, last: Line) {
        let (mut start, mut end) = (first, last + 1);
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    pub(crate) fn contains(&self, line: Line) -> bool {
        self.covers(line, line)
    }

    /// Whether all lines from `first` to `last` are in it.
    pub(crate) fn covers(&self, first: Line, last: Line) -> bool {
        self.0.range(..=first).next_back().is_some_and(|(_, end)| last < *end)
    }

    /// Each range: its first line and its last one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Line, Line)> {
        self.0.iter().map(|(first, end)| (*first, Line(end.0 - 1)))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_answer_for_every_line() {
        let mut ranges = LineRanges::default();
        let mut model = std::collections::BTreeSet::new();
        let mut prng = voltier_block::Prng::new(3);
        for _ in 0..2000 {
            let first = Line(prng.below(3000));
            let last = first + prng.below(4);
            ranges.insert(first, last);
            model.extend(first.through(last));
            assert!(ranges.len() <= model.len());
        }
        let is_in = |line: Line| model.contains(&line);
        assert!((0..3100).map(Line).all(|line| ranges.contains(line) == is_in(line)));
        let covered = |first: Line| first.through(first + 5).all(is_in);
        assert!((0..3100).map(Line).all(|at| ranges.covers(at, at + 5) == covered(at)));
        let listed: u64 = ranges.iter().map(|(first, last)| last - first + 1).sum();
        assert_eq!(listed, model.len() as u64);
        ranges.insert(Line(0), Line(4000));
        assert_eq!(ranges.len(), 1);
    }
}
