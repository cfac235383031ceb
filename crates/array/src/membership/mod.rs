//! The members of an array, on record, and the barrier that makes a loss durable.

pub(crate) mod current;
