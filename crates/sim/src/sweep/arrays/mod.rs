//! Crashes at every event of every management command of arrays: real arrays on simulated drives.
//!
//! A recovered array is as before the command or as after it, and has no member missing that the command did
//! not take out.

mod command;
mod engine;
mod fixture;
mod subject;

pub use command::ArrayCommand;
pub use subject::{Plan, run_in};
