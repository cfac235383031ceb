//! What the programs `voltier` and `voltier-lab` share: how they answer, and how they refuse wrong usage.

pub mod output;
pub mod usage;
