//! A set of kernels: the checked functions, and the loops of one instruction set behind them.
//!
//! UNSAFETY: a kernel of an instruction set may run only where the processor has it, and reads and writes
//! by pointer. The checked functions of [`Kernels`] are the only callers. The callers hold the lengths of
//! all slices against each other, and a set is handed out only if it was detected.
#![allow(unsafe_code)]

use std::fmt;

use crate::matrix::ROWS_MAX;

/// Writes all parity rows. Coefficients are those of the rows from the third on, row by row.
///
/// Callers: all slices are of one length, there is a member, there are 1 to [`ROWS_MAX`] rows.
pub(super) type Encode =
    unsafe fn(extra: &[u8], data: &[&[u8]], parity: &mut [&mut [u8]], stores: Stores);

/// Whether the parity rows are those of the data; arguments and conditions as for [`Encode`].
pub(super) type Check = unsafe fn(extra: &[u8], data: &[&[u8]], parity: &[&[u8]]) -> bool;

/// `target[t]` becomes the sum of `coefficients[t * sources.len() + s] * sources[s]`; conditions as
/// for [`Encode`], with sources for data and targets for parity.
pub(super) type Combine =
    unsafe fn(coefficients: &[u8], sources: &[&[u8]], targets: &mut [&mut [u8]]);

/// `coefficient * (old ^ new)` is added to every target; all slices are of one length.
pub(super) type Update = unsafe fn(old: &[u8], new: &[u8], targets: &mut [(u8, &mut [u8])]);

/// How parity is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stores {
    /// Through the caches: what is right when the stripe, or the parity of the last one, is there.
    #[default]
    Cached,
    /// Past the caches where the rows are aligned to 64 bytes. That saves the read of the parity's old
    /// content from memory. No cache has any of the content then, and nobody reads the new one soon.
    Streaming,
}

/// A set of kernels for one instruction set.
pub struct Kernels {
    pub(super) name: &'static str,
    pub(super) encode: Encode,
    pub(super) check: Check,
    pub(super) combine: Combine,
    pub(super) update: Update,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Kernels({})", self.name)
    }
}

impl Kernels {
    /// Every set there is, whether it runs here or not, the fastest first.
    pub const NAMES: [&str; 5] = ["gfni", "avx512", "avx2", "ssse3", "scalar"];

    /// One of [`Kernels::NAMES`].
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn encode(
        &self,
        extra: &[u8],
        data: &[&[u8]],
        parity: &mut [&mut [u8]],
        stores: Stores,
    ) {
        check_shape(data, parity.len());
        assert!(parity.iter().all(|row| row.len() == data[0].len()), "rows of unequal length");
        assert_eq!(extra.len(), parity.len().saturating_sub(2) * data.len());
        // SAFETY: the set was detected, and the conditions were checked above.
        unsafe { (self.encode)(extra, data, parity, stores) }
    }

    pub(crate) fn check(&self, extra: &[u8], data: &[&[u8]], parity: &[&[u8]]) -> bool {
        check_shape(data, parity.len());
        assert!(parity.iter().all(|row| row.len() == data[0].len()), "rows of unequal length");
        assert_eq!(extra.len(), parity.len().saturating_sub(2) * data.len());
        // SAFETY: the set was detected, and the conditions were checked above.
        unsafe { (self.check)(extra, data, parity) }
    }

    pub(crate) fn combine(
        &self,
        coefficients: &[u8],
        sources: &[&[u8]],
        targets: &mut [&mut [u8]],
    ) {
        check_shape(sources, targets.len());
        let bytes = sources[0].len();
        assert!(targets.iter().all(|target| target.len() == bytes), "targets of unequal length");
        assert_eq!(coefficients.len(), targets.len() * sources.len());
        // SAFETY: the set was detected, and the conditions were checked above.
        unsafe { (self.combine)(coefficients, sources, targets) }
    }

    pub(crate) fn update(&self, old: &[u8], new: &[u8], targets: &mut [(u8, &mut [u8])]) {
        let bytes = new.len();
        assert_eq!(old.len(), bytes, "old and new data of unequal length");
        assert!(targets.iter().all(|(_, row)| row.len() == bytes), "rows of unequal length");
        // SAFETY: the set was detected, and the conditions were checked above.
        unsafe { (self.update)(old, new, targets) }
    }
}

fn check_shape(data: &[&[u8]], rows: usize) {
    assert!(!data.is_empty(), "no members");
    assert!((1..=ROWS_MAX).contains(&rows), "{rows} rows");
    assert!(data.iter().all(|member| member.len() == data[0].len()), "members of unequal length");
}
