//! Drives of members hang, then do all that they were asked for. Meanwhile the drives are offered to the
//! array again. Drives hang while an array is started, too.

use std::rc::Rc;

use voltier_array::{ArrayError, AssembleReport, MemberIndex, MemberState, ReplaceError};
use voltier_block::{DriveControl, Nanos, Prng};

use crate::arrays::checks::check_refused;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::members::MemberMap;
use crate::arrays::sets::MemberSet;
use crate::arrays::start::shuffled;
use crate::arrays::trial::Trial;
use crate::hang_times::{check_patience, draw_time_ns};

/// One start in so many meets a drive that hangs, and begins so many times as long as a request takes before.
const START_ONE_IN: u64 = 3;
const START_REQUESTS: u64 = 60;
/// How often a drive that does not answer is offered again.
const OFFER_NS: Nanos = 3_000_000;

/// Has the drive of a member hang, which is noted as harm already, and waits until it has done all that it was
/// asked for. If the drive's member was given up for that, the drive is offered again, from the moment on in
/// which it answers anything.
pub(crate) async fn hang(fixture: Rc<ArrayFixture>, member: usize, drive: usize, mut dice: Prng) {
    let disk = &fixture.disks[drive];
    let time_ns = draw_time_ns(&mut dice);
    let ends = fixture.world.handle().now() + time_ns;
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
    if !is_back && !fixture.array().is_online(MemberIndex(member)) {
        fixture.members.note_former(member, drive);
    }
}

/// Offers a drive for a member; whether it was taken.
async fn offer(fixture: &ArrayFixture, member: usize, drive: usize, uuid: [u8; 16]) -> bool {
    let offered =
        fixture.array().replace(MemberIndex(member), fixture.disks[drive].clone(), uuid).await;
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

/// The members in service.
fn online(fixture: &ArrayFixture) -> MemberSet {
    let array = fixture.array();
    (0..fixture.geometry().member_count())
        .filter(|member| array.is_online(MemberIndex(*member)))
        .collect()
}

/// Starts the array while one of its drives answers nothing for a time. The result is none when no drive
/// hangs here, or the start has ended for that. Then the drive is well again.
pub(crate) async fn start_beside_a_hang(
    fixture: &Rc<ArrayFixture>,
    trial: &mut Trial,
    dice: &mut Prng,
) -> Option<AssembleReport> {
    let known = fixture.known();
    let older = fixture.part_of_older_lives(trial.given);
    let is_right_choice = trial.is_enough && trial.options.degraded && older.is_empty();
    if !fixture.setup.hangs || !is_right_choice || !fixture.is_made() || !dice.one_in(START_ONE_IN)
    {
        return None;
    }
    let order = shuffled(trial.given, dice);
    let drive = *dice.pick(&order);
    let members = known.drives_of(trial.given);
    let member = members.iter().position(|own| *own == Some(drive));
    let rest = trial.usable - member.map_or(MemberSet::EMPTY, MemberSet::one);
    let disk = fixture.disks[drive].clone();
    let (begins, time_ns) = (dice.below(START_REQUESTS), draw_time_ns(dice));
    let (handle, hung) = (fixture.world.handle().clone(), disk.clone());
    let latency_ns = fixture.setup.latency_ns;
    let hangs = fixture.world.handle().spawn(async move {
        handle.sleep(begins * latency_ns).await;
        hung.hang(time_ns);
    });
    fixture.starting.set(rest);
    let since = fixture.world.handle().now();
    let started = fixture.assemble(&order, trial.options).await;
    check_patience(fixture.world.handle().now() - since);
    if started.is_ok() {
        let online = online(fixture);
        let is_expected = online == trial.usable || online == rest;
        assert!(
            is_expected,
            "{online:?} are in service; it should be {:?} or {rest:?}",
            trial.usable
        );
    }
    hangs.await;
    while disk.is_hung() || disk.under_way().count() > 0 {
        fixture.world.handle().sleep(OFFER_NS).await;
    }
    match started {
        Ok(report) => {
            let was_used = |member: &usize| trial.usable.has(*member);
            let is_out = |member: &usize| !fixture.array().is_online(MemberIndex(*member));
            if let Some(member) = member.filter(was_used).filter(is_out) {
                trial.usable = rest;
                fixture.members.note_former(member, drive);
            }
            // Members may have been rebuilt meanwhile.
            trial.usable = trial.usable | online(fixture);
            Some(report)
        }
        Err(error) => {
            fixture.world.tell(|| format!("a start beside drive {drive}, which hangs: {error}"));
            None
        }
    }
}
