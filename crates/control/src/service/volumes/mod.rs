//! Volumes: their commands, their exports, their ends, what is shown of them.

pub(crate) mod commands;
pub(crate) mod drains;
pub(crate) mod exports;
pub(crate) mod finish;
pub(crate) mod given_up;
pub(crate) mod in_use;
pub(crate) mod lost_ssds;
pub(crate) mod open;
pub(crate) mod removal;
pub(crate) mod reports;
pub(crate) mod show;
pub(crate) mod silence;
pub(crate) mod stacked;
pub(crate) mod stops;
pub(crate) mod take_over;
