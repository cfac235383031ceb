//! `cargo xtask`: checks, benchmarks, simulation.

mod sim;
mod tasks;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK
  tidy            the house rules that the compiler and clippy do not know
  doc-test        runs the commands shown in README.md and docs/guide
  bench NAME      speed against named peers; NAME: cache, worst, worst-files, exports, start, parity, array, btrfs,
                  mrc, rbd; behind worst, worst-files and rbd a word limits the cases to those that have it
  vm [SCENARIO]...   the product in a virtual machine: boots, power cuts, drives that move (see docs/proof.md)
  sim [OPTION]... the simulator: --seeds N, --minutes M, --manage N, --seed S (see docs/proof.md)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::run(),
        ["doc-test"] => tasks::run("voltier-tasks", &words, false),
        ["bench", _] | ["bench", _, _] => tasks::run("voltier-tasks", &words, true),
        ["vm", scenarios @ ..] => tasks::run("voltier-vm", scenarios, false),
        ["sim", arguments @ ..] => sim::run(arguments),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    xtask::exit_code(result)
}
