//! Destaging: dirty lines go to the origin.

mod age;
pub(crate) mod cleaner;
pub(crate) mod destage;
mod limit;
pub(crate) mod pace;
pub(crate) mod passing;
pub(crate) mod read_back;
pub(crate) mod runs;
pub(crate) mod stripes;
pub(crate) mod sweep;
