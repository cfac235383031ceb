//! Drives that are there, come late, are missing, moved or pulled: what a start opens, and what is looked for after it.

pub(crate) mod absence;
pub(crate) mod admit;
pub(crate) mod drives;
pub(crate) mod ephemeral;
pub(crate) mod fallen;
pub(crate) mod faults;
pub(crate) mod label_search;
pub(crate) mod last_search;
pub(crate) mod late;
pub(crate) mod look;
pub(crate) mod moved;
pub(crate) mod named_drives;
pub(crate) mod pulled;
pub(crate) mod start;
pub(crate) mod survey;
