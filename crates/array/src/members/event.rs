//! The events that members report to the floors above, and their questions to these floors.

use voltier_block::IoError;

use crate::geometry::numbers::GroupIndex;

/// An event of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberEvent {
    /// A member is out, in memory: nothing may be acknowledged before that is on record.
    Lost,
    /// A member was lost by choice: the record is to be stored although no request waits for that.
    GivenUp,
    /// A member has failed a flush: what it holds may be older than what was written, and nothing is asked of
    /// the array before the failure is judged.
    Doubted,
    /// The failure is judged.
    Judged,
    /// A member that cannot be lost has refused a flush: it may have dropped what it had.
    Unflushed(IoError),
    /// So many members refuse changes that none is lost for it.
    Refused(IoError),
    /// Members that cannot be lost have refused a change which others took: stripes are half written.
    HalfWritten,
    /// Checksums of a member cannot be read: its blocks are to be held against the others.
    Unverified,
}

/// The events that members report to the floors above, and their questions to these floors. Called when
/// something fails, never on the way of a request that succeeds.
pub(crate) trait Above {
    /// Takes note of an event, at once.
    fn on(&self, event: MemberEvent);
    /// Whether all parity of a group matches its data.
    fn is_consistent(&self, group: GroupIndex) -> bool;
    /// Whether a rebuild reads some members more than others.
    fn is_load_uneven(&self) -> bool;
}
