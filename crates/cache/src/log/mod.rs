//! The log on the SSD: changes become records, checkpoints shorten it, a start replays it.

pub(crate) mod bound;
mod builder;
pub(crate) mod chain;
pub(crate) mod change;
pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod damage;
pub(crate) mod form;
mod in_flight;
pub(crate) mod intents;
mod judge_origin;
pub(crate) mod load;
pub(crate) mod load_rest;
pub(crate) mod long_streams;
pub(crate) mod map_copy;
pub(crate) mod not_durable;
pub(crate) mod open;
pub(crate) mod ordered;
pub(crate) mod pressure;
pub(crate) mod reclaim;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod stage;
pub(crate) mod writer;
