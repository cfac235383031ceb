//! Regions that a scrub of this start found to match, and that nobody has written since.

use crate::format::bits::Bits;
use crate::geometry::numbers::{GroupIndex, Region, numbers};

/// The number of a region of a group, counted through the groups of one region after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct GroupRegion(u64);

impl GroupRegion {
    /// A region of a group, of so many groups.
    #[inline]
    pub(crate) fn new(group: GroupIndex, region: Region, group_count: usize) -> Self {
        Self(region.0 * group_count as u64 + group.0 as u64)
    }
}

numbers! { GroupRegion }

/// Regions of groups. Memory alone knows them: after a start every region counts as written.
pub(crate) struct MatchedRegions {
    matched: Bits<GroupRegion>,
    /// Regions that a scrub is checking and nobody has written since it began there.
    checking: Bits<GroupRegion>,
}

impl MatchedRegions {
    /// No region of so many groups matches yet.
    pub(crate) fn new(region_count: u64, group_count: usize) -> Self {
        let none = Bits::new(region_count * group_count as u64);
        Self { matched: none.clone(), checking: none }
    }

    /// The memory of so many regions of so many groups.
    pub(crate) fn bytes_for(region_count: u64, group_count: usize) -> u64 {
        2 * Bits::<GroupRegion>::bytes_for(region_count * group_count as u64)
    }

    /// A scrub begins to check a region; what was known of the region holds meanwhile.
    pub(crate) fn begin(&mut self, region: GroupRegion) {
        self.checking.put(region, true);
    }

    /// The scrub is through: the region matches if all of it was checked, nothing stayed wrong, and nobody
    /// wrote there.
    pub(crate) fn end(&mut self, region: GroupRegion, is_whole: bool) {
        let was_checking = self.checking.has(region);
        self.checking.put(region, false);
        if was_checking && is_whole {
            self.matched.put(region, true);
        }
    }

    /// Something in the region stays wrong, or was not checked: this check does not make it one that matches.
    /// If the region matched before, and nobody wrote since, that still holds.
    pub(crate) fn note_mismatch(&mut self, region: GroupRegion) {
        self.checking.put(region, false);
    }

    /// Somebody writes to the region.
    #[inline]
    pub(crate) fn note_write(&mut self, region: GroupRegion) {
        self.matched.put(region, false);
        self.checking.put(region, false);
    }

    /// Whether the region matched, and was not written since.
    pub(crate) fn is_unchanged(&self, region: GroupRegion) -> bool {
        self.matched.has(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_during_a_check_or_after_it_makes_a_region_changed() {
        let mut regions = MatchedRegions::new(4, 2);
        let region = GroupRegion::new(GroupIndex(1), Region(3), 2);
        regions.begin(region);
        assert!(!regions.is_unchanged(region), "not before the check is through");
        regions.end(region, true);
        assert!(regions.is_unchanged(region));
        regions.begin(region);
        regions.note_write(region);
        regions.end(region, true);
        assert!(!regions.is_unchanged(region), "written while it was checked");
        regions.begin(region);
        regions.end(region, false);
        assert!(!regions.is_unchanged(region), "not all of it was checked");
        regions.begin(region);
        regions.note_mismatch(region);
        regions.end(region, true);
        assert!(!regions.is_unchanged(region), "something in it stayed wrong");
        regions.begin(region);
        regions.end(region, true);
        regions.begin(region);
        regions.note_mismatch(region);
        regions.end(region, true);
        assert!(regions.is_unchanged(region), "it matched before, and nobody wrote since");
    }

    #[test]
    fn a_region_of_one_group_says_nothing_of_the_same_region_of_another() {
        let mut regions = MatchedRegions::new(3, 2);
        let last = GroupRegion::new(GroupIndex(1), Region(2), 2);
        regions.begin(last);
        regions.end(last, true);
        for (group, region) in (0..2).flat_map(|group| (0..3).map(move |region| (group, region))) {
            let number = GroupRegion::new(GroupIndex(group), Region(region), 2);
            assert_eq!(regions.is_unchanged(number), number == last, "{group} {region}");
        }
    }
}
