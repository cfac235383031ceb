//! The Network Block Device protocol: what the server of an export and the client of a drive both speak.
//!
//! The protocol itself knows no socket: bytes become events, and events bytes, so that it can be fuzzed. Only
//! `connect` talks to a server. It waits, so it runs on a thread apart and never on a core.
//!
//! | file | content |
//! | --- | --- |
//! | `proto` | the numbers of the protocol |
//! | `input`, `sending` | a receive buffer with what is unread in it; what is left to send |
//! | `uri` | how a server and an export are named |
//! | `handshake` | the client's side of the negotiation |
//! | `client` | requests of a client under way, and the replies to them |
//! | `connect` | the way to a server: names, sockets and the handshake, on the caller's thread |

mod client;
mod connect;
mod handshake;
mod input;
pub mod proto;
mod sending;
mod uri;

pub use client::{Client, Event, Violation, request_header};
pub use connect::{ConnectError, Connected, connect};
pub use handshake::{Facts, Handshake, HandshakeError, Step};
pub use input::{INPUT_BYTES, Input};
pub use sending::cut_front;
pub use uri::{DEFAULT_PORT, ExportUri, Server, UriError, escape};
