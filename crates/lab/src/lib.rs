//! The laboratory: plans, runs by fio, reports.
//!
//! It drives the product from outside, as a user does: the `voltier` binary ([`voltier`]), clients
//! on its doors ([`fio`]), and what they measured as tables and pages ([`table`], [`chart`]).
//! Nothing here is part of the data path.
//!
//! Reading route: [`demo`] is one whole plan from drives to report; the other modules are what it
//! is made of.

pub mod chart;
pub mod demo;
pub mod error;
pub mod fio;
pub mod machine;
pub mod process;
pub mod result;
pub mod size;
pub mod table;
pub mod voltier;

pub use error::LabError;
