//! Starts arrays as trials say, and judges what is refused.

use std::rc::Rc;

use voltier_array::{ArrayError, AssembleOptions, AssembleReport, DeviceError, MetadataError};
use voltier_block::{DriveControl, Nanos, Prng};

use crate::arrays::checks::{check_all, check_members};
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::left::JournalFate;
use crate::arrays::sets::{DriveSet, MemberSet};
use crate::arrays::trial::Trial;
use crate::disk::SimDisk;
use crate::fault::FaultKind;

/// How often a drive with requests of before is looked at.
const DRAIN_LOOK_NS: Nanos = 1_000_000;

/// Starts the array as a trial says; none if it is refused, as it may be.
pub(crate) async fn start(
    fixture: &Rc<ArrayFixture>,
    trial: &mut Trial,
    dice: &mut Prng,
) -> Option<AssembleReport> {
    loop {
        let order = shuffled(trial.given, dice);
        let needs_journal = needs_journal(fixture, trial.given);
        let members: DriveSet = (0..fixture.setup.member_drives()).collect();
        let older = fixture.part_of_older_lives(trial.given & members);
        let is_right_choice = trial.is_enough && trial.options.degraded && older.is_empty();
        let starting = if is_right_choice { trial.usable } else { MemberSet::EMPTY };
        fixture.starting.set(starting);
        let refused = match fixture.assemble(&order, trial.options).await {
            Ok(report) => {
                assert!(trial.is_enough, "an array starts without enough members");
                let is_right = !needs_journal || trial.options.force;
                assert!(is_right, "an array starts without its journal");
                return Some(report);
            }
            Err(ArrayError::Metadata(refused)) => refused,
            Err(error) => panic!("the array does not come back: {error}"),
        };
        fixture.world.tell(|| format!("refused: {refused}"));
        fixture.world.ledger().count(|counts| counts.refused += 1);
        match refused {
            _ if !fixture.is_made() => return None,
            MetadataError::Device { device, error: DeviceError::Undrained } => {
                await_drained(fixture, order[device]).await;
            }
            // The caller has to know which drives the array went on with.
            MetadataError::Diverged { .. } | MetadataError::Contradiction { .. }
                if !older.is_empty() =>
            {
                let given = trial.given - older;
                *trial = Trial::of(&fixture.setup, &fixture.lives(), &fixture.known(), given);
            }
            MetadataError::JournalMissing if needs_journal => find_journal(fixture, trial, dice),
            MetadataError::JournalNewer { .. } if !trial.options.degraded => return None,
            MetadataError::DirtyDegraded { .. } if fixture.may_need_resync() => {
                force(fixture, trial)
            }
            MetadataError::MayBeOld { .. } if !trial.options.degraded => return None,
            // The others heard that the making had ended, and went on without these.
            MetadataError::HalfMade { .. } if !trial.options.degraded => return None,
            MetadataError::TooFew { .. } if !trial.is_enough => return None,
            // Members that were left behind together, with one that made place for its copy.
            MetadataError::Diverged { .. } | MetadataError::Contradiction { .. }
                if !trial.is_enough || !trial.options.degraded =>
            {
                return None;
            }
            refused => panic!("the array does not come back: {refused}"),
        }
    }
}

/// Gives up what a start that was forced, or one of copies, takes along where no journal closes the write
/// hole.
pub(crate) fn give_up_uncovered(fixture: &ArrayFixture, trial: &Trial) {
    let is_mirror = fixture.setup.geometry.is_mirror();
    let takes_along = trial.options.force || (is_mirror && !trial.is_whole());
    if !fixture.setup.has_journal() && takes_along {
        for shape in fixture.setup.shapes() {
            fixture.uncovered.borrow_mut().give_up(&shape, &mut fixture.model.borrow_mut());
        }
    }
}

/// Waits for a drive that is refused because it has not ended requests of before, until it has.
async fn await_drained(fixture: &ArrayFixture, drive: usize) {
    let disk = &fixture.disks[drive];
    assert!(disk.under_way().count() > 0, "drive {drive} is refused, and has no requests");
    while disk.under_way().count() > 0 {
        fixture.world.handle().sleep(DRAIN_LOOK_NS).await;
    }
}

/// Connects the device of the journal after all, or does without.
fn find_journal(fixture: &ArrayFixture, trial: &mut Trial, dice: &mut Prng) {
    let known = fixture.known();
    let with_it = trial.given | known.journals();
    if dice.one_in(2) && !known.lacks_journal(with_it) {
        trial.given = with_it;
        return;
    }
    fixture.world.ledger().fault(FaultKind::DriveLoss);
    fixture.journal.set(JournalFate { is_content_lost: true, ..fixture.journal.get() });
    force(fixture, trial);
}

/// Has a start forced: from here on what was begun is lost, also if the start is cut off.
fn force(fixture: &ArrayFixture, trial: &mut Trial) {
    trial.options = AssembleOptions { force: true, ..trial.options };
    if fixture.setup.has_journal() {
        give_content_up(fixture, trial.is_whole());
    }
}

/// Written sectors may be anything, and with members missing so may all that lies in stripes with them.
fn give_content_up(fixture: &ArrayFixture, is_whole: bool) {
    let mut model = fixture.model.borrow_mut();
    if is_whole {
        model.give_up_touched();
    } else {
        fixture.windows().into_iter().for_each(|window| model.give_up(window));
    }
}

/// A drive that is no member is refused, whatever else is given.
pub(crate) async fn try_with_a_stranger(
    fixture: &Rc<ArrayFixture>,
    trial: &Trial,
    dice: &mut Prng,
) {
    let known = fixture.known();
    let labelled = known.labelled() | known.journals();
    let mut strangers = (0..fixture.disks.len()).filter(|drive| !labelled.has(*drive));
    let Some(stranger) = strangers.next_back().filter(|_| fixture.is_made()) else { return };
    let order = shuffled(trial.given | DriveSet::one(stranger), dice);
    let refused = fixture.assemble(&order, trial.options).await.err();
    assert!(is_stranger(refused.as_ref()), "a stranger is not refused: {refused:?}");
}

/// Whether a start was refused because a drive is no part of the array.
pub(super) fn is_stranger(refused: Option<&ArrayError>) -> bool {
    let Some(ArrayError::Metadata(refused)) = refused else { return false };
    matches!(refused, MetadataError::Device { .. } | MetadataError::Stranger { .. })
}

/// Starts what was stopped in order, from all drives that have a superblock.
pub(crate) async fn start_again(fixture: &Rc<ArrayFixture>, mut dice: Prng) {
    fixture.disks.iter().for_each(SimDisk::mend);
    let known = fixture.known();
    let is_gone = |drive: &usize| fixture.disks[*drive].is_gone();
    let all = known.labelled() | known.journals();
    let given = all - (0..fixture.disks.len()).filter(is_gone).collect();
    let mut trial = Trial::of(&fixture.setup, &fixture.lives(), &known, given);
    let report = start(fixture, &mut trial, &mut dice).await.expect("what was stopped comes back");
    assert!(report.was_clean && report.regions_to_resync == 0, "what was stopped is not clean");
    assert_eq!(report.journal.transactions, 0, "the journal of an array that was stopped is empty");
    check_members(fixture, trial.usable);
    check_all(fixture, "after a stop").await;
}

/// Drives in any order.
pub(crate) fn shuffled(drives: DriveSet, dice: &mut Prng) -> Vec<usize> {
    let mut rest: Vec<usize> = drives.iter().collect();
    let mut order = Vec::new();
    while !rest.is_empty() {
        order.push(rest.swap_remove(dice.below(rest.len() as u64) as usize));
    }
    order
}

/// Whether a start from these drives lacks what may be needed of the journal.
fn needs_journal(fixture: &ArrayFixture, given: DriveSet) -> bool {
    fixture.setup.has_journal_device && fixture.known().needs_journal(given)
}
