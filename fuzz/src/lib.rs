//! Fuzz targets: what the outside can feed, each with its oracle.
//!
//! ```text
//!   engine (scripts/fuzz.sh) ─┐
//!                             ├─ bytes ─> target: builds what a hostile outside would send, feeds
//!   corpus (cargo test) ──────┘                   it to the product's own code, holds the outcome
//!                                                 against what the product promises
//! ```
//!
//! A target panics when the product breaks a promise, and the product's own panics count as broken
//! ones. Nothing here knows the engine: an ordinary test replays every file of `corpus`. Runs are
//! deterministic: virtual time, seeded dice, no state from one input to the next.

mod cache_image;
mod control;
mod dictionary;
mod fuse;
mod input;
mod nbd;
mod registry;
mod results;
mod specs;

pub use dictionary::dictionary;

/// One fuzz target.
pub struct Target {
    /// The target's name, also that of the target's folder in `corpus`.
    pub name: &'static str,
    /// Feeds it one input; panics when a promise is broken.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 8] = [
    Target { name: "nbd_negotiation", run: nbd::negotiation },
    Target { name: "nbd_requests", run: nbd::requests },
    Target { name: "fuse_requests", run: fuse::run },
    Target { name: "cache_image", run: cache_image::run },
    Target { name: "registry", run: registry::run },
    Target { name: "control", run: control::run },
    Target { name: "specs", run: specs::run },
    Target { name: "results", run: results::run },
];

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
