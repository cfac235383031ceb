//! The doors: NBD and the FUSE file.
