//! The members: devices, what is sent to them, and how well they do.

pub(crate) mod at_once;
pub(crate) mod checksums;
pub(crate) mod clear;
pub(crate) mod counts;
pub(crate) mod event;
pub(crate) mod health;
pub(crate) mod label_copies;
pub(crate) mod label_reading;
pub(crate) mod latency;
pub(crate) mod long_transfer;
pub(crate) mod member;
pub(crate) mod member_set;
pub(crate) mod member_states;
pub(crate) mod member_watch;
pub(crate) mod refusals;
pub(crate) mod vitals;
