//! The integration tests of arrays. One program: what is generic over devices
//! is compiled once for all of them.

mod array;
mod durable;
mod geometry;
mod sampled;
