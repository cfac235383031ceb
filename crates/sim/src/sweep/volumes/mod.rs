//! Crashes at every event of every management command of volumes.
//!
//! ```text
//!   the real Service ── registry (bytes, replaced whole)
//!         │
//!      SimEngine: real Volume, real Cache ──┬─> SimDisk (SSD)
//!         │                                 └─> SimDisk (origin)
//!      clients ──> Volume, held to the Model
//! ```
//!
//! Every recovery of a chosen crash point is crashed at the events of its start as well. At the openings the
//! SSD is also replaced: by its own older self, by another volume's, by the origin.

mod command;
mod engine;
mod fixture;
mod plan;
mod subject;
mod wrong_ssd;

pub use command::Command;
pub use fixture::Drives;
pub use plan::Plan;
pub use subject::{run, run_in};
