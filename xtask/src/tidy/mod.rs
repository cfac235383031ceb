//! `cargo xtask tidy`: the house rules that the compiler and clippy do not know.
//!
//! - [`layers`]: which crate may name which; every crate takes the workspace's lints
//! - [`sources`]: file length, line width, unsafe code in its place, words that must not stay
//! - [`docs`]: links that lead somewhere, formats that are linked, commands that are run
//! - [`structure`]: import circles inside a crate, `impl` blocks far from their type
//! - [`prose`]: sentences without a subject or too long, words that a standard term replaced, wide lines
//!
//! The last two are rules that the tree does not keep everywhere yet: [`ratchet`] refuses a rise of their
//! counts. Function length is clippy's (`clippy.toml`).

mod docs;
mod finding;
mod layers;
mod modules;
mod prose;
mod ratchet;
mod rust;
mod sources;
mod structure;
mod tree;

use std::path::Path;

use finding::Finding;
use ratchet::{Counts, Place, Rule};
use tree::SourceFile;

use xtask::{Failure, workspace};

/// Checks the tree and prints what is wrong with it.
pub(crate) fn run() -> Result<(), Failure> {
    let root = workspace::root();
    let files = tree::read(root)?;
    let (counts, limit) = (Counts::of(&places(&files)), Counts::read(root)?);
    let findings = check(root, &files, &counts, &limit)?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        return Err(format!("tidy: {} findings", findings.len()).into());
    }
    match counts.fallen(&limit) {
        0 => println!("tidy: nothing to say"),
        fallen => println!("tidy: {fallen} places fewer than recorded (`--lower` records it)"),
    }
    Ok(())
}

/// Records counts that fell; refuses when one rose.
pub(crate) fn lower() -> Result<(), Failure> {
    let root = workspace::root();
    let counts = Counts::of(&places(&tree::read(root)?));
    let rises = counts.rises(&Counts::read(root)?);
    for rise in &rises {
        eprintln!("{rise}");
    }
    if !rises.is_empty() {
        return Err("tidy: a count rose, so none was written".into());
    }
    counts.write(root)
}

/// Prints the places that do not keep a rule of the ratchet, of one area or of all.
pub(crate) fn list(rule: &str, area: Option<&str>) -> Result<(), Failure> {
    let rule =
        Rule::named(rule).ok_or("no such rule; see the first words in xtask/tidy-ratchet.toml")?;
    for place in places(&tree::read(workspace::root())?) {
        if place.rule == rule && area.is_none_or(|area| area == place.area()) {
            println!("{}", place.finding);
        }
    }
    Ok(())
}

/// Every place that does not keep a rule of the ratchet.
fn places(files: &[SourceFile]) -> Vec<Place> {
    let mut places = structure::places(files);
    places.extend(files.iter().flat_map(prose::places));
    places
}

fn check(
    root: &Path,
    files: &[SourceFile],
    counts: &Counts,
    limit: &Counts,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = layers::check(root, &workspace::metadata()?)?;
    findings.extend(files.iter().flat_map(sources::check));
    findings.extend(docs::check(root, files)?);
    findings.extend(counts.rises(limit));
    findings.sort();
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let root = workspace::root();
        let files = tree::read(root).unwrap();
        let (counts, limit) = (Counts::of(&places(&files)), Counts::read(root).unwrap());
        let findings = check(root, &files, &counts, &limit).unwrap();
        let text: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(text.is_empty(), "\n{}", text.join("\n"));
    }
}
