//! `cargo xtask bench NAME`: every performance figure with its peer, measured in the same run.
//!
//! Prints a table and writes `target/bench/NAME.json`. The cases that need no server come from the
//! programs of the crate `voltier-bench`, which print one JSON line a case (see [`report::Measured`]).

mod array;
mod btrfs;
mod cache;
mod exports;
mod mrc;
mod nbd;
mod programs;
mod rbd;
mod report;
mod worst;

use programs::{Effort, in_process};
use voltier_lab::machine::Machine;

use xtask::{Failure, workspace};

/// Runs the benchmark of that name, or those of its cases whose names have a word.
pub(crate) fn run(name: &str, word: &str) -> Result<(), Failure> {
    let rounds = if name == "worst-files" { worst::FILES_ROUNDS } else { 5 };
    let effort = Effort::from_env(rounds)?;
    let rows = match name {
        "cache" => cache::measure(effort)?,
        "start" => in_process("start", &[], Effort { rounds: 1, ..effort })?,
        "parity" => in_process("parity", &[], effort)?,
        "array" => array::measure(effort)?,
        "btrfs" => btrfs::measure(effort)?,
        "exports" => exports::measure(effort)?,
        "mrc" => mrc::measure()?,
        "rbd" => rbd::measure(word, effort)?,
        "worst" => worst::measure(word, effort)?,
        "worst-files" => worst::measure_files(word, effort)?,
        _ => {
            let message = format!(
                "there is no benchmark {name}: try cache, worst, worst-files, exports, start, parity, \
                 array, btrfs, mrc or rbd"
            );
            return Err(message.into());
        }
    };
    println!("{}", Machine::this().describe());
    match name {
        "start" | "mrc" | "worst" => println!("one run\n"),
        "worst-files" => println!("medians of {} pairs\n", effort.rounds),
        _ => println!(
            "medians of {} runs of {} s each; a ratio is the median of the runs' own\n",
            effort.rounds, effort.seconds
        ),
    }
    match name {
        "worst" => print!("{}", report::table(&worst::lowest(&rows))),
        "worst-files" => print!("{}", worst::summary(&rows)),
        _ => print!("{}", report::table(&rows)),
    }
    let folder = workspace::metadata()?.target_directory.join("bench");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.json"));
    std::fs::write(&path, report::json(&rows)?)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}
