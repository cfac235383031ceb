//! The integration tests of volumes. One program: what is generic over devices
//! is compiled once for all of them.

mod failed_flush;
mod grown_origin;
mod order;
mod refusing;
mod silent;
mod steps;
mod stripes;
mod support;
