//! The `voltier-lab` program: `voltier lab` and `voltier demo`, which hand it all their arguments.

mod args;
mod demo;
mod failure;
mod lab_args;
mod measure;
mod product;
mod steps;
mod trace;
mod trace_args;
mod verbs;

use std::process::ExitCode;

use clap::CommandFactory;
use voltier_cli::words::Words;
use voltier_cli::{manual, output, usage};
use voltier_control::{ControlResult, StateDir};

use crate::args::{Cli, Verb};

fn main() -> ExitCode {
    usage::main_of(run)
}

fn run(cli: &Cli) -> ControlResult<()> {
    let state = match &cli.state {
        Some(path) => StateDir::at(path)?,
        None => StateDir::at(&StateDir::default_path()?)?,
    };
    match &cli.verb {
        Verb::Lab(args) => verbs::run(&args.verb, &state, cli.json),
        Verb::Demo(args) => output::print(&demo::run(args, cli.json)?),
        Verb::Manual(args) => manual::write_verbs(Cli::command(), args),
        Verb::Words => output::print_line(&Words::of(&Cli::command())),
    }
}
