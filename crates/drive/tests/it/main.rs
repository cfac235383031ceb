//! The integration tests of the drives. One program: what is generic over devices
//! is compiled once for all of them.

mod align;
mod conformance;
mod file;
mod nbd;
mod support;
