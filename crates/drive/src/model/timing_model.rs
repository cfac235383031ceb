//! The timing model of one drive, whatever its kind.

use voltier_block::{Nanos, SectorRange};

use super::hdd::Hdd;
use super::op::{Completion, ModelOp, Ticket};
use super::ssd::Ssd;

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
