//! Rows that are added while the array serves.

use std::rc::Rc;

use voltier_array::{ArrayError, GrowError, MemberState, ReplaceError};
use voltier_block::Prng;
use voltier_ring::JoinHandle;

use crate::arrays::checks::check_refused;
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::members::MemberMap;
use crate::arrays::reuse::check_labels;

/// Whether the array could be given a parity row now, as far as can be seen.
fn can_grow(fixture: &ArrayFixture) -> bool {
    let array = fixture.array();
    let members = array.geometry().member_count();
    let in_service = MemberMap::members(&array, MemberState::InService).len();
    let is_possible = array.geometry().with_parity().is_ok();
    is_possible
        && in_service == members
        && !array.rebuild_status().progress.is_running
        && array.reshape_status().is_none()
        && !fixture.needs_resync()
}

/// A row may be refused for what others do meanwhile, and for nothing else.
fn check_not_grown(fixture: &ArrayFixture, drives: &[usize], error: &ArrayError) {
    match error {
        ArrayError::Grow(
            GrowError::Degraded
            | GrowError::NeedsResync { .. }
            | GrowError::JournalDevice
            | GrowError::Growing
            | GrowError::Reshaping
            // An operator took the drive out again.
            | GrowError::Lost { .. },
        )
        | ArrayError::Replace(ReplaceError::ScrubRuns) => {}
        ArrayError::Grow(GrowError::Device { device, error }) => {
            check_refused(fixture, drives[*device], &ArrayError::Replace(*error));
        }
        error => panic!("drives {drives:?} are not taken for a row: {error}"),
    }
}

/// Adds a parity row, or a copy: the task that waits for it, if it is possible.
pub(crate) fn grow(fixture: &Rc<ArrayFixture>, dice: &mut Prng) -> Option<JoinHandle<()>> {
    let mut free = fixture.members.free(&fixture.setup);
    let count = fixture.setup.geometry.group_count();
    if free.len() < count || !can_grow(fixture) {
        return None;
    }
    let picked = (0..count).map(|_| {
        let at = dice.below(free.len() as u64) as usize;
        free.swap_remove(at)
    });
    let drives: Vec<usize> = picked.collect();
    let uuids: Vec<[u8; 16]> = drives.iter().map(|drive| fixture.come(*drive)).collect();
    fixture.world.tell(|| format!("care: drives {drives:?} for a row more"));
    let growing = fixture.clone();
    let grown = fixture.world.handle().spawn(async move {
        let devices = drives.iter().map(|drive| growing.disks[*drive].clone()).collect();
        let grown = growing.array().grow(devices, &uuids).await;
        growing.world.tell(|| format!("care: a row on drives {drives:?}: {grown:?}"));
        match grown {
            Ok(()) => drives.iter().for_each(|drive| check_labels(&growing, *drive)),
            Err(error) => check_not_grown(&growing, &drives, &error),
        }
    });
    Some(grown)
}
