//! The write-hole journal. Rings on a stripe's members hold what these members will be written before
//! the array writes it in place. So a crash leaves all of a write or nothing, whichever members are
//! lost with the crash. `docs/internals/write-hole.md` has the protocol and why it holds.
//!
//! - `ring`: the room in a ring, and the queue before it; `ledger`: all transactions, and the rings.
//! - `placement`: whether records go to the members' rings, or to that of a device of the journal's own.
//! - `writer`: the tasks that write batches, labels, and raise the watermark.
//! - `transaction`: begin and end of a transaction; pauses, members that come, another place.
//! - `replay`: what an array does before it serves; `ring_contents`: what the rings say together;
//!   `extents`: of overlapping records the last one.

pub(crate) mod extents;
pub(crate) mod ledger;
pub(crate) mod placement;
pub(crate) mod replay;
pub(crate) mod ring;
pub(crate) mod ring_contents;
pub(crate) mod transaction;
pub(crate) mod writer;
