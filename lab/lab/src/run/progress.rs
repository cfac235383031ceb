//! The progress of a run, and its end.

use std::path::PathBuf;
use std::time::Duration;

/// The listener to a run while it runs.
pub trait Progress {
    /// A line for people.
    fn say(&mut self, line: &str);
    /// How far it is: time that is planned for what is done, and for all.
    fn at(&mut self, done: Duration, total: Duration, what: &str);
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The folder of the run.
    pub folder: PathBuf,
    /// The report of the run; empty when no point was planned.
    pub report: PathBuf,
    /// Points measured.
    pub measured: usize,
    /// Points that failed: how many, and what the first one said.
    pub failed: Option<(usize, String)>,
}
