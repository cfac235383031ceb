//! Arrays: drives that protect each other, as one block device.
//!
//! [`Geometry`] says where everything is: pure functions for all levels. [`Array`] is the engine: a
//! [`BlockDevice`](voltier_block::BlockDevice) over members that are block devices.
//!
//! # One engine for all levels
//!
//! A stripe is some chunks of data and some of parity. Copies are the parities of a single chunk (every
//! coefficient of the code is 1 then), RAID 0 has none, and RAID 10, 50, 60 and 70 are groups that take
//! stripes in turns. So there is one way to read and one to write.
//!
//! # A read
//!
//! Each part comes from its member, without a lock; copies are held against writers, so that no read goes
//! back behind another. What cannot be had is computed from as many
//! chunks as there are data, with the stripe held against writers; after a medium error the result is
//! written where it belongs.
//!
//! # A write
//!
//! Stripe by stripe, each to its end whoever waits: lock the sectors of the stripe, read what parity needs
//! (whatever takes the fewest I/Os), compute, write data and parity together. A member that does not
//! take a write is lost, if the others hold what it did; else the write fails.
//!
//! Writes of less than a stripe that follow one another may wait for each other and go as one (`merge`).
//!
//! Before data and parity are written, what will be written is in a journal on the same members, so
//! that a crash leaves all of it or nothing: one more write for each, short runs of them together.
//!
//! | write of 4 KiB | reads | writes, journal apart |
//! | --- | --- | --- |
//! | one parity | 2 | 2 |
//! | two parities | 3 | 3 |
//! | three parities | 4 | 4 |
//!
//! # Durable state
//!
//! [`Array::create`] puts a superblock and a region map on every member, [`Array::assemble`] puts an array
//! together from members in any order, [`Array::new`] does without. Who is lost is on record before anything
//! is acknowledged without it (`durable`); what was never written reads as zeroes (`marks`); what does not
//! match after a crash is made to match (`resync`). Tables: [format](../../../docs/formats/array.md).
//!
//! # Background
//!
//! [`Array::replace`] fills a device in the place of a lost member or of one in service, [`Array::add_spare`]
//! keeps one for the next loss, [`Array::grow`] adds a row of parity to fill, [`Array::grow_capacity`] a
//! member for room, [`Array::scrub`] finds what members return wrong. Each goes at a [`Pace`]: beside
//! requests as its priority says, never under its floor.

mod added_row;
mod array;
mod assemble;
mod background;
mod bits;
pub mod canary;
mod clear;
mod consistency;
mod copies;
mod counts;
mod create;
mod durable;
mod errors;
mod generations;
mod geometry;
mod grow;
mod health;
mod journal;
mod latency;
mod level;
mod locks;
mod losses;
mod marks;
mod member_layout;
mod member_watch;
mod members;
mod merge;
mod pace;
mod pieces;
mod plan;
mod read;
mod rebuild;
mod regions;
mod replace;
mod reshape;
mod resync;
mod rows;
mod runs;
mod scrub;
mod service;
mod superblock;
mod write;

pub use array::{Array, ArrayError};
pub use assemble::{AssembleOptions, AssembleReport, JournalLeftOut, LeftOut};
pub use background::BackgroundTask;
pub use consistency::Consistency;
pub use counts::Counts;
pub use create::CreateOptions;
pub use errors::{DeviceError, MetadataError};
pub use geometry::{Geometry, MemberPlace, Part, Place, Span, Stripe};
pub use grow::GrowError;
pub use health::{HealthNews, HealthPolicy, MemberHealth, SlowAction};
pub use journal::device::{JOURNAL_MAGIC, JournalLabel, JournalRecord, JournalState};
pub use journal::home::JournalError;
pub use journal::{
    JOURNAL_MEMBERS_MAX, JournalOptions, JournalPlace, JournalStart, ReplayReport,
    journal_sectors_min,
};
pub use latency::Latency;
pub use level::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, GeometryError, Layout, Level};
pub use losses::RecordLosses;
pub use member_layout::{
    AREA_ALIGN_BYTES, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, MAP_START_BYTES, MemberLayout,
    SUPERBLOCK_BYTES,
};
pub use merge::{MergeMode, MergePolicy};
pub use pace::{Pace, Priority, Progress};
pub use rebuild::RebuildStatus;
pub use replace::{ReplaceError, Replacement};
pub use reshape::{ReshapeRecord, ReshapeStatus, ReshapeWait};
pub use scrub::{ScrubFinding, ScrubRepair, ScrubStatus};
pub use service::{ArrayStatus, MemberStatus};
pub use superblock::{
    ArrayRecord, MEMBERS_MAX, MemberRecord, MemberState, NAME_BYTES_MAX, SUPERBLOCK_MAGIC,
    SUPERBLOCK_VERSION, Superblock, Usage,
};
