//! What drives say of themselves: SMART.
//!
//! ```text
//! devices on record --> drives below them --(a thread for each)--> a process --> book --> show, health
//! ```
//!
//! NVMe drives are asked for their log of health, all others by the program `smartctl`. Each is asked by a process of
//! its own, whose end nobody but the thread of this one drive waits for: a drive that hangs keeps neither the others
//! nor a command nor the end of the daemon. `show` and `health` have what was read last.
//!
//! | file | content |
//! | --- | --- |
//! | `figures` | the figures, each declared once |
//! | `said` | what a drive said, in the words of `show` |
//! | `nvme`, `smartctl` | from what was read to figures |
//! | `program` | a process that is given up after a time |
//! | `book`, `watch` | what was read; who is asked when |

mod book;
mod figures;
mod interval;
mod nvme;
mod program;
mod said;
mod smartctl;
mod watch;

pub(crate) use book::Book;
pub use figures::{KnownFigures, SmartFigures};
pub use interval::{SMART_INTERVAL, SmartInterval};
pub use said::{Smart, SmartWarning, SpareSmart};
pub(crate) use watch::{end, watch};
