//! Errors of a run, each in one line that says what to do next.

use std::io;
use std::path::{Path, PathBuf};

/// A run that could not be done. Every message stands alone on one line.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program that the run needs is not installed.
    #[error("{program} is not installed: run `apt-get install {package}` and try again")]
    Missing {
        /// The program's file name.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// fio is there but cannot do what the run needs.
    #[error("{found} cannot be used: {why}")]
    FioUnfit {
        /// The answer of `fio --version`.
        found: String,
        /// The feature that is lacking, and what to do.
        why: String,
    },
    /// A program ended with a failure; `detail` is the last thing it said.
    #[error("{what} failed: {detail}")]
    Failed {
        /// The program that was run, in the reader's words.
        what: String,
        /// The program's own message, on one line.
        detail: String,
    },
    /// A program did not end in time and was stopped.
    #[error("{what} did not end within {seconds} s and was stopped")]
    Timeout {
        /// The program that was run.
        what: String,
        /// How long it was given.
        seconds: u64,
    },
    /// A program's answer was not what it is documented to be.
    #[error("{what} gave an answer that cannot be read: {detail}")]
    Answer {
        /// The program that was run.
        what: String,
        /// The part of the answer that was expected and not found.
        detail: String,
    },
    /// A result of another program that cannot be used.
    #[error("{path} cannot be used: {why}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        why: String,
    },
    /// A setting given by the user.
    #[error("{name}={value} is not usable: {why}")]
    Setting {
        /// The option or environment variable.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The values that would be accepted.
        why: String,
    },
    /// A plan that cannot be used.
    #[error("{what}: {why}")]
    Plan {
        /// The plan's name or file.
        what: String,
        /// The error in the plan, and what would be accepted.
        why: String,
    },
    /// A target that is not to be measured, or not to be written.
    #[error("{target} {why}")]
    Target {
        /// The target as given.
        target: String,
        /// Why not, and what to do.
        why: String,
    },
    /// There is no room for the results.
    #[error(
        "no space for results in {folder}: free some, then `voltier lab run --resume {folder}` \
         goes on"
    )]
    NoSpace {
        /// The folder of the run.
        folder: PathBuf,
    },
    /// The user asked to stop.
    #[error("interrupted: everything that was started has been stopped")]
    Interrupted,
    /// A file or folder could not be used.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl LabError {
    /// An I/O error with the path it happened on.
    pub fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> LabError {
        let path = path.as_ref().to_path_buf();
        move |source| LabError::File { path, source }
    }
}
