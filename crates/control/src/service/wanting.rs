//! Arrays that want spares of their pools.

use crate::name::{ArrayName, PoolName};

/// An array that wants spares of its pool. The most exposed is the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanting {
    pub(super) may_lose: u32,
    pub(super) name: ArrayName,
    pub(super) pool: PoolName,
    pub(super) spares_wanted: usize,
}
