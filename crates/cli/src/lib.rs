//! Shared by the programs `voltier` and `voltier-lab`: how both answer, and how both refuse wrong usage.

pub mod output;
pub mod usage;
