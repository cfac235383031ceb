//! The plan of a sweep of commands of volumes.

use super::command::Command;
use super::fixture::Drives;

/// The plan of a sweep.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command.
    pub command: Command,
    /// The drives of the command.
    pub drives: Drives,
    /// All chance follows from it.
    pub seed: u64,
    /// One event of the command in so many is a crash point: 1 for all, and then by both cuts.
    pub stride: u64,
    /// One event of a recovery in so many is one: 1 for all, 0 for none.
    pub second_stride: u64,
    /// One crash point in so many has its recovery crashed: 1 for all.
    pub second_one_in: u64,
    /// Only this event, to see a failure again.
    pub only: Option<u64>,
}

impl Plan {
    /// Every event by both cuts, and every event of some recoveries: of every tenth when it is
    /// recoveries that are swept. The seed chooses the drives.
    pub fn exhaustive(command: Command, seed: u64) -> Self {
        let drives = Drives::of_seed(seed);
        let second_one_in = if matches!(command, Command::Recover(_)) { 10 } else { 300 };
        Self { command, drives, seed, stride: 1, second_stride: 1, second_one_in, only: None }
    }

    /// The same with one event of the command in `stride`, by one cut each.
    pub fn sampled(command: Command, seed: u64, stride: u64) -> Self {
        let all = Self::exhaustive(command, seed);
        Self { stride, second_stride: 10, second_one_in: 10, ..all }
    }
}
