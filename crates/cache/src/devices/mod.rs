//! The two devices below the cache: counted, and what their failures mean.

pub(crate) mod fingerprint;
pub(crate) mod health;
pub(crate) mod line_sample;
pub(crate) mod origin;
pub(crate) mod partition_table;
pub(crate) mod passage;
pub(crate) mod read_errors;
pub(crate) mod refusal;
pub(crate) mod silence;
pub(crate) mod skips;
pub(crate) mod ssd;
mod ssd_state;
