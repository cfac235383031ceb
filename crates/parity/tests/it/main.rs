//! The integration tests of the parity code. One program: what is generic over devices
//! is compiled once for all of them.

mod kernels;
mod losses;
