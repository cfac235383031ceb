//! The keeper: a small process that holds what the kernel would end with the daemon.
//!
//! The kernel ends the connection of a FUSE file when the last descriptor of it is closed, and with it every loop
//! device and file system above. So a second process has each descriptor, too. It does nothing with them: a daemon
//! that was killed leaves them there, and the next one fetches them and serves on.
//!
//! ```text
//! daemon   -- put, drop -->   keeper   (holds descriptors by name)
//! (killed)                    keeper   (waits, not longer than it was told)
//! daemon   <-- fetch ------   keeper
//! ```
//!
//! With each descriptor comes a *note*, a file in memory that the daemon writes and the keeper never reads: what the
//! next daemon must know.
//!
//! A daemon that is upgraded becomes the next one by `exec`, and takes along what no keeper has (`pass`).
//!
//! `wire` has the messages, `serve` the process, `client` the daemon's side, `manager` systemd in the
//! keeper's place. A state folder has one daemon at a
//! time, and so one keeper: the daemon alone makes and removes its socket.

mod client;
mod manager;
mod pass;
mod serve;
mod wire;

pub use client::{Held, Keeper, Left};
pub use pass::{Passed, Passing};
pub use serve::serve;
pub use wire::{Pair, VERSION};

/// How long a keeper waits for a daemon, in seconds, unless it is told otherwise: a restart takes seconds, and a
/// machine without a daemon must be able to shut down.
pub const KEEP_S: u16 = 120;
