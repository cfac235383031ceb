//! A journal on a device of its own: lost, moved, left behind, torn; and what a start must come to
//! without it.

use voltier_array::{
    ArrayError, ArrayRecord, AssembleOptions, JournalError, JournalState, MemberLayout, Usage,
};
use voltier_block::{BlockDevice, Lba, MIB, Prng, SectorRange};

use crate::arrays::crash::Trial;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::left::{Known, has};
use crate::arrays::operator::Operator;
use crate::fault::FaultKind;

/// What is known of the device of a journal without the array's help.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JournalFate {
    /// A change was acknowledged that began when the device was lost: the members say so.
    pub(crate) is_out: bool,
    /// A start was forced without it, and may be forced again: what was begun is known to nobody.
    pub(crate) is_content_lost: bool,
    /// How often the journal was put elsewhere.
    pub(crate) moves: u64,
    /// Whether it is being put elsewhere.
    pub(crate) is_moving: bool,
}

/// Whether the members say that their journal is on a device.
fn is_on_device(array: &ArrayRecord) -> bool {
    array.journal_device.is_some_and(|journal| journal.state == JournalState::InService)
}

impl Known {
    /// Whether the journal is on a device by those of these drives that are newest.
    pub(crate) fn has_journal_on_device(&self, given: u64) -> bool {
        self.newest(given).is_some_and(is_on_device)
    }

    /// Whether it is on one that is not among them as it was left.
    pub(crate) fn lacks_journal(&self, given: u64) -> bool {
        let Some(newest) = self.newest(given).filter(|newest| is_on_device(newest)) else {
            return false;
        };
        let uuid = newest.journal_device.map(|journal| journal.uuid);
        let labels = self.1.iter().enumerate().filter(|(drive, _)| has(given, *drive));
        let is_it = |label: &voltier_array::JournalLabel| {
            Some(label.uuid) == uuid && label.event.abs_diff(newest.event) <= 1
        };
        !labels.filter_map(|(_, label)| label.as_ref()).any(is_it)
    }

    /// Whether something on it may be needed.
    fn needs_journal(&self, given: u64) -> bool {
        self.lacks_journal(given)
            && self.newest(given).is_some_and(|newest| newest.usage != Usage::Clean)
    }
}

impl ArrayFixture {
    /// How often the journal was moved, if its device is known to be lost now. While it is moved nothing is
    /// known: what is told lost may be on record elsewhere already.
    pub(crate) fn journal_before(&self) -> Option<u64> {
        if !self.setup.has_journal_device || self.journal.get().is_moving {
            return None;
        }
        let status = self.array().status().expect("an array with superblocks");
        let is_lost = status.journal_device.is_some_and(|it| it.state == JournalState::Lost);
        is_lost.then(|| self.journal.get().moves)
    }

    /// What was begun then is acknowledged: the loss is on record.
    pub(crate) fn note_journal(&self, before: Option<u64>) {
        let fate = self.journal.get();
        if before == Some(fate.moves) {
            self.journal.set(JournalFate { is_out: true, ..fate });
        }
    }

    /// The drive that has the journal.
    fn journal_drive(&self) -> Option<usize> {
        let status = self.array().status().expect("an array with superblocks");
        let in_service = status.journal_device.filter(|it| it.state == JournalState::InService)?;
        let is_it = |label: &Option<voltier_array::JournalLabel>| {
            label.as_ref().is_some_and(|label| label.uuid == in_service.uuid)
        };
        self.known().1.iter().position(is_it)
    }

    /// Whether a start from these drives lacks what may be needed of the journal.
    pub(crate) fn needs_journal(&self, given: u64) -> bool {
        self.setup.has_journal_device && self.known().needs_journal(given)
    }

    /// Somebody connects the device of the journal after all, or does without.
    pub(crate) fn find_journal(&self, trial: &mut Trial, dice: &mut Prng) {
        let known = self.known();
        let with_it = trial.given | known.journals();
        if dice.one_in(2) && !known.lacks_journal(with_it) {
            trial.given = with_it;
            return;
        }
        self.world.ledger().fault(FaultKind::DriveLoss);
        self.journal.set(JournalFate { is_content_lost: true, ..self.journal.get() });
        self.force(trial);
    }

    /// Has a start forced: from here on what was begun is lost, also if the start is cut off.
    pub(crate) fn force(&self, trial: &mut Trial) {
        trial.options = AssembleOptions { force: true, ..trial.options };
        if self.setup.has_journal() {
            self.give_content_up(trial.is_whole());
        }
    }

    /// What was written may be anything, and with members missing so may all that lies in stripes with it.
    fn give_content_up(&self, is_whole: bool) {
        let mut model = self.model.borrow_mut();
        if is_whole {
            model.give_up_touched();
        } else {
            self.windows().into_iter().for_each(|window| model.give_up(window));
        }
    }
}

impl Operator {
    /// Does harm to the device of the journal, or puts the journal elsewhere.
    pub(crate) async fn handle_journal(&mut self) {
        match self.dice.below(4) {
            0 | 1 => self.harm_journal(),
            2 => self.move_journal(true).await,
            _ => self.move_journal(false).await,
        }
    }

    fn harm_journal(&mut self) {
        let fixture = self.fixture.clone();
        let Some(drive) = fixture.journal_drive() else { return };
        let disk = &fixture.disks[drive];
        fixture.world.tell(|| format!("care: harm to the journal, drive {drive}"));
        fixture.members.note_harm(drive);
        let sectors = fixture.setup.drives[drive].bytes / 512;
        match self.dice.below(4) {
            0 | 1 => disk.lose(),
            2 => {
                let at = Lba::from_bytes(MIB).plus(self.dice.below(250) * 8);
                disk.fail_writes(SectorRange::new(at, 8));
            }
            _ => {
                let copies = MemberLayout::superblock_lbas(sectors);
                disk.fail_writes(SectorRange::new(*self.dice.pick(&copies), 8));
            }
        }
    }

    /// To another device, or back to the members.
    async fn move_journal(&mut self, to_device: bool) {
        let fixture = self.fixture.clone();
        let now = fixture.journal_drive();
        let mut free = fixture.setup.member_drives()..fixture.setup.drives.len();
        let free = free.find(|drive| Some(*drive) != now && !fixture.members.is_harmed(*drive));
        let new = free.filter(|_| to_device);
        if to_device && new.is_none() {
            return;
        }
        let fate = fixture.journal.get();
        let moves = fate.moves + 1;
        fixture.journal.set(JournalFate { is_out: false, moves, is_moving: true, ..fate });
        fixture.world.tell(|| format!("care: the journal goes from {now:?} to {new:?}"));
        let device = new.map(|drive| (fixture.disks[drive].clone(), fixture.members.name()));
        let moved = fixture.array().set_journal(device).await;
        fixture.journal.set(JournalFate { is_moving: false, ..fixture.journal.get() });
        fixture.world.tell(|| format!("care: the journal went to {new:?}: {moved:?}"));
        // Started without its only member with large blocks an array has small ones.
        let has_larger =
            |drive: usize| fixture.disks[drive].limits().block_bytes > fixture.limits().block_bytes;
        let is_refused =
            matches!(moved, Err(ArrayError::JournalDevice(JournalError::Blocks { .. })));
        let is_right = moved.is_ok() || (is_refused && new.is_some_and(has_larger));
        assert!(is_right, "the journal does not go to drive {new:?}: {moved:?}");
    }
}
