//! Checksums of members' blocks: each device of an array with integrity goes through its own.

pub(crate) mod checked;
pub(crate) mod devices;
pub(crate) mod page_errors;
pub(crate) mod registry;
pub(crate) mod table;
pub(crate) mod void_list;
