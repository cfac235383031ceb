//! Leaf devices: file, memory, modelled drive; and a filter that serves sectors over larger blocks.
//!
//! A leaf ends a stack of devices. All devices of this crate, and the filters of tests, pass the one body
//! of `tests/it/conformance.rs`.

mod align;
mod file;
mod memory;
pub mod model;

pub use align::AlignDevice;
pub use file::{FileDevice, FileFacts, FileOptions, OpenError, OpenFile, is_undrained};
pub use memory::MemoryDevice;
pub use model::ModelDevice;
