//! Arrays: their commands, their state, their spares.

pub(crate) mod commands;
pub(crate) mod events;
pub(crate) mod members;
pub(crate) mod open;
pub(crate) mod scrub_book;
pub(crate) mod scrub_timer;
pub(crate) mod show;
pub(crate) mod spare_labels;
pub(crate) mod spare_pools;
pub(crate) mod unfit_spare;
pub(crate) mod wanting;
