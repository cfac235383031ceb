//! Goal: no promise without its check. Method: every promise of docs/guarantees.md has a row in the table
//! there that says what checks it. Every test that the page names is in the tree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/guarantees.md")).expect("the page is there")
}

/// The numbers of the headings `## 1. Flush and FUA`.
fn promises(page: &str) -> BTreeSet<u32> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    headings.filter_map(|heading| heading.split('.').next()?.parse().ok()).collect()
}

/// The rows of the table of checks: number of the promise, and what checks it.
fn rows(page: &str) -> Vec<(u32, String)> {
    let table = page.split("## What checks what").nth(1).expect("the table is there");
    let table = table.split("\n## ").next().expect("a first part");
    let cells = table.lines().filter_map(|line| line.strip_prefix("| "));
    cells
        .filter_map(|line| {
            let cells: Vec<&str> = line.split(" | ").collect();
            let number = cells[0].parse().ok()?;
            Some((number, (*cells.get(2)?).to_owned()))
        })
        .collect()
}

/// Everything in `backticks` that looks like the name of a test: words joined by underscores.
fn tests_named(text: &str) -> BTreeSet<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_name = |name: &&str| {
        name.matches('_').count() >= 3
            && name.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_')
    };
    quoted.filter(is_name).map(str::to_owned).collect()
}

fn functions_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions_in(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).expect("source text");
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_promise_has_a_row_that_says_what_checks_it() {
    let page = page();
    let (promises, rows) = (promises(&page), rows(&page));
    assert!(promises.len() >= 9, "{promises:?}");
    for promise in &promises {
        assert!(rows.iter().any(|row| row.0 == *promise), "promise {promise} has no row");
    }
    for (promise, checks) in rows {
        assert!(promises.contains(&promise), "row {promise} belongs to no promise");
        let named = !tests_named(&checks).is_empty();
        assert!(named || checks.starts_with("not there yet"), "{promise}: no test in: {checks}");
    }
}

#[test]
fn every_test_that_the_page_names_exists() {
    let mut found = BTreeSet::new();
    for folder in ["crates", "lab"] {
        functions_in(&root().join(folder), &mut found);
    }
    let missing: Vec<String> =
        tests_named(&page()).into_iter().filter(|name| !found.contains(name)).collect();
    assert!(missing.is_empty(), "named in docs/guarantees.md and nowhere else: {missing:?}");
}

/// The feature that asks for them.
const ALL_CANARIES: &str = "canaries = [\"voltier-cache/canaries\", \"voltier-array/canaries\", \
                            \"voltier-volume/canaries\"]";

#[test]
fn the_deliberate_bugs_are_in_no_build_of_the_product() {
    let crates = |folder| std::fs::read_dir(root().join(folder)).expect("the crates").flatten();
    for entry in crates("crates").chain(crates("lab")) {
        let manifest = entry.path().join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).expect("a manifest");
        // Three crates have them, one may ask for them, and none does so unless it is told.
        let allowed: &[&str] = match entry.file_name().to_str() {
            Some("cache" | "array" | "volume") => &["canaries = []"],
            Some("sim") => &[ALL_CANARIES],
            _ => &[],
        };
        let said = text.lines().filter(|line| line.contains("canaries") && !line.starts_with('#'));
        assert_eq!(said.collect::<Vec<_>>(), allowed, "{}", manifest.display());
        assert!(!text.contains("default = ["), "{}: a default feature", manifest.display());
    }
}
