//! The NBD export: a server of the Network Block Device protocol.
//!
//! The protocol itself (`proto`, `negotiate`, and [`Session`] over both) knows no socket. The code turns
//! bytes into events and events into bytes, so that it can be fuzzed. The server carries those bytes:
//!
//! ```text
//! socket -> connection -> session -> workers -> device
//! socket <- outbox (replies gathered) <-----'
//! ```

mod budget;
mod close_reason;
mod connection;
mod failure;
mod info;
mod link;
mod negotiate;
mod passed;
mod serve;
mod server;
mod session;
#[cfg(test)]
mod unaligned;

pub use budget::{Budget, NbdLimits};
pub use close_reason::CloseReason;
pub use info::ExportInfo;
pub use passed::{NOTE_VERSION, Passed, Whose};
pub use server::NbdServer;
pub use session::{Command, Event, Request, Session};
pub use voltier_nbd::proto;
