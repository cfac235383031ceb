//! The cache: one log on the SSD in front of a slow origin.

pub mod admission;
pub mod policy;
pub mod stream;
