//! Leaf devices and filters: file, memory, modelled drive, and the layers that delay, log,
//! throttle, align or fail.
//!
//! A leaf ends a stack of devices; a filter is generic over the device below it and changes one
//! thing. All of them pass the one body of `tests/conformance.rs`.

mod file;
pub mod filter;

mod memory;
pub mod model;

pub use file::{FileDevice, FileFacts, FileOptions, OpenError};
pub use memory::MemoryDevice;
pub use model::ModelDevice;
