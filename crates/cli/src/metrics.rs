//! `voltier metrics`: what Prometheus would hear, on standard output or in a file.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use voltier_cli::output::print;
use voltier_control::{ControlError, ControlResult};

use crate::args::MetricsArgs;
use crate::session::Session;

/// Prints metrics, or puts them into a file.
pub(crate) fn run(session: &Session<'_>, args: &MetricsArgs) -> ControlResult<()> {
    if session.json {
        return Err(ControlError::usage(
            "metrics are in the format of Prometheus; `voltier show --json` has the same figures",
        ));
    }
    let mut client = session.running_client()?.ok_or_else(|| session.no_daemon())?;
    let text = client.metrics()?;
    match &args.textfile {
        None => print(&text),
        Some(path) => put(path, &text)
            .map_err(|error| ControlError::io(format!("writing {}", path.display()), &error)),
    }
}

/// Writes a file beside it and renames that: a reader sees all of the old text or all of the new one.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let beside = path.with_file_name(name);
    let written = std::fs::File::create(&beside).and_then(|mut file| {
        // The reader is another user.
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())
    });
    written.and_then(|()| std::fs::rename(&beside, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}
