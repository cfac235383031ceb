//! The write-intent bitmap: regions that were written, are dirty, or need a resync.

pub(crate) mod marks;
pub(crate) mod matched;
pub(crate) mod write_intent;
