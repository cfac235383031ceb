//! `cargo xtask tidy`: the house rules that the compiler and clippy do not know.
//!
//! - [`layers`]: which crate may name which; every crate takes the workspace's lints
//! - [`sources`]: file length, line width, unsafe code in its place, words that must not stay
//! - [`docs`]: links that lead somewhere, formats that are linked, commands that are run
//!
//! Function length is clippy's (`clippy.toml`).

mod docs;
mod layers;
mod sources;
mod tree;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Failure, workspace};

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Relative to the workspace.
    path: PathBuf,
    /// From 1; 0 when it is about the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &Path, line: usize, message: impl Into<String>) -> Finding {
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

/// Checks the tree and prints what is wrong with it.
pub(crate) fn run() -> Result<(), Failure> {
    let findings = check(workspace::root())?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: nothing to say");
        return Ok(());
    }
    Err(format!("tidy: {} findings", findings.len()).into())
}

fn check(root: &Path) -> Result<Vec<Finding>, Failure> {
    let files = tree::read(root)?;
    let mut findings = layers::check(root, &workspace::metadata()?)?;
    findings.extend(files.iter().flat_map(sources::check));
    findings.extend(docs::check(root, &files)?);
    findings.sort();
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let findings = check(workspace::root()).unwrap();
        let text: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(text.is_empty(), "\n{}", text.join("\n"));
    }
}
