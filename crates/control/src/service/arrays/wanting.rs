//! Arrays that want spares of their pools.

use crate::name::{ArrayName, PoolName};

/// An array that wants spares of its pool. The most exposed is the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::service) struct Wanting {
    pub(in crate::service) may_lose: u32,
    pub(in crate::service) name: ArrayName,
    pub(in crate::service) pool: PoolName,
    pub(in crate::service) spares_wanted: usize,
}
