//! The NBD door: a server of the Network Block Device protocol.
//!
//! The protocol itself (`proto`, `negotiate`, `request`, `reply`, joined in [`Session`]) knows no
//! socket: it turns bytes into events and events into bytes, so that it can be fuzzed. The server
//! carries those bytes:
//!
//! ```text
//! socket -> input -> session -> workers -> device
//! socket <- outbox (replies gathered) <-----'
//! ```

mod connection;
mod info;
mod input;
mod negotiate;
mod outbox;
pub mod proto;
mod reply;
mod request;
mod serve;
mod server;
mod session;

pub use info::ExportInfo;
pub use request::{Command, Request};
pub use server::NbdServer;
pub use session::{CloseReason, Event, Session};
