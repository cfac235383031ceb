//! Worlds for tests: simulated drives, power cuts, oracles.
//!
//! ```text
//!   workload ──> cache ──┬─> SimDisk (SSD) ────┐
//!      │                 └─> SimDisk (origin) ─┴─ World: clock, dice, events
//!      └──> Model: which contents each sector may have
//!
//!   crash: at an event, copies of both drives as a power cut would leave them, and of the model;
//!          in a world of its own the cache is opened on them and every sector is checked
//! ```
//!
//! What can go wrong is listed in one place, [`FaultKind`], and nothing else goes wrong. [`swarm`]
//! runs seeds: each draws a cache, drives, clients, faults and crashes of its own.
//! [`manage`] walks the control plane's commands: the real service over the real volume; [`array_walk`]
//! those of arrays.

pub mod array_walk;
pub mod arrays;
pub mod budget;
mod chain;
pub mod crash;
mod disk;
mod fault;
mod image;
mod inject;
mod ledger;
mod life;
pub mod manage;
mod medium;
mod mix;
mod model;
mod origin;
pub mod report;
pub mod rest;
pub mod shrink;
mod stage;
pub mod swarm;
pub mod trials;
pub mod workload;
mod world;

pub use disk::{DiskSpec, SimDisk};
pub use fault::{FaultKind, FaultMix};
pub use ledger::{Counts, Ledger};
pub use medium::{Cut, Medium};
pub use model::{Model, Violation, Write};
pub use origin::{FittedDevice, SimDrive};
pub use world::{Event, World};
