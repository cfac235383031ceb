//! `voltier lab` and `voltier demo`: the separate program `voltier-lab` does them, so that the daemon
//! contains no laboratory.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use voltier_control::ControlError;

/// The program of the laboratory.
const PROGRAM: &str = "voltier-lab";

/// Whether the arguments behind the program's name are for the laboratory, a wish for help included.
pub(crate) fn is_asked(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.to_string_lossy().as_ref() {
            "--state" => drop(words.next()),
            "--json" | "help" => {}
            "lab" | "demo" => return true,
            word if word.starts_with("--state=") => {}
            _ => return false,
        }
    }
    false
}

/// The program of the laboratory: beside this one, else on `PATH`.
pub(crate) fn program() -> PathBuf {
    let beside = env::current_exe().ok().map(|program| program.with_file_name(PROGRAM));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM))
}

/// Becomes the program of the laboratory, with the same arguments; returns only when there is none.
pub(crate) fn become_it() -> ControlError {
    let program = program();
    let mut arguments = env::args_os();
    // The name by which the user knows the command: help and hints show it.
    let name = arguments.next().unwrap_or_else(|| OsStr::new("voltier").to_owned());
    let error = Command::new(&program).arg0(name).args(arguments).exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        return ControlError::failed(
            "the laboratory is a program of its own, `voltier-lab`, and is neither beside this one nor on \
             PATH: install the package voltier-lab, or what `make build` built",
        );
    }
    ControlError::io(format!("running {}", program.display()), &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_the_laboratory_is_known_by_its_verb() {
        let is_asked =
            |line: &str| is_asked(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in [
            "lab",
            "lab run maxio -t x",
            "demo --out x",
            "help lab",
            "help lab run",
            "--json lab list",
            "--state lab lab --help",
            "--state=x --json demo",
        ] {
            assert!(is_asked(line), "{line}");
        }
        for line in
            ["show lab", "--state lab show", "create -p lab lab", "--help", "help", "--x lab"]
        {
            assert!(!is_asked(line), "{line}");
        }
    }

    #[test]
    fn a_state_folder_that_is_no_text_hides_no_verb() {
        use std::os::unix::ffi::OsStrExt;
        let folder = OsStr::from_bytes(b"\xff\xfe").to_owned();
        assert!(is_asked(&["--state".into(), folder.clone(), "lab".into(), "list".into()]));
        assert!(!is_asked(&["--state".into(), folder, "show".into()]));
    }
}
