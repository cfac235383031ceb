//! Serving requests of clients: one file a direction.

pub(crate) mod coalescing;
mod discard;
mod flush;
pub(crate) mod idle_origin;
mod read;
pub(crate) mod route;
pub(crate) mod shared_reads;
mod single_flight;
mod write;
