//! What the tests share: a client of NBD, a session fed in pieces, a device in memory.

pub(crate) mod client;
pub(crate) mod consume;
pub(crate) mod memory;
