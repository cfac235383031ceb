//! The write-intent bitmap: regions that were written, are dirty, or need a resync.

pub(crate) mod matched;
pub(crate) mod region_states;
pub(crate) mod write_intent;
