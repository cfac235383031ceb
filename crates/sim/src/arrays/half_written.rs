//! A write fails in a group that has lost all it can lose. Then the array is stopped in order and started
//! again, and must not take for right what does not fit.

use std::rc::Rc;

use voltier_array::{Geometry, GroupIndex, MemberIndex, StripeNumber};
use voltier_block::{BlockDevice, Buf, Durability, Lba, Prng, SectorRange};

use crate::arrays::checks::{check_all, check_members};
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::operator::finish;
use crate::arrays::sets::DriveSet;
use crate::arrays::start::{give_up_uncovered, start};
use crate::arrays::trial::Trial;
use crate::disk::SimDisk;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const HALF_WRITTEN: u64 = 0x6861_6c66_0000_0a08;
/// One seed in so many.
const ONE_IN: u64 = 3;
/// Writes to the stripe whose member refuses them.
const WRITES: u64 = 4;

/// The dice of the seed for this, if the seed draws it.
pub(super) fn drawn(seed: u64) -> Option<Prng> {
    let mut dice = Prng::new(seed ^ HALF_WRITTEN);
    dice.one_in(ONE_IN).then_some(dice)
}

/// Fails a write, stops the array, starts it and checks it. Nothing else goes on.
pub(crate) async fn fail_and_stop(fixture: &Rc<ArrayFixture>, mut dice: Prng) {
    let geometry = fixture.geometry();
    if fixture.setup.expands() || geometry.parity_chunks() == 0 {
        return;
    }
    fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
    finish(fixture).await;
    let stripe = *dice.pick(&fixture.stripes);
    lose_all_that_can_be_lost(fixture, &geometry, geometry.group_of(stripe), &mut dice);
    let Some(disk) = refuse_writes(fixture, &geometry, stripe, &mut dice) else { return };
    for _ in 0..WRITES {
        write(fixture, &geometry, stripe, &mut dice).await;
    }
    disk.mend();
    fixture.stop_after_failure().await;
    fixture.drop_array();
    let known = fixture.known();
    let is_gone = |drive: &usize| fixture.disks[*drive].is_gone();
    let all: DriveSet = known.labelled() | known.journals();
    let given = all - (0..fixture.disks.len()).filter(is_gone).collect();
    let mut trial = Trial::of(&fixture.setup, &fixture.lives(), &known, given);
    let started = start(fixture, &mut trial, &mut dice).await;
    started.expect("what was stopped comes back");
    give_up_uncovered(fixture, &trial);
    check_members(fixture, trial.usable);
    check_all(fixture, "after a failed write and a stop").await;
}

/// Takes members out until the group has no redundancy.
fn lose_all_that_can_be_lost(
    fixture: &ArrayFixture,
    geometry: &Geometry,
    group: GroupIndex,
    dice: &mut Prng,
) {
    let array = fixture.array();
    loop {
        let members: Vec<MemberIndex> = geometry.members_of(group).collect();
        let online: Vec<MemberIndex> =
            members.iter().copied().filter(|member| array.is_online(*member)).collect();
        if members.len() - online.len() >= geometry.parity_chunks() {
            return;
        }
        let MemberIndex(member) = *dice.pick(&online);
        fixture.world.tell(|| format!("member {member} is taken out"));
        if let Some(drive) = fixture.members.drive_of(&array, member) {
            fixture.members.note_former(member, drive);
        }
        array.fail(MemberIndex(member)).expect("as many as can be lost");
    }
}

/// Has the drive of one member that is left refuse writes to its chunk of a stripe.
fn refuse_writes(
    fixture: &ArrayFixture,
    geometry: &Geometry,
    stripe: StripeNumber,
    dice: &mut Prng,
) -> Option<SimDisk> {
    let array = fixture.array();
    let members = geometry.members_of(geometry.group_of(stripe));
    let online: Vec<usize> =
        members.filter(|member| array.is_online(*member)).map(|member| member.0).collect();
    let drive = fixture.members.drive_of(&array, *dice.pick(&online))?;
    let disk = fixture.disks[drive].clone();
    let at = fixture.on_device(geometry.member_lba(stripe, 0));
    disk.fail_writes(SectorRange::new(at, geometry.chunk_sectors()));
    Some(disk)
}

/// Writes some blocks of a stripe; that may fail.
async fn write(fixture: &ArrayFixture, geometry: &Geometry, stripe: StripeNumber, dice: &mut Prng) {
    let (stripe_sectors, block) = (geometry.stripe_sectors(), fixture.setup.block_sectors());
    let first = dice.below(stripe_sectors / block);
    let count = 1 + dice.below(2.min(stripe_sectors / block - first));
    let range = SectorRange::new(Lba(stripe.0 * stripe_sectors + first * block), count * block);
    let mut data = Buf::new(range.bytes() as usize);
    dice.fill(&mut data);
    let write = fixture.model.borrow_mut().begin_write(range.start, &data);
    let open = fixture.uncovered.borrow_mut().begin(range);
    match fixture.array().write(range.start, data.into(), Durability::Cached).await {
        Ok(()) => {
            fixture.uncovered.borrow_mut().end(open);
            fixture.model.borrow_mut().end_write(write, fixture.setup.has_journal());
            fixture.written.borrow_mut().insert(fixture.setup.region_of(stripe));
        }
        Err(error) => {
            fixture.world.tell(|| format!("writing {range} fails: {error}"));
            fixture.model.borrow_mut().fail_write(write);
        }
    }
}
