//! The cache: one log on the SSD in front of a slow origin.
//!
//! ```text
//!   read ──> serve/read ─ hit ──> map: line -> slot ──> SSD (checksum) ──> client
//!                └─ miss ──────> origin ─────────────> client, and a fill for the log
//!   write ─> serve/write (coalescing) ─┬─ wb: log ────> acknowledged by the SSD
//!                └─ serve/route        └─ wt, ro, bypass: intent ─> origin and log (copy or drop)
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
//! | `clock` | the ring's time, and the wall's |
//! | [`policy`], [`admission`], [`stream`] | decisions over line numbers |
//! | `counters`, `packed_array`, [`canary`] | figures, arrays of narrow fields, bugs for tests |
//! | `numbers` | [`Line`], [`Slot`] and `Segment`, the numbers that all floors share |
//!
//! The cache is a block device over two block devices, of any kind.
//!
//! # Files in reading order
//!
//! | file | content |
//! | --- | --- |
//! | `serve/write` | the three paths of a write, top to bottom |
//! | `serve/route` | every reason for which a request goes past the cache |
//! | `serve/part_writes`, `serve/line_reads` | requests that share a line: one change of it, one read of it |
//! | `serve/same_range` | writes that wait, and newer ones that take their place; long reads that share |
//! | `serve/read`, `serve/plan`, `serve/miss` | hits, misses, and both in one request |
//! | `serve/read_over` | streams of which a part is cached: the disk reads on over it |
//! | `serve/flush`, `serve/discard` | flushes; discards and zeroes |
//! | `serve/idle_origin` | hits that a resting origin serves beside a busy SSD |
//! | `serve/without_ssd` | the order of changes that the SSD refuses, and that go to the origin |
//! | `log/change` | changes of the cache's state, and the queues in which they wait |
//! | `log/commit` | how a part queues changes and waits for their records |
//! | `log/writer` | the task that writes records, and settles them when the SSD takes no more |
//! | `log/form` | the heart: changes become records and take effect |
//! | `log/builder`, `log/in_flight` | a record being put together; records on their way |
//! | `format/mod` | the structures on the SSD |
//! | `log/recover`, `log/replay`, `log/chain` | a start; records taken in; reading ahead of a replay |
//! | `log/judge_origin` | how a start knows its origin, also after a crash |
//! | `log/load`, `log/load_rest` | serving before the whole map is in memory |
//! | `log/intents` | why a write past the log is safe |
//! | `log/ordered` | destaging by time instead of by address |
//! | `log/bound` | writes that wait rather than let a loss of the SSD take more than a bound |
//! | `log/reclaim`, `log/checkpoint` | segments prepared for the log; the stored map |
//! | `clean/cleaner`, `clean/pace`, `clean/sweep` | the cleaner, its speed, and which lines are next |
//! | `clean/destage`, `clean/stripes` | dirty lines become runs, or whole stripes of an array |
//! | `devices/health`, `devices/ssd_state` | the states of the SSD, with their transition table |
//! | `hung`, `devices/silence` | drives that do not answer: when the SSD is given up, and what waits |
//! | `devices/passage`, `clean/passing` | where clients change the origin while the SSD is evacuated |
//! | `devices/origin`, `devices/refusal` | an origin that fails a flush, or refuses writes |
//! | `map/contents`, `map/shared` | the map, and how tasks share it |
//! | `map/index`, `map/table` | where the memory goes |
//! | `memory` | memory that may be refused |
//! | `needs` | how much memory a cache needs, told before |
//! | `map/segments`, `map/locks` | the life of a segment; locks of lines |
//! | `policy/mod`, [`admission`] | the eviction policies; which misses are worth a place |
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | extent | neighbouring sectors, or 256 lines where the cleaner counts dirty ones |
//! | unit | the grain of the log: a line, at most 4096 bytes; a head takes one |
//! | masked | of a line of which only some sectors are cached: the mask names them |
//! | fill | a clean copy of what a read brought from the origin |
//! | epoch | what lies between two completed flushes of the clients |
//! | generation | the number of an opening of the cache; every head has it |
//! | owner | the volume that the superblock names |
//! | sample | clean lines that a start compares with the origin, to know the origin by their checksums |
//! | window | over an array: the shortest extent of whole lines that is whole stripes |
//! | single flight | requests of the same range share the I/O of their leader |
//! | write coalescing | of writes of the same range that wait, only the newest is written |
//! | drain | write back all that is dirty when the drain begins |
//! | evacuate | write back all dirty data and stop using the SSD; clients pass it meanwhile |
//! | open | of a region while the SSD is evacuated: clients may change the origin there |
//! | silent | of a drive: no answer for the deadline, with requests in flight |
//! | released | of a read of clean lines: no longer waiting for a silent SSD; the origin serves it |
//! | refusing | of an origin: for half a minute it has taken nothing of what is written back |
//!
//! # Who changes the map
//!
//! While the SSD takes writes, `LogState::apply` in `log/form` does, when a record is formed. The others:
//!
//! | who | change |
//! | --- | --- |
//! | `record_done` | lines of an acknowledged record are not pending any more |
//! | `Contents::give_up_clean` | clean lines of a segment leave when it is freed; the next record says so |
//! | `Contents::forget_clean` | clean lines leave after a write past the log whose record failed |
//! | `forget_copies` | the same before a write past an SSD that is evacuated |
//! | `Contents::call_clean` | lines become clean beside an SSD that takes no writes |
//! | a start | the loaded map, the replay, and lines that are dropped because they may be old |
//! | `undo`, `abandon`, `heal` | the lines of an SSD that takes no writes, or is lost |
//!
//! # Background tasks and retries
//!
//! Tasks: `write_log` with one `write_record` a record, `clean`, `open_regions`, `reclaim`, and after a start
//! `load_rest`. A flush of the SSD runs as `make_durable`, and the loss of an SSD runs its gate. All rest when there is
//! nothing to do.
//!
//! | who | what is repeated | how often |
//! | --- | --- | --- |
//! | cleaner | a batch that the origin failed | after a second, until the origin takes it |
//! | reads | one line, or a part of the stored map, from the SSD | twice, after 1 ms and 10 ms |
//! | reads | several lines from the SSD | once, line by line |
//! | writes | a write to the SSD | five times, with pauses of 3.4 s in all |
//! | drain | a damaged line | once more, as the drain begins |
//! | evacuation | lines that could not be read | until seven sweeps in a row bring nothing |
//! | its end | lines that are left, when the loss is on record | until two sweeps in a row bring nothing |

pub mod admission;
mod cache;
pub mod canary;
mod clean;
mod clock;
mod config;
mod counters;
mod devices;
mod format;
mod ground;
mod hung;
mod log;
mod map;
mod memory;
mod needs;
mod numbers;
mod packed_array;
pub mod policy;
mod serve;
mod status;
pub mod stream;

pub use cache::Cache;
pub use clock::{WallClock, WallNanos};
pub use config::{FormatOptions, LineSize, MaxUnshipped, Mode, Settings};
pub use counters::{CacheCounts, DeviceBytes, LineCounts, OriginCounts, RequestCounts};
pub use devices::health::Health;
pub use format::owner::Owner;
pub use format::superblock::{FORMAT, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS};
pub use log::open::{Label, OpenError, OpenOptions, Opened, OriginTrust, UnwritableSsd};
pub use log::ordered::{Age, FlushPoint};
pub use memory::{MemoryGate, NoMemory};
pub use needs::{ask_for_new, memory_of_new};
pub use numbers::{Line, Slot};
pub use status::{Side, SilentDrive, Status, Unshipped};
