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
//! manage: the same for the control plane's commands, with the real service over the real volume.
//!
//! Faults that are made here, and nothing else:
//! - power cut: blocks of writes that no flush covered are lost, kept, or kept in part; the order
//!   in which they reach the medium is free; a block is never mixed;
//! - kill: everything completed stays (but is still volatile), what was under way may or may not be;
//! - reads and writes of a range that fail; a drive that is gone; a bit that flips; an older image.

pub mod crash;
mod disk;
mod image;
pub mod manage;
mod model;
pub mod workload;
mod world;

pub use disk::{Cut, DiskSpec, Medium, SimDisk};
pub use model::{Model, Violation, Write};
pub use world::{Event, World};
