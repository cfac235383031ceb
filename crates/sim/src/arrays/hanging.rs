//! Drives of members hang. Then they do all that they were asked for, and are offered to the array again
//! while they are at it.

use std::rc::Rc;

use voltier_array::{ArrayError, MemberState, ReplaceError};
use voltier_block::{BlockDevice, Nanos, Prng};

use crate::arrays::checks::check_refused;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::members::MemberMap;
use crate::hang_times::draw_time_ns;

/// How often a drive that does not answer is offered again.
const OFFER_NS: Nanos = 3_000_000;

/// Has the drive of a member hang, and waits until it has done all that it was asked for. If its member was
/// given up for that, the drive is offered again, from the moment on in which it answers anything.
pub(crate) async fn hang(fixture: Rc<ArrayFixture>, member: usize, drive: usize, mut dice: Prng) {
    let disk = &fixture.disks[drive];
    let time_ns = draw_time_ns(&mut dice);
    let ends = fixture.world.handle().now() + time_ns;
    fixture.members.note_harm(drive);
    disk.hang(time_ns);
    // Sometimes it is offered while nothing of it answers.
    let is_early = dice.one_in(4);
    let begins = if is_early { ends - dice.below(time_ns / 2 + 1) } else { ends };
    fixture.world.handle().sleep_until(begins).await;
    let is_offered = dice.one_in(2);
    let mut uuid = None;
    let mut is_back = false;
    while disk.is_hung() || disk.under_way().count() > 0 {
        let lost = MemberMap::members(&fixture.array(), MemberState::Lost);
        let was_it = fixture.members.drive_of(&fixture.array(), member) == Some(drive);
        if is_offered && !is_back && lost.contains(&member) && (was_it || uuid.is_some()) {
            let uuid = *uuid.get_or_insert_with(|| fixture.come(drive));
            is_back = offer(&fixture, member, drive, uuid).await;
        }
        fixture.world.handle().sleep(OFFER_NS / 2 + dice.below(OFFER_NS)).await;
    }
    fixture.members.note_end_of_harm(drive);
    if !is_back && !fixture.array().is_online(member) {
        fixture.members.note_former(member, drive);
    }
}

/// Offers a drive for a member; whether it was taken.
async fn offer(fixture: &ArrayFixture, member: usize, drive: usize, uuid: [u8; 16]) -> bool {
    let offered = fixture.array().replace(member, fixture.disks[drive].clone(), uuid).await;
    fixture.world.tell(|| format!("care: drive {drive}, which hung, for {member}: {offered:?}"));
    match offered {
        Ok(_) => true,
        Err(ArrayError::Replace(
            ReplaceError::Undrained { .. } | ReplaceError::Busy { .. } | ReplaceError::Device(_),
        )) => false,
        Err(error) => {
            check_refused(fixture, drive, &error);
            false
        }
    }
}
