//! Volumes: their commands, their exports, their ends, what is shown of them.

pub(in crate::service) mod commands;
pub(in crate::service) mod drains;
pub(in crate::service) mod exports;
pub(in crate::service) mod finish;
pub(in crate::service) mod given_up;
pub(in crate::service) mod in_use;
pub(in crate::service) mod lost_ssds;
pub(in crate::service) mod open;
pub(in crate::service) mod removal;
pub(crate) mod show;
pub(in crate::service) mod silence;
pub(in crate::service) mod stacked;
pub(in crate::service) mod stops;
