//! The FUSE export: a regular file whose content is the device.
//!
//! The file itself is the mount point: nothing else appears. A loop device or a virtual machine uses the
//! path as it would use an image file. The device's core reads the kernel's requests from `/dev/fuse` and
//! answers them there: no thread lies between.
//!
//! ```text
//! /dev/fuse -> connection -> session -> the core's workers -> device
//!      ^---------------- answer ---------------'
//! ```
//!
//! The protocol itself ([`Session`] over the structures of [`abi`]) knows no descriptor: it is tested and
//! fuzzed without a kernel.
//!
//! A file may outlive its daemon (`kept`): the keeper has its descriptor meanwhile.
//!
//! Choices:
//! - The page cache is bypassed (`FOPEN_DIRECT_IO`): what another export of the volume writes is seen
//!   at once, and a completed write has reached the volume. Writes may run in parallel
//!   (`FOPEN_PARALLEL_DIRECT_WRITES`); shared memory mappings work where the kernel allows them
//!   beside direct I/O (Linux 6.6). No writeback cache: durability is the volume's.
//! - The file behaves as a block device does. `O_TRUNC` is ignored so that `cp` works, the size never
//!   changes, and writes past the end find no space.

pub mod abi;
mod attach;
mod handover;
mod kept;
mod mount;
mod serve;
mod session;

pub use kept::{Keep, Left, NOTE_VERSION, Note};
pub use mount::{FuseFile, News, clear_dead, clear_own};
pub use serve::FileExport;
pub use session::{Action, Agreed, FileFacts, Reply, Request, Session, TRANSFER_BYTES_MAX};
