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

pub use catalogue::PROFILES;
pub use device::{Clockwork, ModelDevice};
pub use hdd::{Hdd, HddParams};
pub use interference::{Interference, InterferenceRow};
pub use nowhere::Nowhere;
pub use op::{Completion, ModelOp, Ticket};
pub use profile::{CalibrationRow, Profile, Timing, UnknownProfile, Workload};
pub use ssd::{Ssd, SsdParams};

use voltier_block::{Nanos, SectorRange};

/// The timing model of one drive.
#[derive(Clone, Debug)]
pub enum Model {
    /// A hard disk.
    Hdd(Box<Hdd>),
    /// A solid-state drive.
    Ssd(Box<Ssd>),
}

impl Model {
    /// Takes a request in. Times given to one model never go backwards, here and in `advance`.
    pub fn submit(&mut self, now_ns: Nanos, op: ModelOp, range: SectorRange) -> Completion {
        match self {
            Model::Hdd(disk) => disk.submit(now_ns, op, range),
            Model::Ssd(ssd) => Completion::At(ssd.submit(now_ns, op, range)),
        }
    }

    /// When the drive next chooses a request, if one waits.
    pub fn next_dispatch(&self) -> Option<Nanos> {
        match self {
            Model::Hdd(disk) => disk.next_dispatch(),
            Model::Ssd(_) => None,
        }
    }

    /// Lets the drive work until `now_ns`.
    pub fn advance(&mut self, now_ns: Nanos) {
        match self {
            Model::Hdd(disk) => disk.advance(now_ns),
            Model::Ssd(_) => {}
        }
    }

    /// Tickets whose completion time became known since the last call, and that time. The time is in the
    /// past only when the model was advanced late.
    pub fn resolved(&mut self) -> Vec<(Ticket, Nanos)> {
        match self {
            Model::Hdd(disk) => disk.resolved(),
            Model::Ssd(_) => Vec::new(),
        }
    }
}
