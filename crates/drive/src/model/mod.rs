//! Timing models of drives: pure state machines that say when a request completes.
//!
//! A model sees operations, ranges and the time; it holds no data, owns no clock and sleeps never.
//! The same code therefore serves a demonstration in real time and a simulation in virtual time.
//! Rotation follows from the clock, so a run depends on its requests and their times only.
//!
//! An SSD answers at once. A hard disk re-orders what it holds, so a request may have to wait until
//! the disk has chosen it: see [`Completion::Queued`].

pub mod closed_loop;
mod d3700;
mod device;
mod early;
mod hdd;
mod interference;
mod nowhere;
mod profile;
mod ssd;

pub use device::{Clockwork, ModelDevice};
pub use hdd::{Hdd, HddParams};
pub use interference::{Interference, InterferenceRow};
pub use nowhere::Nowhere;
pub use profile::{CalibrationRow, PROFILES, Profile, Timing, UnknownProfile, Workload};
pub use ssd::{Ssd, SsdParams};

use voltier_block::{Nanos, SectorRange};

/// What a model is asked to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelOp {
    /// A read.
    Read,
    /// A write that may complete from the drive's cache.
    Write,
    /// A write that completes when it is on the medium.
    WriteDurable,
    /// Everything completed before goes to the medium; the range is ignored.
    Flush,
    /// A discard.
    Discard,
}

/// A request that waits inside a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// When a request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// At this time, whatever comes later.
    At(Nanos),
    /// Not known yet: [`Model::advance`] to each [`Model::next_dispatch`] until
    /// [`Model::resolved`] names the ticket.
    Queued(Ticket),
}

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

    /// Tickets whose completion time became known since the last call, and that time. It is in the
    /// past only when the model was advanced late.
    pub fn resolved(&mut self) -> Vec<(Ticket, Nanos)> {
        match self {
            Model::Hdd(disk) => disk.resolved(),
            Model::Ssd(_) => Vec::new(),
        }
    }
}

/// Time that `bytes` take at `bytes_per_s`, rounded up to a nanosecond.
fn transfer_ns(bytes: u64, bytes_per_s: u64) -> Nanos {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s));
    u64::try_from(ns).expect("a transfer takes less than 500 years")
}
