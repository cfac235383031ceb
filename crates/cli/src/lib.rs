//! Shared by the programs `voltier` and `voltier-lab`: how both answer, how both refuse wrong usage, and what both
//! tell of their command lines: manual pages, and words for the completions of shells.

pub mod manual;
pub mod output;
pub mod usage;
pub mod words;
