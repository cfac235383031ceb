//! Members that have no space: files of a file system that is full, or thin volumes of a full pool.
//!
//! Space may come. So a change that a member has no space for is tried again for some seconds. Then a member
//! that is alone with that is lost. When others had no space of late either, the cause may be one that they
//! share. Then none of them is lost, and the change fails.

use std::cell::RefCell;
use std::collections::BTreeMap;

use voltier_block::{IoError, IoResult, Nanos};
use voltier_ring::Handle;

use crate::geometry::numbers::MemberIndex;

const SECOND_NS: Nanos = 1_000_000_000;
/// The rests before each further try: 3.1 s in all.
pub(super) const RESTS_NS: [Nanos; 5] =
    [SECOND_NS / 10, SECOND_NS / 5, 2 * SECOND_NS / 5, 4 * SECOND_NS / 5, 8 * SECOND_NS / 5];
/// For so long a member counts as one without space.
const OF_LATE_NS: Nanos = 600 * SECOND_NS;

/// The members that had no space, and when.
pub(crate) struct SpaceRetry {
    handle: Handle,
    refusals: RefCell<BTreeMap<MemberIndex, Nanos>>,
}

impl SpaceRetry {
    pub(crate) fn new(handle: &Handle) -> Self {
        Self { handle: handle.clone(), refusals: RefCell::default() }
    }

    /// Does a change of a member again while the member has no space, as long as that is of use.
    pub(crate) async fn again<F: Future<Output = IoResult<()>>>(
        &self,
        member: MemberIndex,
        mut result: IoResult<()>,
        is_of_use: impl Fn() -> bool,
        change: impl Fn() -> F,
    ) -> IoResult<()> {
        for rest_ns in RESTS_NS {
            if result != Err(IoError::NoSpace) || !is_of_use() {
                break;
            }
            self.refusals.borrow_mut().insert(member, self.handle.now());
            self.handle.sleep(rest_ns).await;
            result = change().await;
        }
        result
    }

    /// Whether another member had no space of late.
    pub(crate) fn is_short_elsewhere(&self, member: MemberIndex) -> bool {
        let since = self.handle.now().saturating_sub(OF_LATE_NS);
        self.refusals.borrow().iter().any(|(other, at)| *other != member && *at >= since)
    }
}
