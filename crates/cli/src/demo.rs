//! `voltier demo`: the demonstration of the laboratory, with this very program.

use std::path::PathBuf;

use voltier_control::{ControlError, ControlResult};
use voltier_lab::demo::{self, Options};

use crate::args::Demo;

/// Runs the demonstration; its result as text or JSON.
///
/// # Errors
/// One line that says what to do: fio missing, a setting refused, interrupted.
pub(crate) fn run(args: &Demo, json: bool) -> ControlResult<String> {
    let binary = std::env::current_exe()
        .map_err(|error| ControlError::io("finding this program's file", &error))?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("demo"));
    let failed = |error: voltier_lab::LabError| ControlError::failed(error.to_string());
    let options = Options::from_env(binary, out).map_err(failed)?;
    let report = demo::run(&options, &mut |line| eprintln!("{line}")).map_err(failed)?;
    Ok(if json { report.json() } else { report.text() })
}
