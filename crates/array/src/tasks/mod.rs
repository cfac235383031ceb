//! What an array does beside requests.

pub(crate) mod background;
pub(crate) mod pace;
pub(crate) mod rebuild;
pub(crate) mod replace;
pub(crate) mod reshape;
pub(crate) mod resync;
pub(crate) mod scrub;
