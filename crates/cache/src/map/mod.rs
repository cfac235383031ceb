//! The map in memory: lines, slots, segments, and the requests that use them now.

pub(crate) mod contents;
pub(crate) mod index;
pub(crate) mod loading;
pub(crate) mod locks;
mod long_locks;
pub(crate) mod ranges;
pub(crate) mod recent;
pub(crate) mod segments;
pub(crate) mod shared;
pub(crate) mod table;
