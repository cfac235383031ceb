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
//! [`manage`] sweeps the control plane's commands: the real service over the real volume; [`sweep::arrays`]
//! those of arrays.

pub mod arrays;
pub mod budget;
pub mod crash;
mod disk;
mod fault;
mod fixture;
mod image;
mod inject;
mod ledger;
mod life;
mod lives;
mod medium;
mod mix;
mod model;
mod origin;
pub mod report;
pub mod rest;
pub mod scenario;
pub mod shrink;
pub mod swarm;
pub mod sweep;
pub mod trials;
pub mod workload;
mod world;

pub use disk::{DiskSpec, SimDisk};
pub use fault::{FaultKind, FaultMix};
pub use ledger::{Counts, Ledger};
pub use medium::{Cut, Medium};
pub use model::{Model, Violation, Write};
pub use origin::SimDrive;
pub use world::{Event, World};
