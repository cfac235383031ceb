//! The in-process cases of `cargo xtask bench array`: one JSON line a case.
//!
//! Memory members, one core unless said otherwise: what the array's own code costs. The modelled
//! drives run in virtual time. `BENCH_SECONDS` is the time of one measurement. Words choose some of
//! the cases: `memory`, `drives`, `merge`, `rebuild`.

mod drives;
mod load;
mod memory;
mod merge;
mod rebuild;

use voltier_array::{Consistency, CreateOptions, Integrity, Layout, Level};

const KIB: u64 = 1 << 10;

/// A RAID 6 as the command makes it.
fn raid_6(members: usize, chunk_bytes: u64, consistency: Consistency) -> CreateOptions {
    CreateOptions {
        name: "bench".to_owned(),
        level: Level::Raid6,
        layout: Layout::default(),
        chunk_bytes,
        consistency,
        integrity: Integrity::None,
        uuid: [1; 16],
        member_uuids: (0..members).map(|member| [100 + member as u8; 16]).collect(),
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let seconds = std::env::var("BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    if is_wanted("memory") {
        memory::cases(seconds.unwrap_or(2.0));
    }
    if is_wanted("drives") {
        drives::cases();
    }
    if is_wanted("merge") {
        merge::cases();
    }
    if is_wanted("rebuild") {
        rebuild::cases();
    }
}
