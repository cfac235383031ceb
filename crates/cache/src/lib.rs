//! The cache: one log on the SSD in front of a slow origin.
//!
//! ```text
//!   read ──> serve/read ─ hit ──> map: line -> slot ──> SSD (checksum) ──> client
//!                └─ miss ──────> origin ─────────────> client, and a fill for the log
//!   write ─> serve/write (coalescing) ─┬─ wb: log ────> acknowledged by the SSD
//!                └─ serve/route        └─ wt, ro, bypass: intent ─> origin ─> log (copy or drop)
//!
//!   log/form        forms records of changes; log/commit writes and acknowledges them in order
//!   clean/cleaner   writes dirty lines to the origin, in address order
//!   log/reclaim     prepares old segments so that the log can write in them
//!   log/checkpoint  shortens the next start; log/recover replays from it
//! ```
//!
//! The floors, each naming only what lies below it:
//!
//! | floor | what it owns |
//! | --- | --- |
//! | [`cache`](Cache), `status` | the facade: parts put together, status, settings, stop |
//! | `serve` | requests of clients: route, reads, writes, discards, flushes |
//! | `clean` | destaging: the cleaner, its sweeps, runs and stripes |
//! | `hung` | drives that do not answer: who is given up, and what waits |
//! | `ground` | the parts below, put together |
//! | `log` | records, checkpoints, recovery, intent bits, reclaiming |
//! | `devices` | the SSD, the origin, and the health of the SSD |
//! | `map` | index, segments, pins, locks of lines |
//! | `format` | bytes on the SSD |
//! | `config` | the settings of a cache |
//! | [`policy`], [`admission`], [`stream`] | decisions over line numbers |
//! | `counters`, `packed_array`, [`canary`] | counts of events, arrays of narrow fields, bugs for tests |
//! | `numbers` | [`Line`], [`Slot`] and `Segment`, the numbers that all floors share |
//!
//! The cache is a block device over two block devices, of any kind.

pub mod admission;
mod cache;
pub mod canary;
mod clean;
mod config;
mod counters;
mod devices;
mod format;
mod ground;
mod hung;
mod log;
mod map;
mod numbers;
mod packed_array;
pub mod policy;
mod serve;
mod status;
pub mod stream;

pub use cache::Cache;
pub use config::{FormatOptions, LineSize, Mode, Settings};
pub use counters::DirectionCounts;
pub use devices::health::Health;
pub use format::owner::Owner;
pub use format::superblock::{FORMAT, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS};
pub use log::open::{Label, OpenError, OpenOptions, Opened, OriginTrust, UnwritableSsd};
pub use numbers::{Line, Slot};
pub use status::{Side, SilentDrive, Status};
