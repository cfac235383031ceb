//! Who is in the array, on record.

pub(crate) mod record;
