//! The `voltier` program that is measured, and that starts the daemon.

use std::path::PathBuf;

use voltier_control::{ControlError, ControlResult};

const PROGRAM: &str = "voltier";

/// The program beside this one, else the one on PATH.
///
/// # Errors
/// When the system does not tell where this program is.
pub(crate) fn program() -> ControlResult<PathBuf> {
    let this = std::env::current_exe()
        .map_err(|error| ControlError::io("finding this program's file", &error))?;
    let beside = this.with_file_name(PROGRAM);
    Ok(if beside.is_file() { beside } else { PathBuf::from(PROGRAM) })
}
