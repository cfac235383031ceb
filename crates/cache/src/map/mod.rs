//! What is cached where, in memory: lines, slots, segments, and who uses them now.

pub(crate) mod index;
pub(crate) mod locks;
pub(crate) mod segments;
pub(crate) mod table;
