//! The programs of `voltier-bench`, and how often their cases are measured.

use std::process::{Command, Stdio};

use super::report::{self, Row};
use xtask::{Failure, workspace};

/// How the cases are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// How often each case is measured; the median counts.
    pub(super) rounds: u32,
    /// Seconds of one measurement.
    pub(super) seconds: u32,
}

impl Effort {
    /// BENCH_ROUNDS (5) and BENCH_SECONDS (3).
    pub(super) fn from_env() -> Result<Effort, Failure> {
        let setting = |name: &str, default: u32| match std::env::var(name) {
            Ok(value) => match value.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!("{name}={value} is not usable: give a whole number from 1")),
            },
            Err(_) => Ok(default),
        };
        Ok(Effort { rounds: setting("BENCH_ROUNDS", 5)?, seconds: setting("BENCH_SECONDS", 3)? })
    }
}

/// Runs a program of `voltier-bench` once for each round and takes the median of each case.
pub(super) fn in_process(
    program: &str,
    words: &[&str],
    effort: Effort,
) -> Result<Vec<Row>, Failure> {
    let what = format!("cargo run --package voltier-bench --bin {program}");
    let mut rounds = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("{program}: round {round} of {}", effort.rounds);
        let mut command: Command = workspace::cargo_release();
        command.args(["run", "--quiet", "--locked", "--release", "--package", "voltier-bench"]);
        command.args(["--bin", program, "--"]).args(words);
        command.env("BENCH_SECONDS", effort.seconds.to_string());
        let output = command.stderr(Stdio::inherit()).output()?;
        workspace::succeeded(&what, output.status)?;
        rounds.push(report::parse_lines(&String::from_utf8(output.stdout)?)?);
    }
    report::medians(&rounds).map_err(|why| format!("{what}: {why}").into())
}
