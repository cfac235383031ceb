//! The vocabulary of the data path: sectors, buffers, errors, and what a block device promises.
//!
//! Every number that crosses a layer has a type here. A [`Lba`] counts 512-byte sectors on one
//! device, whatever the device's own block size; bytes appear only at the exports and at the ring.

mod buf;
mod copy;
mod device;
mod error;
mod format;
mod payload;
mod prng;
mod range;
pub mod size;
mod time;
mod under_way;

pub use buf::{BUF_ALIGN_BYTES, Buf, Bytes, blocks_out};
pub use copy::copy_past_caches;
pub use device::{AfterDiscard, BlockDevice, Durability, Limits, StripeShape};
pub use error::{IoError, IoResult};
pub use format::{Feature, Format, Unsupported};
pub use payload::{Payload, PayloadCursor, join_neighbours, zero_writes};
pub use prng::Prng;
pub use range::{Lba, SECTOR_BYTES, SectorRange};
pub use time::Nanos;
pub use under_way::UnderWay;

/// One kibibyte, in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte, in bytes.
pub const GIB: u64 = 1 << 30;
