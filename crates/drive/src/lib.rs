//! Leaf devices: file, memory, modelled drive; and a filter that serves sectors over larger blocks.
//!
//! A leaf ends a stack of devices. All devices of this crate, and the filters of tests, pass the one body
//! of `tests/it/conformance.rs`.
//!
//! | file | content |
//! | --- | --- |
//! | `file/mod`, `file/open` | a file or block device through the ring; how one is opened and locked |
//! | `file/left_behind` | drives with I/O in flight of a device that was given up ("undrained") |
//! | `nbd/mod`, `nbd/session` | an export of an NBD server: a drive that reconnects; its connections |
//! | `nbd/held` | requests that a server has, counted beyond the drive that sent them |
//! | `nbd/outage` | how long the next attempt to connect waits, and what was said of an outage |
//! | `nbd/unflushed` | what a server that dies may lose, kept until a flush |
//! | `rbd` | a Ceph RBD image, through librbd |
//! | `align` | sectors over larger blocks |
//! | `overlay` | a device that is only read: what is written to it stays in memory |
//! | `memory` | a device in memory |
//! | `model/mod` | modelled drives: when a request completes |

mod align;
mod file;
mod memory;
pub mod model;
mod nbd;
mod overlay;
mod rbd;

pub use align::AlignDevice;
pub use file::{FileDevice, FileFacts, FileOptions, OpenError, OpenFile, is_undrained};
pub use memory::MemoryDevice;
pub use model::ModelDevice;
pub use nbd::{Connecting, Held, Links, NbdDevice, NbdNews, NbdRefusal};
pub use overlay::OverlayDevice;
pub use rbd::RbdDevice;
