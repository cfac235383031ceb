//! Long reads of the same bytes at the same time: the first one reads for all.
//!
//! Everybody here holds the lines' locks for reading, so nothing can have changed between the first
//! one's read and the others' arrival.

use voltier_block::{Buf, Bytes, SectorRange};

use super::single_flight::{Company, Lead, Place};
use crate::status::Served;

/// Shorter reads cost less than the search for company.
const SHARED_SECTORS_MIN: u64 = 128;

/// What was read, and how it was served.
type Answer = (Bytes, Served);
/// How a long read goes on.
pub(super) type SharedPlace<'a> = Place<'a, (), Answer>;

/// Reads under way that others may join.
#[derive(Default)]
pub(crate) struct SharedReads(Company<(), Answer>);

impl SharedReads {
    /// Joins the read of this very range that is under way, or begins one; `None` for a short read,
    /// which goes by itself.
    pub(super) fn join(&self, range: SectorRange) -> Option<SharedPlace<'_>> {
        (range.count >= SHARED_SECTORS_MIN).then(|| self.0.join(range, |()| ()))
    }
}

impl Lead<'_, (), Answer> {
    /// Gives a copy to all who joined.
    pub(super) fn answer(self, data: &Buf, served: Served) {
        let followers = self.end();
        if !followers.answers.is_empty() {
            followers.answer(&(Bytes::copy_of(data), served));
        }
    }
}
