//! `cargo xtask`: checks, benchmarks, simulation.

fn main() {}
