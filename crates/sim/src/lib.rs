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
//! All faults are listed in one place, [`FaultKind`], and nothing else goes wrong.
//!
//! | word | meaning |
//! | --- | --- |
//! | scenario | a seed, and what is cut away from what the seed draws: [`scenario`] |
//! | world | one clock, one set of dice, one count of events: [`World`] |
//! | life | what happens between the start of a process and its end |
//! | fixture | drives, what serves from them, and the model: all that a life of a world needs |
//! | left | what a crash leaves of a fixture: media, the model, the registry |
//! | cut | a crash: the power goes, or the process is killed ([`Cut`]) |
//! | crash point | an event at which copies of a fixture are cut and recovered in a world of their own |
//! | crash-point sweep | one recorded life, and the recovery from each of its crash points |
//! | harness | the code that runs a sweep over any subject: [`sweep`] |
//! | device under test | a device beside the model that its answers are held to |
//! | model | the contents that each sector may have: [`Model`] |
//! | dice | a seeded generator; a crash point has dice of its own, so that it is the same when run alone |
//! | ledger, tale | counts and place of a scenario; the last lines of what happened in it |
//! | bit rot | a medium returns something else than was written |
//! | operator | whoever does things to members of an array while clients work |
//! | canary | a deliberate bug that a test must find |
//!
//! [`swarm`] runs scenarios: of caches ([`crash`], lives of a chain), of [`arrays`], and the sweeps of
//! management commands ([`sweep`]). In these the real service works over real volumes and arrays.
//!
//! The service of a sweep, of its own tests and of the fuzz targets stands on a [`FakeEngine`].
//!
//! Read [`crash`] first, then [`swarm`], then [`sweep`].

pub mod arrays;
pub mod budget;
pub mod canary;
pub mod crash;
mod crash_points;
mod delays;
mod disk;
mod disk_spec;
mod fake;
mod fault;
mod fixture;
mod hang_times;
mod hanging;
mod image;
mod inject;
mod late_changes;
mod ledger;
mod life;
mod lives;
mod loading;
mod mechanism;
mod medium;
mod mix;
mod model;
mod origin;
mod remote;
pub mod report;
pub mod rest;
pub mod scenario;
pub mod shrink;
pub mod swarm;
pub mod sweep;
mod takeover;
pub mod trials;
pub mod workload;
mod world;

pub use disk::SimDisk;
pub use disk_spec::DiskSpec;
pub use fake::{Fake, FakeEngine};
pub use fault::{FaultKind, FaultMix};
pub use late_changes::late_changes;
pub use ledger::{Counts, Ledger};
pub use medium::{Cut, Medium};
pub use model::{Model, Violation, Write};
pub use origin::{FittedDevice, SimDrive};
pub use takeover::Plan as Takeover;
pub use world::{Event, World};
