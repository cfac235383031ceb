//! The write-hole journal.

pub(crate) mod extents;
pub(crate) mod join;
pub(crate) mod journal;
pub(crate) mod placement;
pub(crate) mod replay;
pub(crate) mod ring;
pub(crate) mod writer;
