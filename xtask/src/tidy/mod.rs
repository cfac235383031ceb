//! `cargo xtask tidy`: the house rules that the compiler and clippy do not know.
//!
//! - [`layers`]: which crate may name which; every crate takes the workspace's lints
//! - [`sources`]: file length, line width, unsafe code in its place, words that must not stay
//! - [`docs`]: links that lead somewhere, formats that are linked, commands that are run
//! - [`structure`]: import circles inside a crate, parents and children that name each other, `impl`
//!   blocks far from their type
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

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use finding::Finding;
use ratchet::{Breach, Counts, Rule};
use tree::SourceFile;

use xtask::{Failure, workspace};

/// Checks the tree and prints what is wrong with it.
pub(crate) fn run() -> Result<(), Failure> {
    let root = workspace::root();
    let files = tree::read(root)?;
    let (counts, limit) = (Counts::of(&breaches(&files)), Counts::read(root)?);
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
    let counts = Counts::of(&breaches(&tree::read(root)?));
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
    let places = breaches(&tree::read(workspace::root())?);
    let of_rule = places.iter().filter(|place| place.rule == rule);
    let listed = of_rule.filter(|place| area.is_none_or(|area| area == place.area()));
    print_lines(&mut io::stdout().lock(), listed.map(|place| &place.finding))
}

/// Prints one line each. A reader that has seen enough closes the pipe: that is no failure.
fn print_lines(
    out: &mut impl Write,
    lines: impl Iterator<Item = impl Display>,
) -> Result<(), Failure> {
    for line in lines {
        match writeln!(out, "{line}") {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}

/// Every place that does not keep a rule of the ratchet.
fn breaches(files: &[SourceFile]) -> Vec<Breach> {
    let mut breaches = structure::breaches(files);
    breaches.extend(files.iter().flat_map(prose::breaches));
    breaches
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

    /// Takes one line, then fails with this error.
    struct Closing(ErrorKind, Vec<u8>);

    impl Write for Closing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1.contains(&b'\n') {
                return Err(self.0.into());
            }
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_list_ends_in_order_when_its_reader_has_seen_enough() {
        let mut pipe = Closing(ErrorKind::BrokenPipe, Vec::new());
        assert!(print_lines(&mut pipe, ["one", "two"].iter()).is_ok());
        assert_eq!(pipe.1, b"one\n");
        let mut disk = Closing(ErrorKind::StorageFull, Vec::new());
        assert!(print_lines(&mut disk, ["one", "two"].iter()).is_err());
    }

    #[test]
    fn the_tree_is_tidy() {
        let root = workspace::root();
        let files = tree::read(root).unwrap();
        let (counts, limit) = (Counts::of(&breaches(&files)), Counts::read(root).unwrap());
        let findings = check(root, &files, &counts, &limit).unwrap();
        let text: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(text.is_empty(), "\n{}", text.join("\n"));
    }
}
