//! The write-hole journal: what a stripe's members will be written is in rings on these members before
//! it is written in place, so that a crash leaves all of it or nothing, whichever members are lost
//! with it. `docs/adr/0016-write-hole-journal.md` has the protocol and why it holds.
//!
//! - `ledger`: all transactions, the room in every ring, and the queue before it.
//! - `writer`: in which rings a record goes; the tasks that write batches, labels, and raise the watermark.
//! - `transaction`: begin and end of a transaction; pauses, members that come, another place.
//! - `replay`: what an array does before it serves; `extents`: of overlapping records the last one.

pub(crate) mod extents;
pub(crate) mod ledger;
pub(crate) mod replay;
pub(crate) mod transaction;
pub(crate) mod writer;
