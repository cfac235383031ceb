//! `voltier demo`: the demonstration of the laboratory, with the `voltier` program beside this one.

use std::path::PathBuf;

use voltier_control::{ControlError, ControlResult};
use voltier_lab::demo::{self, Options};

use crate::args::Demo;
use crate::product;

/// Runs the demonstration; its result as text or JSON.
///
/// # Errors
/// One line that says what to do: fio missing, a setting refused, interrupted.
pub(crate) fn run(args: &Demo, json: bool) -> ControlResult<String> {
    let binary = product::program()?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from("demo"));
    let failed = |error: voltier_lab::LabError| ControlError::failed(error.to_string());
    let options = Options::from_env(binary, out).map_err(failed)?;
    let report = demo::run(&options, &mut |line| eprintln!("{line}")).map_err(failed)?;
    Ok(if json { report.json() } else { report.text() })
}
