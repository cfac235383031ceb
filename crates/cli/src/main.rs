//! The `voltier` command.

fn main() {}
