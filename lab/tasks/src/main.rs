//! Tasks of `cargo xtask` that run the product by the laboratory's means. `xtask` starts this program, so
//! that the checks of the house rules compile without the laboratory.

mod bench;
mod doc_test;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask doc-test | cargo xtask bench NAME [WORD]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["doc-test"] => doc_test::run(),
        ["bench", name] => bench::run(name, ""),
        ["bench", name @ ("worst" | "worst-files" | "rbd"), word] => bench::run(name, word),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    xtask::exit_code(result)
}
