//! The write-intent bitmap: regions that were written, are dirty, or need a resync.

pub(crate) mod bitmap;
pub(crate) mod marks;
