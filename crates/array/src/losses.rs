//! That a member is lost is on record, durably, before anything happens that it misses.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, IoResult};
use voltier_ring::Signal;

use crate::array::Inner;
use crate::canary::{self, Canary};

/// Makes durable on the members in service that these members, all that are lost, are lost. Its result
/// are members that did not take it.
pub type RecordLosses = Rc<dyn Fn(Vec<usize>) -> Pin<Box<dyn Future<Output = Vec<usize>>>>>;

/// What is on record.
#[derive(Default)]
pub(crate) struct Losses {
    record: RefCell<Option<RecordLosses>>,
    /// Members on record as lost: as many as there are once all are.
    recorded: RefCell<Vec<usize>>,
    is_recording: Cell<bool>,
    recorded_now: Signal,
}

impl Losses {
    pub(crate) fn set_record(&self, record: RecordLosses) {
        self.record.replace(Some(record));
    }
}

impl<D: BlockDevice> Inner<D> {
    fn lost_members(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|member| !self.members[*member].is_online()).collect()
    }

    /// Waits until every member that is lost now is on record as lost: a start after a crash does not
    /// take it for one that has all that the others have.
    ///
    /// # Errors
    /// `Gone` when more are lost than a group can lose: that is not recorded, so that members which
    /// come back together can be started as they are.
    pub(crate) async fn losses_recorded(self: &Rc<Self>) -> IoResult<()> {
        if self.durable.is_some() {
            if canary::is(Canary::AnswerBeforeRecord) {
                return Ok(());
            }
            return self.settled().await;
        }
        loop {
            let Some(record) = self.losses.record.borrow().clone() else { return Ok(()) };
            let lost = self.lost_members();
            if *self.losses.recorded.borrow() == lost {
                return Ok(());
            }
            (0..self.geometry.group_count()).try_for_each(|group| self.check_group(group))?;
            if self.losses.is_recording.replace(true) {
                self.losses.recorded_now.wait().await;
                continue;
            }
            let failed = record(lost.clone()).await;
            self.losses.is_recording.set(false);
            self.losses.recorded_now.notify();
            let settled =
                failed.iter().map(|member| self.settle_now(*member, Err(IoError::Medium)));
            settled.collect::<IoResult<()>>()?;
            if failed.is_empty() {
                self.losses.recorded.replace(lost);
            }
        }
    }
}
