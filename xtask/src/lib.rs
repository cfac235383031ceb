//! The base that the tasks of the repository share: the workspace as cargo sees it, the blocks of its
//! pages, and how a task ends.

use std::process::ExitCode;

pub mod fences;
pub mod workspace;

/// Any error that ends a task; printed on one line.
pub type Failure = Box<dyn std::error::Error>;

/// How a program ends after its task: a failure is printed.
pub fn exit_code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
