//! Deliberate bugs, one line each at the place it sabotages, to prove that the simulator would find
//! their like: see [`canary_switch`](voltier_ring::canary_switch).

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Changes of the same sectors reach a plain drive at the same time.
    ChangesUnordered,
    /// A volume is served although another host has taken its origin away.
    TakenAwayServed,
}

voltier_ring::canary_switch!(Canary);
