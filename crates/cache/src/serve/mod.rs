//! Serving requests of clients: one file a direction, and what directions share.

pub(crate) mod coalescing;
pub(crate) mod discard;
pub(crate) mod flush;
pub(crate) mod idle_origin;
pub(crate) mod line_changes;
pub(crate) mod miss;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod route;
pub(crate) mod shared_reads;
pub(crate) mod single_flight;
pub(crate) mod write;
pub(crate) mod write_past;
