//! The integration tests of the control plane. One program: what is generic over devices
//! is compiled once for all of them.

mod guide_tables;
mod real_devices;
mod service;
