//! Block traces of others: read, described, turned into miss-ratio curves, replayed.
//!
//! ```text
//!   files ──> read: formats, broken records ──> requests, in order of time
//!                 ├──> stats      what the trace is made of
//!                 ├──> mrc        lines ──> stack distances, SHARDS, the policies of the cache
//!                 └──> replay     a target's requests: fio's log, or virtual time
//! ```
//!
//! A trace is never held in memory: every use is a pass over the files. [`make`] writes traces whose
//! curves are known.

pub mod convert;
mod lines;
pub mod make;
pub mod mrc;
pub mod read;
pub mod replay;
pub mod stats;

pub use read::{Format, Op, ReadOptions, Request, Source};
