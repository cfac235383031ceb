//! Rows that are added while the array serves.

use voltier_array::{ArrayError, GrowError, MemberState, ReplaceError};

use crate::arrays::fixture::ArrayFixture;
use crate::arrays::members::MemberMap;
use crate::arrays::operator::Operator;

impl ArrayFixture {
    /// Whether the array could be given a row now, as far as can be seen.
    fn can_grow(&self) -> bool {
        let array = self.array();
        let members = array.geometry().member_count();
        let in_service = MemberMap::members(&array, MemberState::InService).len();
        let is_possible = array.geometry().with_row().is_ok();
        is_possible
            && in_service == members
            && !array.rebuild_status().progress.is_running
            && array.reshape_status().is_none()
            && !self.is_in_doubt()
    }

    /// A row may be refused for what others do meanwhile, and for nothing else.
    fn check_not_grown(&self, drives: &[usize], error: &ArrayError) {
        match error {
            ArrayError::Grow(
                GrowError::Degraded
                | GrowError::InDoubt { .. }
                | GrowError::JournalDevice
                | GrowError::Growing
                | GrowError::Reshaping
                // Somebody took it out again.
                | GrowError::Lost { .. },
            )
            | ArrayError::Replace(ReplaceError::ScrubRuns) => {}
            ArrayError::Grow(GrowError::Device { device, error }) => {
                self.check_refused(drives[*device], &ArrayError::Replace(*error));
            }
            error => panic!("drives {drives:?} are not taken for a row: {error}"),
        }
    }
}

impl Operator {
    /// Adds a row of parity, or a copy.
    pub(crate) async fn grow(&mut self) {
        let fixture = self.fixture.clone();
        let mut free = fixture.members.free(&fixture.setup);
        let count = fixture.setup.geometry.group_count();
        if free.len() < count || !fixture.can_grow() {
            return;
        }
        let picked = (0..count).map(|_| {
            let at = self.dice.below(free.len() as u64) as usize;
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
            if let Err(error) = grown {
                growing.check_not_grown(&drives, &error);
            }
        });
        if self.dice.one_in(2) {
            grown.await;
        } else {
            self.under_way.push(grown);
        }
    }
}
