//! The vocabulary of the data path: sectors, buffers, errors, and what a block device promises.
//!
//! Every number that crosses a layer has a type here. A [`Lba`] counts 512-byte sectors on one
//! device, whatever the device's own block size; bytes appear only at the exports and at the ring.
//!
//! # Files in reading order
//!
//! | file | content |
//! | --- | --- |
//! | `device` | the promises of a block device; everything rests on these twenty lines of prose |
//! | `range` | addresses and extents (an extent is neighbouring sectors: start and length) |
//! | `buf`, `payload` | who owns a buffer; how a request is cut without a copy |
//! | `error` | the one error of the data path |
//! | `labels` | where devices carry labels, and how the labels of an earlier use are cleared |
//! | `figures` | what is counted and measured, each figure declared once |
//! | `meter` | how many requests, how long they take, how many are under way |
//! | `words` | choices that people name by a word, each as one table |
//! | `prng` | random numbers of a seed, the same for ever |
//! | `under_way` | I/O that a drive still has, also after its device was given up |
//! | `time`, `size`, `copy` | nanoseconds; sizes as people write them; copies past the caches |

mod buf;
mod copy;
mod device;
mod error;
mod figures;
mod format;
mod labels;
mod meter;
mod payload;
mod prng;
mod range;
pub mod size;
mod time;
mod under_way;
mod words;

pub use buf::{BUF_ALIGN_BYTES, Buf, Bytes, blocks_out};
pub use copy::copy_past_caches;
pub use device::{
    AfterDiscard, BlockDevice, DriveControl, Durability, InMemory, Limits, StripeShape,
};
pub use error::{IoError, IoResult};
pub use figures::{Figure, FigureKind, FigureRow, Figures, Unit};
pub use format::{Feature, Format, Unsupported};
pub use labels::{LABEL_BYTES, LabelPart, SECOND_CACHE_LABEL, clear_labels, label_places};
pub use meter::{Asked, Begun, KindCounts, Meter, MeterCounts};
pub use payload::{Payload, PayloadCursor, join_neighbours, zero_writes};
pub use prng::Prng;
pub use range::{Lba, SECTOR_BYTES, SectorRange};
pub use time::Nanos;
pub use under_way::UnderWay;
pub use words::{UnknownWord, Word};

/// One kibibyte, in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte, in bytes.
pub const GIB: u64 = 1 << 30;
