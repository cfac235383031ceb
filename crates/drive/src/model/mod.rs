//! Timing models of drives: pure state machines that say when a request completes.
//!
//! A model sees operations, ranges and the time; it holds no data, owns no clock and sleeps never.
//! The same code therefore serves a demonstration in real time and a simulation in virtual time.
//! Rotation follows from the clock, so a run depends on its requests and their times only.
//!
//! An SSD answers at once. A hard disk re-orders what it holds, so a request may have to wait until
//! the disk has chosen it: see [`Completion::Queued`].

mod catalogue;
pub mod closed_loop;
mod d3700;
mod device;
mod early;
mod hdd;
mod interference;
mod nowhere;
mod op;
mod profile;
mod ssd;
mod timing_model;

pub use catalogue::PROFILES;
pub use device::{Clockwork, ModelDevice};
pub use hdd::{Hdd, HddParams};
pub use interference::{Interference, InterferenceRow};
pub use nowhere::Nowhere;
pub use op::{Completion, ModelOp, Ticket};
pub use profile::{CalibrationRow, Profile, Timing, UnknownProfile, Workload};
pub use ssd::{Ssd, SsdParams};
pub use timing_model::Model;
