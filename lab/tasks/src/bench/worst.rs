//! A cache beside the plain disk where caches are worst: requests that fit no line, streams over what is cached in
//! part, requests that come alone.

use super::programs::{Effort, in_pairs, in_process};
use super::report::{self, Row};
use xtask::Failure;

/// Of the files: a cache should cost no more.
const BAR: f64 = 0.9;

/// Rounds of the files, if nothing is said: all cases take 18 minutes then.
pub(super) const FILES_ROUNDS: u32 = 3;

/// All cases on modelled drives, or those whose names have a word. They are the same each time.
pub(super) fn measure(word: &str, effort: Effort) -> Result<Vec<Row>, Failure> {
    in_process("worst", &[word], Effort { rounds: 1, ..effort })
}

/// The cases on files, or those whose names have a word.
pub(super) fn measure_files(word: &str, effort: Effort) -> Result<Vec<Row>, Failure> {
    in_pairs("worst_files", &[word], effort)
}

/// Kinds of cases on files, how many of each are below the bar, and the lowest.
pub(super) fn summary(rows: &[Row]) -> String {
    report::summary(rows, BAR, kind_of)
}

/// Of each kind of case the one with the lowest ratio.
pub(super) fn lowest(rows: &[Row]) -> Vec<Row> {
    report::lowest(rows, kind_of)
}

/// A case without its offset, size and depth.
fn kind_of(case: &str) -> &str {
    case.split(", size").next().unwrap_or(case)
}
