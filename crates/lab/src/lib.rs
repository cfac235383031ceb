//! The laboratory: plans, runs by fio, reports.
//!
//! It drives the product from outside, as a user does: the `voltier` binary ([`voltier`]), clients
//! on its doors ([`fio`]), and what they measured as tables and pages ([`table`], [`chart`]).
//! Nothing here is part of the data path. Only [`twin`] has engines inside: it repeats published tests on
//! modelled drives in virtual time.
//!
//! Reading route: [`result`] is the file of a run, where everything meets; [`import`] and
//! [`published`] make runs of others' figures, [`analysis`] judges them. [`demo`] is one whole plan
//! from drives to report.

pub mod analysis;
pub mod chart;
mod csv;
mod date;
pub mod demo;
pub mod error;
pub mod fio;
mod html;
pub mod import;
pub mod machine;
pub mod plan;
pub mod process;
pub mod published;
pub mod report;
pub mod result;
pub mod run;
pub mod size;
pub mod table;
pub mod trace;
pub mod twin;
pub mod voltier;

pub use error::LabError;
