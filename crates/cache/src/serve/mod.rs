//! Serving requests of clients: one file a direction, and what directions share.

pub(crate) mod discard;
pub(crate) mod flush;
pub(crate) mod idle_origin;
pub(crate) mod line_reads;
pub(crate) mod miss;
pub(crate) mod part_writes;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod read_over;
pub(crate) mod route;
pub(crate) mod same_range;
mod without_ssd;
pub(crate) mod write;
