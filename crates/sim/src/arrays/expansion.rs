//! Capacity expansion: a member is added, and stripes get wider while clients write, members go, and the
//! power does.

use std::rc::Rc;

use voltier_array::{
    ArrayError, BackgroundTask, GrowError, MemberIndex, MemberState, Pace, Priority, ReplaceError,
    ScrubRepair,
};
use voltier_block::{BlockDevice, Prng};
use voltier_ring::JoinHandle;

use crate::arrays::checks::check_refused;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::members::MemberMap;

/// An expansion may be refused for what others do meanwhile, and for nothing else.
fn check_not_expanded(fixture: &ArrayFixture, drive: usize, error: &ArrayError) {
    match error {
        ArrayError::Grow(
            GrowError::Degraded
            | GrowError::NeedsResync { .. }
            | GrowError::Growing
            | GrowError::Reshaping
            // An operator took the drive out again.
            | GrowError::Lost { .. },
        )
        | ArrayError::Replace(ReplaceError::ScrubRuns) => {}
        ArrayError::Grow(GrowError::Device { error, .. }) => {
            check_refused(fixture, drive, &ArrayError::Replace(*error));
        }
        error => panic!("drive {drive} is not taken for capacity: {error}"),
    }
}

/// Adds a member for capacity: not while one is on its way, and as many as the seed has. The task that
/// waits for it.
pub(crate) async fn add_member(
    fixture: &Rc<ArrayFixture>,
    dice: &mut Prng,
) -> Option<JoinHandle<()>> {
    let array = fixture.array();
    if fixture.setup.expansions > 1 && dice.one_in(2) {
        // So that there is a time for the next one.
        let pace = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
        array.set_pace(BackgroundTask::Rebuild, pace);
        let is_at_rest = |fixture: &ArrayFixture| {
            fixture.array().reshape_status().is_none_or(|it| it.waits_for.is_some())
        };
        fixture.until("the move ends or waits", is_at_rest).await;
    }
    let free = fixture.members.free(&fixture.setup);
    if fixture.members_added() as u64 == fixture.setup.expansions
        || fixture.is_expanding.get()
        || array.reshape_status().is_some()
        || !fixture.is_all_online()
        || free.is_empty()
        || fixture.needs_resync()
    {
        return None;
    }
    if dice.one_in(3) {
        // The reshape goes on while no client asks for anything, and a little beside.
        let floor_bytes_per_second = *dice.pick(&[0, 1 << 16, 1 << 22]);
        let pace = Pace { priority: Priority::Idle, floor_bytes_per_second };
        array.set_pace(BackgroundTask::Rebuild, pace);
    }
    let drive = *dice.pick(&free);
    let uuid = fixture.come(drive);
    fixture.is_expanding.set(true);
    fixture.world.tell(|| format!("care: drive {drive} for capacity"));
    let growing = fixture.clone();
    let grown = fixture.world.handle().spawn(async move {
        let grown = growing.array().grow_capacity(growing.disks[drive].clone(), uuid).await;
        growing.is_expanding.set(false);
        growing.world.tell(|| format!("care: capacity of drive {drive}: {grown:?}"));
        if let Err(error) = grown {
            check_not_expanded(&growing, drive, &error);
        }
    });
    Some(grown)
}

/// Has a reshape come to its end: drives in the place of members that it waits for, as far as there are some.
pub(crate) async fn finish_reshape(fixture: &Rc<ArrayFixture>) {
    let array = fixture.array();
    if !fixture.setup.expands() || array.reshape_status().is_none() || !fixture.members.is_whole() {
        return;
    }
    for member in MemberMap::members(&array, MemberState::Lost) {
        let free = fixture.members.free(&fixture.setup);
        let fits = |drive: &usize| {
            fixture.disks[*drive].limits().block_bytes <= fixture.limits().block_bytes
        };
        let Some(drive) = free.into_iter().find(fits) else { return };
        let uuid = fixture.come(drive);
        fixture.world.tell(|| format!("drive {drive} for member {member}, which a move waits for"));
        let replaced = array.replace(MemberIndex(member), fixture.disks[drive].clone(), uuid).await;
        // A spare may have been faster.
        let is_right =
            matches!(replaced, Ok(_) | Err(ArrayError::Replace(ReplaceError::Busy { .. })));
        assert!(is_right, "drive {drive} does not come: {replaced:?}");
    }
    fixture.until("all members are in service", ArrayFixture::is_all_online).await;
    fixture.until("the move ends", |fixture| fixture.array().reshape_status().is_none()).await;
    array.scrub(ScrubRepair::Nothing).expect("nothing else is running");
    array.ended(BackgroundTask::Scrub).await;
    let found = array.scrub_status().counts;
    assert_eq!((found.mismatched_blocks, found.skipped_bytes), (0, 0), "the scrub behind the move");
}
