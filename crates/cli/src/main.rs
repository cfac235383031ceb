//! The `voltier` command: arguments in, one request to the daemon, an answer for people or as JSON.

mod args;
mod array;
mod array_args;
mod array_table;
mod demo;
mod lab;
mod lab_args;
mod progress;
mod request;
mod run;
mod table;
mod trace;
mod trace_args;
mod usage;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let Some(message) = usage::one_line(&error) else {
                // Help and version go to standard output; a closed one is nobody's loss.
                let _ = error.print();
                return ExitCode::SUCCESS;
            };
            eprintln!("voltier: {message}");
            return ExitCode::from(2);
        }
    };
    match run::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("voltier: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
