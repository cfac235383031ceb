//! Destaging: dirty lines go to the origin.

pub(crate) mod cleaner;
pub(crate) mod destage;
pub(crate) mod stripes;
