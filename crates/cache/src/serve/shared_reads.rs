//! Long reads of the same bytes at the same time: the leader reads for all.
//!
//! All of them hold the lines' locks for reading, so nothing can have changed between the leader's read
//! and the arrival of the others.

use voltier_block::{Buf, Bytes, SectorRange};

use crate::counters::Served;
use crate::serve::single_flight::{Leader, Role, SingleFlight};

/// Shorter reads cost less than the search for a leader.
const SHARED_SECTORS_MIN: u64 = 128;

/// The bytes of a read, and how the cache served them.
type Answer = (Bytes, Served);
/// How a long read goes on.
pub(super) type ReadRole<'a> = Role<'a, (), Answer>;

/// Reads under way that others may join.
#[derive(Default)]
pub(crate) struct SharedReads(SingleFlight<(), Answer>);

impl SharedReads {
    /// Joins the read of this very range that is under way, or begins one; `None` for a short read,
    /// which goes by itself.
    pub(super) fn join(&self, range: SectorRange) -> Option<ReadRole<'_>> {
        (range.count >= SHARED_SECTORS_MIN).then(|| self.0.join(range, |()| ()))
    }
}

/// Gives a copy to all who joined.
pub(super) fn answer(leader: Leader<'_, (), Answer>, data: &Buf, served: Served) {
    let waiters = leader.end();
    if !waiters.answers.is_empty() {
        waiters.answer(&(Bytes::copy_of(data), served));
    }
}
