//! A cache beside the plain disk where caches are worst: requests that fit no line, streams over what is cached in
//! part, requests that come alone.

use super::programs::{Effort, in_process};
use super::report::{self, Row};
use xtask::Failure;

/// All cases. Those of the modelled drives are the same each time.
pub(super) fn measure(effort: Effort) -> Result<Vec<Row>, Failure> {
    in_process("worst", &[], Effort { rounds: 1, ..effort })
}

/// Of each kind of case the one with the lowest ratio.
pub(super) fn lowest(rows: &[Row]) -> Vec<Row> {
    report::lowest(rows, |case| case.split(", size").next().unwrap_or(case))
}
