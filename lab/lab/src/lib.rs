//! The laboratory: plans, and runs by fio or in virtual time.
//!
//! Most of it drives the product from outside, as a user does: the `voltier` program ([`voltier`]) and
//! clients on its exports ([`fio`]). Modelled drives run inside, in virtual time. The module [`run`]
//! measures plans and replays traces on them, and [`twin`] repeats published tests with the engine in the
//! product's place. Nothing here is part of the data path.
//!
//! The file of a run, its analysis and its report are in `voltier-results`, the readers of block
//! traces in `voltier-trace`. Reading route: [`plan`] says what is measured, [`run`] measures it;
//! [`demo`] is one whole measurement from drives to report.

pub mod demo;
pub mod fio;
pub mod machine;
mod model_store;
pub mod plan;
pub mod process;
pub mod run;
mod thread_load;
pub mod twin;
pub mod voltier;
mod zeroes_aside;

pub use voltier_results::LabError;
