//! Deliberate bugs of what the simulator stands in for (a cluster), to prove that its oracles would find their like.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Writes of a host that were under way when its lock was broken reach the image later.
    LateWritesTaken,
}

voltier_ring::canary_switch!(Canary);
