//! Arrays: in-process on memory and on modelled drives, then through NBD beside btrfs.

use super::btrfs;
use super::programs::{Effort, in_process};
use super::report::Row;
use xtask::Failure;

/// All cases of arrays, in the order of the table.
pub(super) fn measure(effort: Effort) -> Result<Vec<Row>, Failure> {
    // In virtual time one round is as good as many.
    let once = Effort { rounds: 1, ..effort };
    let mut rows = in_process("array", &["memory"], effort)?;
    rows.extend(in_process("array", &["drives", "merge", "rebuild"], once)?);
    rows.extend(in_process("destage", &[], once)?);
    match btrfs::why_not() {
        Some(why) => eprintln!("the cases beside btrfs are left out: {why}"),
        None => rows.extend(btrfs::measure(effort)?),
    }
    Ok(rows)
}
