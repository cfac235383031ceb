//! The floor: one executor per core, over io_uring or over virtual time.
