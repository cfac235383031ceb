//! The two devices below the cache, and the health of the SSD.

pub(crate) mod fingerprint;
pub(crate) mod health;
pub(crate) mod ssd;
