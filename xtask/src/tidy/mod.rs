//! `cargo xtask tidy`: the house rules that the compiler and clippy do not know.
//!
//! - [`layers`]: which crate may name which; every crate takes the workspace's lints
//! - [`sources`]: line width, unsafe code in its place, unfinished work, paths of one machine
//! - [`docs`]: links that lead somewhere, formats that are linked, commands that are run
//! - [`structure`]: import circles inside a crate, parents and children that name each other, `impl`
//!   blocks far from their type
//!
//! Function length is clippy's (`clippy.toml`).

mod docs;
mod finding;
mod layers;
mod modules;
mod rust;
mod sources;
mod structure;
mod tree;

use std::path::Path;

use finding::Finding;

use xtask::{Failure, workspace};

/// Checks the tree and prints what is wrong with it.
pub(crate) fn run() -> Result<(), Failure> {
    let findings = check(workspace::root())?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        return Err(format!("tidy: {} findings", findings.len()).into());
    }
    println!("tidy: nothing to say");
    Ok(())
}

fn check(root: &Path) -> Result<Vec<Finding>, Failure> {
    let files = tree::read(root)?;
    let mut findings = layers::check(root, &workspace::metadata()?)?;
    findings.extend(files.iter().flat_map(sources::check));
    findings.extend(docs::check(root, &files)?);
    findings.extend(structure::check(&files));
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
