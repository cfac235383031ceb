//! The cache: one log on the SSD in front of a slow origin.
//!
//! ```text
//!   read ──> engine/read ───> index: line -> slot ──> SSD (checksum) ──> client
//!                └─ miss ───> origin ──────────────> client, and a fill for the log
//!   write ─> engine/turns: one at a time for a line; newer ones of a range that wait replace older ones
//!                engine/write ─┬─ wb: log ─────────────> acknowledged by the SSD
//!                              └─ wt, ro, bypass: intent ─> origin ─> log (copy or drop)
//!
//!   log       forms records of changes, acknowledges them in order     (log.rs)
//!   cleaner   writes dirty lines to the origin, in address order        (cleaner.rs)
//!   reclaim   prepares old segments so that the log can write in them    (reclaim.rs)
//!   checkpoint shortens the next start; recover replays from it         (checkpoint.rs, recover.rs)
//! ```
//!
//! The cache is a block device over two block devices. It knows nothing of what they are.

pub mod admission;
mod audit;
mod cache;
pub mod canary;
mod clean;
mod config;
mod devices;
mod format;
mod log;
mod map;
mod packed_array;
pub mod policy;
mod serve;
mod status;
pub mod stream;

pub use cache::Cache;
pub use config::{FormatOptions, LineSize, Mode, Settings};
pub use devices::health::Health;
pub use format::superblock::{FORMAT_VERSION, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS};
pub use log::recover::{Label, OpenError, OpenOptions, Opened};
pub use status::{DirectionCounts, Status};
