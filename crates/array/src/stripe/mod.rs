//! Stripes: locks, reads, writes, clears, and parity.

pub(crate) mod clear;
pub(crate) mod fence;
pub(crate) mod locks;
pub(crate) mod merge;
pub(crate) mod read;
pub(crate) mod rows;
pub(crate) mod runs;
pub(crate) mod slots;
pub(crate) mod write;
