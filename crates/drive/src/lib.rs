//! Leaf devices and filters: file, memory, modelled disk, and the layers that delay, log, throttle or fail.

pub mod model;
