//! The FUSE export: a regular file whose content is the device.
//!
//! The file itself is the mount point: nothing else appears. A loop device or a virtual machine uses the
//! path as it would use an image file. The kernel's requests arrive on a thread of the `fuser` crate,
//! travel to the device's core through a mailbox, and are answered from there.
//!
//! ```text
//! /dev/fuse -> fuser's thread -> mailbox -> the core's workers -> device
//!      ^-------------- reply -----------------------'
//! ```
//!
//! Choices:
//! - The page cache is bypassed (`FOPEN_DIRECT_IO`): what another export of the volume writes is seen
//!   at once, and a completed write has reached the volume. Writes may run in parallel
//!   (`FOPEN_PARALLEL_DIRECT_WRITES`); shared memory mappings work where the kernel allows them
//!   beside direct I/O (Linux 6.6). No writeback cache: durability is the volume's.
//! - The file behaves as a block device does. `O_TRUNC` is ignored so that `cp` works, the size never
//!   changes, and writes past the end find no space.

mod file;
mod mailbox;
mod mount;

pub use file::FileExport;
pub use mount::{FuseFile, clear_dead};
