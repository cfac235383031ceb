//! `voltier completions SHELL`: completions of this program's verbs, and of those of the laboratory if it is there.

use std::process::{Command as Process, Stdio};

use clap::{Command, CommandFactory};
use voltier_cli::output::print;
use voltier_cli::words::Words;
use voltier_control::ControlResult;

use crate::args::{Cli, Completions};
use crate::laboratory;

/// Prints them.
pub(crate) fn run(args: &Completions) -> ControlResult<()> {
    // Without what help hides: verbs of the daemon and of udev, and EnhanceIO's options.
    let mut command = Words::of(&Cli::command()).into_command();
    for verb in of_laboratory() {
        let name = verb.get_name().to_owned();
        command = command.mut_subcommand(&name, |_| verb);
    }
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "voltier", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// The verbs that `voltier-lab` has; none when it is not installed, or of another kind.
fn of_laboratory() -> Vec<Command> {
    let mut asked = Process::new(laboratory::program());
    let told = asked.arg("words").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let words = told.ok().and_then(|told| serde_json::from_slice::<Words>(&told.stdout).ok());
    words.map(Words::into_verbs).unwrap_or_default()
}
