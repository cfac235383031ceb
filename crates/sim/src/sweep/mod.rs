//! Crash-point sweeps of management commands: the real `Service` over real volumes or arrays on simulated
//! drives.
//!
//! A command runs once, clients at work. Drives and registry are copied as a power cut or a kill would
//! leave them. The copies are made at every event of the drives, and between any two steps of the control
//! plane. A daemon starts on the copies in a world of its own, and its recovery may be crashed in the
//! same way. After any cut the registry is as before the command or as after it, and everything on record
//! is served. Nothing is lost, and the daemon takes every command again.
//!
//! - `points`: which events are crash points.
//! - `clients`, `daemon`: the part of a fixture that volumes and arrays share.
//! - `harness`: the sweep, over everything that implements its `Subject`.
//! - [`volumes`], [`arrays`]: the subjects, each with its fixture, its engine and its commands.

pub mod arrays;
mod clients;
mod daemon;
mod harness;
mod points;
pub mod volumes;

pub use harness::Report;
