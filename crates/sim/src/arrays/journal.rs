//! A journal on a device of its own: harmed, moved, left behind.

use std::rc::Rc;

use voltier_array::{ArrayError, JournalError, MemberLayout};
use voltier_block::{BlockDevice, Lba, MIB, Prng, SectorRange};

use crate::arrays::fixture::ArrayFixture;
use crate::arrays::left::JournalFate;
use crate::arrays::reuse::check_labels;
use crate::hang_times::draw_time_ns;

/// Does harm to the device of the journal, or puts the journal elsewhere.
pub(crate) async fn handle_journal(fixture: &Rc<ArrayFixture>, dice: &mut Prng) {
    match dice.below(4) {
        0 | 1 => harm_journal(fixture, dice),
        2 => move_journal(fixture, true).await,
        _ => move_journal(fixture, false).await,
    }
}

fn harm_journal(fixture: &Rc<ArrayFixture>, dice: &mut Prng) {
    let Some(drive) = fixture.journal_drive() else { return };
    let disk = &fixture.disks[drive];
    fixture.world.tell(|| format!("care: harm to the journal, drive {drive}"));
    fixture.members.note_harm(drive);
    if fixture.setup.hangs && dice.one_in(2) {
        return disk.hang(draw_time_ns(dice));
    }
    let sectors = fixture.setup.drives[drive].bytes / 512;
    match dice.below(4) {
        0 | 1 => disk.lose(),
        2 => {
            let at = Lba::from_bytes(MIB).plus(dice.below(250) * 8);
            disk.fail_writes(SectorRange::new(at, 8));
        }
        _ => {
            let copies = MemberLayout::superblock_lbas(sectors);
            disk.fail_writes(SectorRange::new(*dice.pick(&copies), 8));
        }
    }
}

/// To another device, or back to the members.
async fn move_journal(fixture: &Rc<ArrayFixture>, to_device: bool) {
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
    let is_refused = matches!(moved, Err(ArrayError::JournalDevice(JournalError::Blocks { .. })));
    let is_right = moved.is_ok() || (is_refused && new.is_some_and(has_larger));
    if let Some(drive) = new.filter(|_| moved.is_ok()) {
        check_labels(fixture, drive);
    }
    assert!(is_right, "the journal does not go to drive {new:?}: {moved:?}");
}
