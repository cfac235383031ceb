//! The doors: NBD and the FUSE file.

pub mod nbd;
