//! The NBD door: a server of the Network Block Device protocol.
//!
//! The protocol itself (`proto`, `negotiate`, `request`, `reply`, joined in [`Session`]) knows no
//! socket: it turns bytes into events and events into bytes, so that it can be fuzzed. The server
//! carries those bytes.

mod info;
mod negotiate;
pub mod proto;
mod reply;
mod request;
mod session;

pub use info::ExportInfo;
pub use reply::{Failure, ReplyHeader, error_reply, read_reply, success_reply};
pub use request::{Command, Request};
pub use session::{CloseReason, Event, Session};
