//! Regions that a scrub of this start found to match, and that nobody has written since.

use std::collections::BTreeSet;

/// Regions of groups, by the numbers that the bitmap gives them. Memory alone knows them: after a start every
/// region counts as written.
#[derive(Default)]
pub(crate) struct MatchedRegions {
    matched: BTreeSet<u64>,
    /// Regions that a scrub is checking and nobody has written since it began there.
    checking: BTreeSet<u64>,
}

impl MatchedRegions {
    /// A scrub begins to check a region; what was known of the region holds meanwhile.
    pub(crate) fn begin(&mut self, region: u64) {
        self.checking.insert(region);
    }

    /// The scrub is through: the region matches if all of it was checked, nothing stayed wrong, and nobody
    /// wrote there.
    pub(crate) fn end(&mut self, region: u64, is_whole: bool) {
        if self.checking.remove(&region) && is_whole {
            self.matched.insert(region);
        }
    }

    /// Something in the region stays wrong, or was not checked: this check does not make it one that matches.
    /// If the region matched before, and nobody wrote since, that still holds.
    pub(crate) fn note_mismatch(&mut self, region: u64) {
        self.checking.remove(&region);
    }

    /// Somebody writes to the region.
    pub(crate) fn note_write(&mut self, region: u64) {
        self.matched.remove(&region);
        self.checking.remove(&region);
    }

    /// Whether the region matched, and was not written since.
    pub(crate) fn is_unchanged(&self, region: u64) -> bool {
        self.matched.contains(&region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_during_a_check_or_after_it_makes_a_region_changed() {
        let mut regions = MatchedRegions::default();
        regions.begin(3);
        assert!(!regions.is_unchanged(3), "not before the check is through");
        regions.end(3, true);
        assert!(regions.is_unchanged(3));
        regions.begin(3);
        regions.note_write(3);
        regions.end(3, true);
        assert!(!regions.is_unchanged(3), "written while it was checked");
        regions.begin(3);
        regions.end(3, false);
        assert!(!regions.is_unchanged(3), "not all of it was checked");
        regions.begin(3);
        regions.note_mismatch(3);
        regions.end(3, true);
        assert!(!regions.is_unchanged(3), "something in it stayed wrong");
        regions.begin(3);
        regions.end(3, true);
        regions.begin(3);
        regions.note_mismatch(3);
        regions.end(3, true);
        assert!(regions.is_unchanged(3), "it matched before, and nobody wrote since");
    }
}
