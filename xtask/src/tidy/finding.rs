//! A breach of a rule, as `tidy` prints it.

use std::fmt;
use std::path::{Path, PathBuf};

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Relative to the workspace.
    pub(super) path: PathBuf,
    /// From 1; 0 when it is about the whole file.
    pub(super) line: usize,
    message: String,
}

impl Finding {
    pub(super) fn new(path: &Path, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_path_buf(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        write!(f, " {}", self.message)
    }
}
