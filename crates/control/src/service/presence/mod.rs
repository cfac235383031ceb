//! Drives that are there, come late, are missing, moved or pulled: what a start opens, and what is looked for after it.

pub(in crate::service) mod absence;
pub(in crate::service) mod admit;
pub(in crate::service) mod drives;
pub(in crate::service) mod fallen;
pub(in crate::service) mod faults;
pub(in crate::service) mod label_search;
pub(in crate::service) mod last_search;
pub(in crate::service) mod late;
pub(in crate::service) mod look;
pub(in crate::service) mod moved;
pub(in crate::service) mod named_drives;
pub(in crate::service) mod pulled;
pub(in crate::service) mod start;
pub(in crate::service) mod survey;
