//! Worlds for tests: simulated drives, power cuts, oracles.
