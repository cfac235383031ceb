//! How a start of an array is tried, and what it must come to.

use voltier_array::{AssembleOptions, MemberState};
use voltier_block::Prng;

use crate::arrays::bit_rot::is_locatable;
use crate::arrays::known::{Known, last_ones};
use crate::arrays::left::Left;
use crate::arrays::sets::{DriveSet, MemberSet};
use crate::arrays::setup::{Setup, can_lose};

/// How a start is tried, and what it must come to.
pub(crate) struct Trial {
    /// Drives that are given.
    pub(crate) given: DriveSet,
    /// All members, by those of them that are newest.
    all: MemberSet,
    /// Members that must be in service then.
    pub(crate) usable: MemberSet,
    /// Whether the usable members are enough of each group.
    pub(crate) is_enough: bool,
    pub(crate) options: AssembleOptions,
}

impl Trial {
    /// Whether no member is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.usable == self.all
    }

    pub(crate) fn of(setup: &Setup, lives: &[u64], known: &Known, given: DriveSet) -> Self {
        let usable = known.current(given, MemberState::InService);
        let geometry = known.newest(given).map_or(&setup.geometry, |newest| &newest.geometry);
        let all = (0..geometry.member_count()).collect::<MemberSet>();
        let last = last_ones(lives, DriveSet::ALL);
        // Without one that has the newest event they may be what the others went on without.
        let is_newest = known.highest_event(given & last) == known.highest_event(last);
        let options = AssembleOptions { degraded: is_newest, force: false };
        Self { given, all, usable, is_enough: can_lose(geometry, all - usable), options }
    }
}

/// The drives that a start is given: not those of the members in `away`; none if nobody is left.
pub(crate) fn pick_drives(
    setup: &Setup,
    known: &Known,
    away: MemberSet,
    prng: &mut Prng,
) -> DriveSet {
    let labelled = known.labelled();
    let members = known.drives_of(labelled).into_iter().enumerate();
    let away_drives = members.filter(|(member, _)| away.has(*member));
    let mut given = labelled - away_drives.filter_map(|(_, drive)| drive).collect();
    if prng.one_in(4) {
        // A drive that was left behind is left away as well.
        given = given - DriveSet::one(prng.below(setup.drives.len() as u64) as usize);
    }
    let is_journal_there = !setup.has_journal_device || !prng.one_in(3);
    if !given.is_empty() && is_journal_there { given | known.journals() } else { given }
}

/// Whether a scrub can find a block that turned over.
pub(crate) fn is_found(setup: &Setup, left: &Left, trial: &Trial) -> bool {
    left.is_made && trial.is_whole() && setup.has_journal() && is_locatable(setup)
}
