//! How a start of an array is tried, and what it must come to.

use voltier_array::{AssembleOptions, MemberState};
use voltier_block::Prng;

use crate::arrays::bit_rot::is_locatable;
use crate::arrays::known::{Known, has, last_ones, mask};
use crate::arrays::left::Left;
use crate::arrays::setup::{Setup, can_lose};

/// How a start is tried, and what it must come to.
pub(crate) struct Trial {
    /// Drives that are given.
    pub(crate) given: u64,
    /// All members, by those of them that are newest.
    all: u64,
    /// Members that must be in service then.
    pub(crate) usable: u64,
    /// Whether that is enough of each group.
    pub(crate) is_enough: bool,
    pub(crate) options: AssembleOptions,
}

impl Trial {
    /// Whether no member is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.usable == self.all
    }

    pub(crate) fn of(setup: &Setup, lives: &[u64], known: &Known, given: u64) -> Self {
        let usable = known.current(given, MemberState::InService);
        let geometry = known.newest(given).map_or(&setup.geometry, |newest| &newest.geometry);
        let all = mask(0..geometry.member_count());
        let last = last_ones(lives, u64::MAX);
        // Without one that has the newest event they may be what the others went on without.
        let is_newest = known.highest_event(given & last) == known.highest_event(last);
        let options = AssembleOptions { degraded: is_newest, force: false };
        Self { given, all, usable, is_enough: can_lose(geometry, all & !usable), options }
    }
}

/// The drives that a start is given: not those of the members in `away`; none if nobody is left.
pub(crate) fn pick_drives(setup: &Setup, known: &Known, away: u64, prng: &mut Prng) -> u64 {
    let labelled = known.labelled();
    let members = known.drives_of(labelled).into_iter().enumerate();
    let away_drives = members.filter(|(member, _)| has(away, *member));
    let mut given = labelled & !mask(away_drives.filter_map(|(_, drive)| drive));
    if prng.one_in(4) {
        // A drive that was left behind is left away as well.
        given &= !(1 << prng.below(setup.drives.len() as u64));
    }
    let is_journal_there = !setup.has_journal_device || !prng.one_in(3);
    if given != 0 && is_journal_there { given | known.journals() } else { given }
}

/// Whether a scrub can find a block that turned over.
pub(crate) fn is_found(setup: &Setup, left: &Left, trial: &Trial) -> bool {
    left.is_made && trial.is_whole() && setup.has_journal() && is_locatable(setup)
}
