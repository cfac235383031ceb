//! `cargo xtask bench NAME`: every performance figure with its peer, measured in the same run.
//!
//! Prints a table and writes `target/bench/NAME.json`. The cases that need no server come from the
//! programs of the crate `voltier-bench`, which print one JSON line a case (see [`report::Measured`]).

mod array;
mod btrfs;
mod cache;
mod mrc;
mod nbd;
mod report;

use std::process::{Command, Stdio};

use report::Row;
use voltier_lab::machine::Machine;

use crate::{Failure, workspace};

/// How the cases are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// How often each case is measured; the median counts.
    rounds: u32,
    /// Seconds of one measurement.
    seconds: u32,
}

impl Effort {
    /// BENCH_ROUNDS (5) and BENCH_SECONDS (3).
    fn from_env() -> Result<Effort, Failure> {
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

/// Runs the benchmark of that name.
pub(crate) fn run(name: &str) -> Result<(), Failure> {
    let effort = Effort::from_env()?;
    let rows = match name {
        "cache" => cache::measure(effort)?,
        "start" => in_process("start", &[], Effort { rounds: 1, ..effort })?,
        "parity" => in_process("parity", &[], effort)?,
        "array" => array::measure(effort)?,
        "btrfs" => btrfs::measure(effort)?,
        "mrc" => mrc::measure()?,
        _ => {
            let message = format!(
                "there is no benchmark {name}: try cache, start, parity, array, btrfs or mrc"
            );
            return Err(message.into());
        }
    };
    println!("{}", Machine::this().describe());
    match name {
        "start" | "mrc" => println!("one run\n"),
        _ => println!(
            "medians of {} runs of {} s each; a ratio is the median of the runs' own\n",
            effort.rounds, effort.seconds
        ),
    }
    print!("{}", report::table(&rows));
    let folder = workspace::metadata()?.target_directory.join("bench");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.json"));
    std::fs::write(&path, report::json(&rows)?)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

/// Runs a program of `voltier-bench` once for each round and takes the median of each case.
fn in_process(program: &str, words: &[&str], effort: Effort) -> Result<Vec<Row>, Failure> {
    let what = format!("cargo run --package voltier-bench --bin {program}");
    let mut rounds = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("{program}: round {round} of {}", effort.rounds);
        let mut command: Command = workspace::cargo();
        command.args(["run", "--quiet", "--locked", "--release", "--package", "voltier-bench"]);
        command.args(["--bin", program, "--"]).args(words);
        command.env("BENCH_SECONDS", effort.seconds.to_string());
        let output = command.stderr(Stdio::inherit()).output()?;
        workspace::succeeded(&what, output.status)?;
        rounds.push(report::parse_lines(&String::from_utf8(output.stdout)?)?);
    }
    report::medians(&rounds).map_err(|why| format!("{what}: {why}").into())
}
