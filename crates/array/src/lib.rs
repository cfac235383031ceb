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
//! [`Array::add_spare`] keeps a device for the next loss, [`Array::remove_spare`] gives it back.
//! [`Array::grow`] adds a parity row to fill, [`Array::grow_capacity`] a member for capacity.
//! [`Array::scrub`] finds what members return wrong.
//! Each goes at a [`Pace`]: beside requests as its priority says, never under its floor.
//!
//! # Files in reading order
//!
//! | file | content |
//! | --- | --- |
//! | `geometry/level`, `geometry/chunks` | the levels; where every chunk is |
//! | `geometry/plan` | what a write reads |
//! | `array`, `generations`, `generation` | the facade; shapes in turn; the parts of one shape |
//! | `stripe/write`, `stripe/stripe_writer` | a request cut into stripes; a stripe written |
//! | `stripe/merge/mod` | small writes that wait for each other |
//! | `stripe/read`, `stripe/mend` | reads, and what to do when a part cannot be read |
//! | `stripe/stripes`, `stripe/reconstruct` | locks, slots that can be read; those that are computed |
//! | `stripe/vouch` | blocks without checksums held against the others of their stripe |
//! | `bitmap/write_intent`, `bitmap/region_states` | regions: zeroed first, dirty when they must be |
//! | `journal/mod` | the write hole closed; its own list of files |
//! | `membership/current` | the barrier: a loss is on record before anything relies on it |
//! | `update_record` | how a loss gets on record: a protocol that reads as a list of steps |
//! | `members/member_set` | the one way of requests to members: counted, timed, tried again |
//! | `members/member_states`, `members/member` | who is in service; the states of one |
//! | `members/health`, `members/vitals` | errors counted, slow members found |
//! | `members/checksums/checked` | reads held against checksums, and when these are durable |
//! | `hung` | members that do not answer: who is failed for that, and when nobody is |
//! | `tasks/background`, `tasks/pace` | how a background task proceeds, and how fast |
//! | `tasks/rebuild`, `tasks/replace` | how a member is filled; how members come |
//! | `tasks/resync`, `tasks/scrub` | parity made anew; which block is wrong |
//! | `tasks/vouching` | pages of checksums made anew that could not be read |
//! | `grow` | one more parity row: the next generation takes over between two requests |
//! | `expand`, `tasks/reshape/mod` | one more member for capacity: two shapes at once |
//! | `assemble`, `examine`, `candidates` | a start: who is let into an array |
//! | `members/label_reading` | labels that do not fit each other: which devices are believed |
//! | `format/mod` | the structures on the media |
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | stripe row, row | the chunks of all members at the same place |
//! | slot | the place of a chunk in the parity code: data first, then parities |
//! | parity row, parity index | a parity of all data members (P, Q and further ones); its number |
//! | added parity row | one that came while the array served, on members of its own |
//! | fixed parity row | one that does not rotate, as in Linux md's `left-symmetric-6` |
//! | generation | the parts that serve one shape of the array |
//! | event | the number in all superblocks, higher with every member that comes or goes |
//! | stale | of a member: the others went on without it |
//! | pending member | a drive that is to become a member, and is none on record yet |
//! | successor | the device that is filled beside a member in service, to take its place |
//! | region | a run of stripe rows, 1 MiB or more of each member: the grain of the write-intent bitmap |
//! | written | of a region: ever written; else it reads as zeroes |
//! | dirty, cleared | of a region: parity may not match, or a missing member lacks it; no more |
//! | needs resync | of a region or stripe: parity may not match the data, after an unclean shutdown |
//! | distrusted | of a region: its checksums on the medium are not believed after a crash |
//! | checksum, page | CRC-32C of a block of 4 KiB of a member; the checksums of 1008 neighbouring blocks |
//! | damaged | of a page: blocks that should have checksums have none in it |
//! | journal device | a drive that takes the journal's records of all members |
//! | stream, depth | a place up to which somebody has written; writes in flight there of late |
//! | merge batch | small writes of one stripe that wait for each other |
//! | section, frontier | rows that hold what one row more did before; the first in the old shape |
//! | backup area | on a member: what the first sections will hold, until it is in place |
//! | late, suspect | of a member: no answer for the deadline, or for half of it, with requests in flight |
//!
//! # Retries
//!
//! | who | what is repeated | how often |
//! | --- | --- | --- |
//! | members | a write that failed with a medium error | once, counted as an error of the member |
//! | members | a write to a member without space | five times, with pauses of 3.1 s in all |
//! | reads | a long read of a member that failed | once, part by part |
//! | resync | a region that failed | every minute |
//! | vouching | a page of checksums that could not be made anew | every minute |
//! | start | a part of a region map that could not be read | once, block by block |
//! | reshape | a window that failed, or the end of the move | after 10 s, until it succeeds |

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
mod memory;
mod recovery;
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
pub use members::counts::{Counts, MemberCounts};
pub use members::health::{HealthNews, HealthPolicy, MemberHealth, SlowAction};
pub use members::label_copies::{
    read_spare_label, unsupported_label, wipe_superblocks, write_spare_label,
};
pub use members::latency::Latency;
pub use memory::{memory_of, memory_of_new, memory_with};
pub use status::{ArrayStatus, MemberStatus};
pub use stripe::merge::policy::{MergeMode, MergePolicy};
pub use tasks::background::BackgroundTask;
pub use tasks::pace::{Pace, Priority, Progress};
pub use tasks::rebuild::{RebuildStatus, StuckRange};
pub use tasks::replace::Replacement;
pub use tasks::reshape::{ReshapeStatus, ReshapeWait};
pub use tasks::scrub::{ScrubFinding, ScrubFound, ScrubRepair, ScrubStatus};
