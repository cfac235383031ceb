//! The exports: NBD and the FUSE file.
//!
//! An export serves anything that is a [`BlockDevice`](voltier_block::BlockDevice), on the device's
//! core. All exports of a device share one [`ByteDevice`], so that none loses bytes of another.
//! Requests become tasks there, bounded in number and bytes for each client, and no lock is shared by
//! all I/O.

mod access;
mod bytes;
mod counters;
mod error;
pub mod fuse;
#[cfg(test)]
#[path = "../tests/it/support/memory.rs"]
mod memory;
pub mod nbd;
mod range_locks;
mod requests;
#[cfg(test)]
mod slow;

pub use access::FileAccess;
pub use bytes::ByteDevice;
pub use counters::ExportCounters;
pub use error::ExportError;
