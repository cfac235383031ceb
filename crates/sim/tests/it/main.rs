//! The integration tests of promises, by simulated worlds. One program: what is generic over devices
//! is compiled once for all of them.

#[cfg(feature = "canaries")]
mod array_canaries;
mod array_commands;
mod arrays;
#[cfg(feature = "canaries")]
mod canaries;
#[cfg(feature = "canaries")]
mod canary_hunt;
mod crash;
mod guarantees;
mod promises;
mod sampled;
mod swarm;
#[cfg(feature = "canaries")]
mod takeover_canaries;
mod takeovers;
mod trials;
#[cfg(feature = "canaries")]
mod volume_canaries;
mod volume_commands;
