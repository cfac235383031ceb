//! Arrays: drives that protect each other, as one block device.
//!
//! [`Geometry`] says where everything is: pure functions for all levels. [`Array`] is the engine: a
//! [`BlockDevice`](voltier_block::BlockDevice) over members that are block devices.
//!
//! # One engine for all levels
//!
//! A stripe is some chunks of data and some of parity. Copies are the parities of a single chunk (every
//! coefficient of the code is 1 then). RAID 0 has none, and RAID 10, 50, 60 and 70 are groups that take
//! stripes in turns. So there is one way to read and one to write.
//!
//! # A read
//!
//! Each part comes from its member, without a lock; copies are held against writers, so that no read
//! goes back behind another. Parts that cannot be read are computed from as many chunks as there are
//! data, with the stripe held against writers. After a medium error the result is written where it
//! belongs.
//!
//! # A write
//!
//! Stripe by stripe, each to its end whoever waits. The writer locks the sectors of the stripe and reads
//! what parity needs (whatever takes the fewest I/Os). The writer computes, then writes data and parity
//! together. A member that does not take a write is lost, if the others hold what it did; else the write
//! fails.
//!
//! Writes of less than a stripe that follow one another may wait for each other and go as one
//! (`stripe::merge`).
//!
//! Before the array writes data and parity, a journal on the same members has what will be written. So
//! a crash leaves all of a write or nothing. The cost is one more write for each, short runs of them
//! together.
//!
//! | write of 4 KiB | reads | writes, journal apart |
//! | --- | --- | --- |
//! | one parity | 2 | 2 |
//! | two parities | 3 | 3 |
//! | three parities | 4 | 4 |
//!
//! # Durable state
//!
//! [`Array::create`] puts a superblock and a region map on every member, [`Array::assemble`] puts an
//! array together from members in any order, [`Array::new`] does without. A lost member is on record
//! before anything is acknowledged without the member (`membership`, `update_record`). A region that
//! was never written reads as zeroes (`bitmap`). Parity that does not match after a crash is made to
//! match (`tasks::resync`). Tables: [format](../../../docs/formats/array.md).
//!
//! # Floors
//!
//! A floor names those below it, and no other. Each part is a struct that owns its state.
//!
//! ```text
//! array        the facade: an array as a block device, and all that can be asked of it
//! assemble, examine, create, status, grow, expand
//!              how an array comes to serve, is told of, and gets further members
//! hung         which devices do not answer, and whether one is given up for that
//! generations, generation, foundation, update_record
//!              the parts put together, from the start to the stop, and what is on record
//! tasks        rebuild, scrub, resync, replacement, reshape, each at its pace
//! stripe       locks, reads, writes, clears, parity, merge batches
//! journal      begin and end of a transaction; rings, placement, writer, replay
//! bitmap       regions: written, dirty, in need of a resync
//! membership   the record, and the barrier that makes a loss durable
//! members      devices: what is sent to them, how well they do, when they are given up, checksums
//! format, geometry, errors     pure
//! ```
//!
//! # Background
//!
//! [`Array::replace`] fills a device in the place of a lost member or of one in service.
//! [`Array::add_spare`] keeps a device for the next loss. [`Array::grow`] adds a parity row to fill,
//! [`Array::grow_capacity`] a member for capacity. [`Array::scrub`] finds what members return wrong.
//! Each goes at a [`Pace`]: beside requests as its priority says, never under its floor.

mod array;
mod assemble;
mod bitmap;
pub mod canary;
mod candidates;
mod create;
mod errors;
mod examine;
mod expand;
mod format;
mod foundation;
mod generation;
mod generations;
mod geometry;
mod grow;
mod hung;
mod journal;
mod members;
mod membership;
mod status;
mod stripe;
mod tasks;
mod update_record;

pub use array::Array;
pub use assemble::AssembleReport;
pub use create::CreateOptions;
pub use errors::{ArrayError, DeviceError, GrowError, JournalError, MetadataError, ReplaceError};
pub use examine::{AssembleOptions, JournalLeftOut, LeftOut};
pub use format::consistency::Consistency;
pub use format::integrity::Integrity;
pub use format::journal_label::{JOURNAL_FORMAT, JOURNAL_MAGIC, JournalLabel};
pub use format::member_layout::{
    AREA_ALIGN_BYTES, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, MAP_START_BYTES, MemberLayout,
    SUPERBLOCK_BYTES,
};
pub use format::reshape_record::ReshapeRecord;
pub use format::spare_label::{SPARE_FORMAT, SPARE_MAGIC, SpareLabel};
pub use format::superblock::{
    ArrayRecord, JournalDeviceRecord, JournalState, MEMBERS_MAX, MemberRecord, MemberState,
    NAME_BYTES_MAX, SUPERBLOCK_FORMAT, SUPERBLOCK_MAGIC, Superblock, Usage,
};
pub use geometry::chunks::{Geometry, MemberPlace, Part, Span, VolumePlace};
pub use geometry::level::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, GeometryError, Layout, Level};
pub use geometry::numbers::{GroupIndex, MemberIndex, Row, Section, StripeNumber, StripeSlot};
pub use journal::replay::ReplayReport;
pub use members::checksums::table::ChecksumCounts;
pub use members::counts::Counts;
pub use members::health::{HealthNews, HealthPolicy, MemberHealth, SlowAction};
pub use members::label_copies::{
    read_spare_label, unsupported_label, wipe_superblocks, write_spare_label,
};
pub use members::latency::Latency;
pub use status::{ArrayStatus, MemberStatus};
pub use stripe::merge::policy::{MergeMode, MergePolicy};
pub use tasks::background::BackgroundTask;
pub use tasks::pace::{Pace, Priority, Progress};
pub use tasks::rebuild::RebuildStatus;
pub use tasks::replace::Replacement;
pub use tasks::reshape::{ReshapeStatus, ReshapeWait};
pub use tasks::scrub::{ScrubFinding, ScrubRepair, ScrubStatus};
