//! Whole stripes of one request. The chunks that a member gets of them lie behind one another, so they go
//! out as one write, recorded by one transaction.

use voltier_block::{DriveControl, Lba, Payload, SECTOR_BYTES, SectorRange, join_neighbours};

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{MemberIndex, StripeNumber};
use crate::stripe::new_data::NewData;
use crate::stripe::stripes::Stripes;

/// A stripe and its new data, or several whole ones of one group and region, one row behind the other.
pub(crate) type Run = Vec<(StripeNumber, Vec<NewData>)>;

/// One write of a member.
pub(crate) struct MemberWrite {
    pub(crate) member: MemberIndex,
    /// Where in the member's data area.
    pub(crate) at: Lba,
    pub(crate) data: Payload,
}

impl MemberWrite {
    #[inline]
    pub(crate) fn range(&self) -> SectorRange {
        SectorRange::new(self.at, self.data.len() as u64 / SECTOR_BYTES)
    }
}

/// Joins what is one run of a member. Writes of a member ascend.
pub(crate) fn join_writes(writes: Vec<MemberWrite>) -> Vec<MemberWrite> {
    let writes = writes.into_iter().map(|write| (write.member, write.range(), write.data));
    let joined = join_neighbours(writes).into_iter();
    joined.map(|(member, range, data)| MemberWrite { member, at: range.start, data }).collect()
}

/// Puts whole stripes together that can be written as one; all others stay alone.
pub(crate) fn runs_of<D: DriveControl>(
    stripes: &Stripes<D>,
    geometry: &Geometry,
    bitmap: &Bitmap<D>,
    rows_max: usize,
    writes: Run,
) -> Vec<Run> {
    let groups = geometry.group_count() as u64;
    let mut runs: Vec<Run> = Vec::with_capacity(writes.len());
    for (stripe, new) in writes {
        // The last run of the group, if it ends with the row before.
        let before = stripe.0.checked_sub(groups).map(StripeNumber);
        let is_before = |run: &&mut Run| run.last().map(|(last, _)| *last) == before;
        let may_join = rows_max > 1 && is_whole(stripes, geometry.chunk_sectors(), stripe, &new);
        let open = runs.iter_mut().rev().take(groups as usize).find(is_before);
        let open = open.filter(|run| {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            may_join
                && run.len() < rows_max
                && is_whole(stripes, geometry.chunk_sectors(), last.0, &last.1)
                && bitmap.region_of(first.0) == bitmap.region_of(stripe)
        });
        match open {
            Some(run) => run.push((stripe, new)),
            None => runs.push(vec![(stripe, new)]),
        }
    }
    runs
}

/// Whether `new` has all data of the stripe.
fn is_whole<D: DriveControl>(
    stripes: &Stripes<D>,
    chunk_sectors: u64,
    stripe: StripeNumber,
    new: &[NewData],
) -> bool {
    new.len() == stripes.shape(stripe).data_chunks()
        && new.iter().all(|part| part.span.count() == chunk_sectors)
}

#[cfg(test)]
mod tests {
    use voltier_block::{Buf, Bytes};

    use super::*;

    #[test]
    fn what_follows_on_a_member_is_joined_and_gaps_are_kept() {
        let write = |member, at, byte: u8| MemberWrite {
            member: MemberIndex(member),
            at: Lba(at),
            data: Payload::One(Buf::copy_of(&[byte; 1024]).freeze()),
        };
        let writes = vec![write(0, 8, 1), write(1, 8, 2), write(0, 10, 3), write(1, 12, 4)];
        let joined = join_writes(writes);
        let content = |write: &MemberWrite| -> Vec<u8> {
            write.data.pieces().iter().flat_map(|piece: &Bytes| [piece[0], piece[1023]]).collect()
        };
        let runs: Vec<_> =
            joined.iter().map(|run| (run.member.0, run.at.0, content(run))).collect();
        let expected = vec![(0, 8, vec![1, 1, 3, 3]), (1, 8, vec![2, 2]), (1, 12, vec![4, 4])];
        assert_eq!(runs, expected);
    }
}
