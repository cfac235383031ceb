//! Arrays that want spares of their pools.

use crate::name::{ArrayName, PoolName};

/// An array that wants spares of its pool. The most exposed is the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanting {
    pub(crate) may_lose: u32,
    pub(crate) name: ArrayName,
    pub(crate) pool: PoolName,
    pub(crate) spares_wanted: usize,
}
