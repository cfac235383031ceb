//! Programs of the host that commands run: `mount`, `blkid`, `systemctl`.

use std::process::{Command, Output, Stdio};

use voltier_control::{ControlError, ControlResult};

/// Runs a program to its end.
pub(crate) fn output(command: &mut Command, program: &str) -> ControlResult<Output> {
    let ran = command.stdin(Stdio::null()).env("LC_ALL", "C").output();
    ran.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ControlError::failed(format!(
            "{program} is not installed; `voltier doctor` says what to install"
        )),
        _ => ControlError::io(format!("running {program}"), &error),
    })
}

/// The error of a program that failed: the last line it said.
pub(crate) fn said(doing: &str, output: &Output) -> ControlError {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.contains("dmesg(1)"));
    let why = lines.next_back().map_or_else(|| output.status.to_string(), str::to_owned);
    ControlError::failed(format!("{doing}: {why}"))
}

/// Runs a program to its end; an error with `doing` and the last line it said if it fails.
pub(crate) fn run(command: &mut Command, program: &str, doing: &str) -> ControlResult<()> {
    let ran = output(command, program)?;
    if ran.status.success() { Ok(()) } else { Err(said(doing, &ran)) }
}
