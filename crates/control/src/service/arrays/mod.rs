//! Arrays: their commands, their state, their spares.

pub(in crate::service) mod commands;
pub(in crate::service) mod events;
pub(in crate::service) mod members;
pub(in crate::service) mod open;
pub(crate) mod show;
pub(in crate::service) mod spare_labels;
pub(in crate::service) mod spare_pools;
pub(in crate::service) mod unfit_spare;
pub(in crate::service) mod wanting;
