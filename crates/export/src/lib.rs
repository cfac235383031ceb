//! The exports: NBD, the FUSE file, and the block device over one.
//!
//! An export serves anything that is a [`BlockDevice`](voltier_block::BlockDevice), on the device's
//! core. All exports of a device share one [`ByteDevice`], so that none loses bytes of another.
//! Requests become tasks there, bounded in number and bytes for each client, and no lock is shared by
//! all I/O.
//!
//! # Files in reading order
//!
//! | file | content |
//! | --- | --- |
//! | `nbd/session` | the protocol without a socket: requests parsed and refused, replies formed |
//! | `nbd/negotiate`, `nbd/proto` | the handshake; the numbers of the protocol |
//! | `nbd/connection` | one client: requests in, with their share of the memory |
//! | `requests`, `nbd/serve` | workers; requests carried to the device, replies sent together |
//! | `bytes` | parts of blocks made whole, and no byte of another export lost meanwhile |
//! | `nbd/budget` | the memory and connections that all NBD clients of a daemon share |
//! | `nbd/server`, `nbd/link` | the server of an export; connections that are cut off |
//! | `fuse/session`, `fuse/abi` | FUSE without a descriptor; the kernel's structures and numbers |
//! | `fuse/serve` | a connection to the kernel, served on the core |
//! | `fuse/mount`, `fuse/attach`, `fuse/handover` | the file; mounting; from the control thread to the core |
//! | `loop_device` | the block device: a loop device over the file, and its name |
//!
//! A *peer* of an NBD export is a host, or all who open one Unix socket. The clients of a peer share a part
//! of the *budget*.

mod access;
mod bytes;
mod counters;
mod error;
pub mod fuse;
pub mod loop_device;
#[cfg(test)]
#[path = "../tests/it/support/memory.rs"]
mod memory;
pub mod nbd;
mod requests;
#[cfg(test)]
mod slow;

pub use access::FileAccess;
pub use bytes::ByteDevice;
pub use counters::ExportCounters;
pub use error::ExportError;
