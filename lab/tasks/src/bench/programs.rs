//! The programs of `voltier-bench`, and how often their cases are measured.

use std::process::{Command, Stdio};

use super::report::{self, Measured, Row};
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
    /// BENCH_ROUNDS (5, or what the benchmark has) and BENCH_SECONDS (3).
    pub(super) fn from_env(rounds: u32) -> Result<Effort, Failure> {
        let setting = |name: &str, default: u32| match std::env::var(name) {
            Ok(value) => match value.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!("{name}={value} is not usable: give a whole number from 1")),
            },
            Err(_) => Ok(default),
        };
        Ok(Effort {
            rounds: setting("BENCH_ROUNDS", rounds)?,
            seconds: setting("BENCH_SECONDS", 3)?,
        })
    }
}

/// Runs a program of `voltier-bench` once for each round and takes the median of each case.
pub(super) fn in_process(
    program: &str,
    words: &[&str],
    effort: Effort,
) -> Result<Vec<Row>, Failure> {
    let mut rounds = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("{program}: round {round} of {}", effort.rounds);
        rounds.push(run(program, words, effort)?);
    }
    medians(program, &rounds)
}

/// Runs a program of `voltier-bench` that takes its rounds itself, and prints a case once for each.
pub(super) fn in_pairs(program: &str, words: &[&str], effort: Effort) -> Result<Vec<Row>, Failure> {
    medians(program, &report::rounds_of(run(program, words, effort)?))
}

fn medians(program: &str, rounds: &[Vec<Measured>]) -> Result<Vec<Row>, Failure> {
    report::medians(rounds).map_err(|why| format!("{}: {why}", what(program)).into())
}

fn what(program: &str) -> String {
    format!("cargo run --package voltier-bench --bin {program}")
}

fn run(program: &str, words: &[&str], effort: Effort) -> Result<Vec<Measured>, Failure> {
    let mut command: Command = workspace::cargo_release();
    command.args(["run", "--quiet", "--locked", "--release", "--package", "voltier-bench"]);
    command.args(["--bin", program, "--"]).args(words);
    command.env("BENCH_SECONDS", effort.seconds.to_string());
    command.env("BENCH_ROUNDS", effort.rounds.to_string());
    let output = command.stderr(Stdio::inherit()).output()?;
    workspace::succeeded(&what(program), output.status)?;
    report::parse_lines(&String::from_utf8(output.stdout)?)
}
