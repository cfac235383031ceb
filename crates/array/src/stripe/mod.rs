//! Stripes: locks, reads, writes, clears, and parity.

pub(crate) mod clear;
pub(crate) mod fence;
pub(crate) mod foreground;
pub(crate) mod ground;
pub(crate) mod mend;
pub(crate) mod merge;
pub(crate) mod new_data;
pub(crate) mod read;
pub(crate) mod reconstruct;
pub(crate) mod runs;
pub(crate) mod stripe_writer;
pub(crate) mod stripes;
pub(crate) mod two_shapes;
pub(crate) mod vouch;
pub(crate) mod write;
