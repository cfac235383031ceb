//! Requests to models, and their answers.

use voltier_block::Nanos;

/// The kind of a request that a model times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelOp {
    /// A read.
    Read,
    /// A write that may complete from the drive's cache.
    Write,
    /// A write that completes when it is on the medium.
    WriteDurable,
    /// Everything completed before goes to the medium; the range is ignored.
    Flush,
    /// A discard.
    Discard,
}

/// A request that waits inside a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// When a request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// At this time, whatever comes later.
    At(Nanos),
    /// Not known yet: [`Model::advance`](super::Model::advance) to each
    /// [`Model::next_dispatch`](super::Model::next_dispatch) until
    /// [`Model::resolved`](super::Model::resolved) names the ticket.
    Queued(Ticket),
}

/// Time that `bytes` take at `bytes_per_s`, rounded up to a nanosecond.
pub(super) fn transfer_ns(bytes: u64, bytes_per_s: u64) -> Nanos {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s));
    u64::try_from(ns).expect("a transfer takes less than 500 years")
}
