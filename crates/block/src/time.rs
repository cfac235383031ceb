//! Time of the data path.

/// Nanoseconds on the ring's clock: monotonic, from an arbitrary start; virtual in the simulator.
pub type Nanos = u64;
