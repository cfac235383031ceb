//! The cache: in-process against Open CAS's library and bare models, over NBD against nbdkit and
//! plain memory.

use super::nbd::{self, Volumes};
use super::programs::{Effort, in_process};
use super::report::Row;
use xtask::{Failure, workspace};

/// All cases of the cache, in the order of the table.
pub(super) fn measure(effort: Effort) -> Result<Vec<Row>, Failure> {
    let mut rows = in_process("cache", &[], effort)?;
    let binary = workspace::build_voltier(true)?;
    let stop = voltier_lab::process::Stop::on_signals()?;
    let volumes = Volumes::start(&binary, &stop)?;
    rows.extend(nbd::measure(&volumes, effort)?);
    Ok(rows)
}
