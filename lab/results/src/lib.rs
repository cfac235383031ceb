//! Results of the laboratory: the file of a run, what its figures mean, and what is shown of it.
//!
//! ```text
//!   import, published ──> result: a run with its points ──> analysis ──> report
//! ```
//!
//! Nothing here measures. Reading route: [`result`] is the file of a run, where everything meets.
//! [`import`] and [`published`] make runs of the figures of others; [`analysis`] judges a run; [`report`]
//! lays it out. [`table`], [`chart`], [`html`] and [`size`] are how figures look.
//!
//! | word | meaning |
//! | --- | --- |
//! | plan, point | what is measured, in which order; one measurement of it |
//! | role | what a point is for: measured, purge, fill, writes between, a step |
//! | rounds, tracker | points measured again and again; the figure whose rounds must become steady |
//! | place | the points of a run that differ in round and pass only |
//! | partial | of a run: it did not finish its plan, or a point of it has no figures |

pub mod analysis;
pub mod chart;
mod csv;
mod date;
mod error;
pub mod html;
pub mod import;
pub mod published;
pub mod report;
pub mod result;
pub mod size;
mod stop;
pub mod table;

pub use error::LabError;
pub use stop::Stop;
