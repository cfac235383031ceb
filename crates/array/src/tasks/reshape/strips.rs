//! Rows of the old shape become rows of the new one: read, put in their new order, given their parity.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{
    Buf, Bytes, DriveControl, Durability, IoError, IoResult, Lba, Payload, SECTOR_BYTES,
};
use voltier_parity::Stores;
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, MemberIndex, Row, Section, StripeSlot, count, each};
use crate::members::at_once::together;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::mend::Mender;
use crate::stripe::stripes::Stripes;
use crate::stripe::two_shapes::TwoShapes;
use crate::tasks::background::run_bytes_max;

/// The bytes of the volume that are read and written at once, if one block of each chunk is not more.
const STRIP_BYTES: u64 = 8 << 20;
/// The smallest part of a chunk that is moved, in sectors: the largest block of a member.
const BLOCK_SECTORS: u64 = 8;

/// Sections that are moved at once, and the part of their chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    pub(crate) sections: Range<Section>,
    pub(crate) span: Span,
}

/// The content that members will have: of each the rows of a strip, one behind the other.
pub(crate) struct Filled {
    pub(crate) rows: Range<Row>,
    pub(crate) span: Span,
    pub(crate) members: Vec<Bytes>,
}

/// Cuts sections into strips that are not too long for memory.
pub(crate) fn strips(two: &TwoShapes, sections: Range<Section>) -> Vec<Strip> {
    let chunk_sectors = two.shapes().before.chunk_sectors();
    let chunks = two.shapes().section_rows() * (two.shapes().section_rows() + 1);
    let at_once = STRIP_BYTES / (chunks * chunk_sectors * SECTOR_BYTES);
    let sectors = STRIP_BYTES / (chunks * SECTOR_BYTES) / BLOCK_SECTORS * BLOCK_SECTORS;
    let sectors = sectors.clamp(BLOCK_SECTORS, chunk_sectors);
    let mut strips = Vec::new();
    for start in each(sections.clone()).step_by(at_once.max(1) as usize) {
        let sections = start..(start + at_once.max(1)).min(sections.end);
        strips
            .extend(spans(two, 0, sectors).map(|span| Strip { sections: sections.clone(), span }));
    }
    strips
}

/// A chunk from a sector on, in parts of so many.
pub(crate) fn spans(
    two: &TwoShapes,
    from: u64,
    sectors: u64,
) -> impl Iterator<Item = Span> + use<> {
    let end = two.shapes().before.chunk_sectors();
    let starts = (from..end).step_by(sectors as usize);
    starts.map(move |start| Span { start, end: (start + sectors).min(end) })
}

/// Reads and writes strips.
pub(crate) struct Restriper<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
    mender: Rc<Mender<D>>,
}

impl<D: DriveControl> Restriper<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        mender: &Rc<Mender<D>>,
    ) -> Rc<Self> {
        let Ground { handle, geometry, members, bitmap, .. } = ground.clone();
        let (stripes, mender) = (stripes.clone(), mender.clone());
        Rc::new(Self { handle, geometry, members, bitmap, stripes, mender })
    }

    /// Reads a strip in its old shape and makes the rows of the new one of it.
    ///
    /// # Errors
    /// When a part of it can neither be read nor computed.
    pub(super) async fn strip_in_new_shape(
        self: &Rc<Self>,
        two: &TwoShapes,
        strip: &Strip,
    ) -> IoResult<Filled> {
        let window =
            two.shapes().window(strip.sections.start, strip.sections.end - strip.sections.start);
        let chunks = self.old_chunks(&two.shapes().before, window.old_rows, strip.span).await?;
        Ok(self.new_rows(&two.shapes().after, window.new_rows, strip.span, chunks))
    }

    /// The same span of all chunks of data of some rows, in the order of the volume.
    pub(super) async fn old_chunks(
        self: &Rc<Self>,
        before: &Geometry,
        rows: Range<Row>,
        span: Span,
    ) -> IoResult<Vec<Bytes>> {
        if self.is_plain(&rows, span)
            && let Ok(chunks) = self.long_chunks(before, &rows).await
        {
            return Ok(chunks);
        }
        let reads = each(rows).map(|row| {
            let (inner, before) = (self.clone(), before.clone());
            async move { inner.row_chunks(&before, row, span).await }
        });
        let mut chunks = Vec::new();
        for row in together(&self.handle, reads.collect()).await {
            chunks.extend(row?);
        }
        Ok(chunks)
    }

    /// Whether whole rows of all members can be read as they are.
    fn is_plain(&self, rows: &Range<Row>, span: Span) -> bool {
        let are_read =
            self.members.iter().all(|member| member.is_online() && !member.vitals().is_avoided());
        let is_whole = span.count() == self.geometry.chunk_sectors();
        is_whole && are_read && !self.stripes.has_half_written(GroupIndex::FIRST, rows.clone())
    }

    /// Whole rows, in long runs of each member.
    async fn long_chunks(
        self: &Rc<Self>,
        before: &Geometry,
        rows: &Range<Row>,
    ) -> IoResult<Vec<Bytes>> {
        let chunk_bytes = (before.chunk_sectors() * SECTOR_BYTES) as usize;
        let at_once = (self.run_bytes_max() / chunk_bytes as u64).max(1);
        let runs = each(rows.clone()).step_by(at_once as usize);
        let runs: Vec<_> = runs.map(|start| start..(start + at_once).min(rows.end)).collect();
        let members: Vec<MemberIndex> = MemberIndex::all(before.member_count()).collect();
        let read = |rows: &Range<Row>| {
            let (inner, members, rows) = (self.clone(), members.clone(), rows.clone());
            async move { inner.stripes.read_rows(&members, &rows).await }
        };
        let mut known = BTreeMap::new();
        let results = together(&self.handle, runs.iter().map(read).collect()).await;
        for (rows, read) in runs.iter().zip(results) {
            for (member, bytes) in members.iter().zip(read?) {
                let bytes = bytes.freeze();
                for (index, row) in each(rows.clone()).enumerate() {
                    let chunk = bytes.slice(index * chunk_bytes..(index + 1) * chunk_bytes);
                    known.insert((row, *member), chunk);
                }
            }
        }
        let zeroes = Buf::zeroed(chunk_bytes).freeze();
        let chunk = |(row, column): (Row, usize)| {
            let stripe = before.stripe_of(GroupIndex::FIRST, row);
            let member = before.member_of(stripe, before.slot_of_column(stripe, column));
            // Members do not hold the content of stripes that were never written.
            let is_blank = self.bitmap.is_blank(stripe);
            if is_blank { zeroes.clone() } else { known[&(row, member)].clone() }
        };
        let columns = before.data_chunks();
        let all = each(rows.clone()).flat_map(|row| (0..columns).map(move |column| (row, column)));
        Ok(all.map(chunk).collect())
    }

    /// A span of the chunks of one row, whatever of it is lost.
    async fn row_chunks(
        self: &Rc<Self>,
        before: &Geometry,
        row: Row,
        span: Span,
    ) -> IoResult<Vec<Bytes>> {
        let (stripe, columns) = (before.stripe_of(GroupIndex::FIRST, row), before.data_chunks());
        if self.bitmap.is_blank(stripe) {
            return Ok(vec![Buf::zeroed(span.bytes()).freeze(); columns]);
        }
        let slots = self.mender.mend_stripe(stripe, span, &[]).await?;
        let slots: Vec<Bytes> = slots.into_iter().map(Buf::freeze).collect();
        let slot = |column| slots[before.slot_of_column(stripe, column).0].clone();
        Ok((0..columns).map(slot).collect())
    }

    /// Rows of the new shape with these chunks; what is behind the last one is zero.
    fn new_rows(
        &self,
        after: &Geometry,
        rows: Range<Row>,
        span: Span,
        chunks: Vec<Bytes>,
    ) -> Filled {
        let (data_chunks, bytes) = (after.data_chunks(), span.bytes());
        let count = count(&rows) as usize;
        let new = |_| Buf::zeroed(count * bytes);
        let mut members: Vec<Buf> = (0..after.member_count()).map(new).collect();
        let zeroes = Buf::zeroed(bytes).freeze();
        let mut chunks = chunks.into_iter();
        for (index, row) in each(rows.clone()).enumerate() {
            let stripe = after.stripe_of(GroupIndex::FIRST, row);
            let mut data = vec![zeroes.clone(); data_chunks];
            for column in 0..data_chunks {
                let Some(chunk) = chunks.next() else { break };
                data[after.slot_of_column(stripe, column).0] = chunk;
            }
            let sources: Vec<&[u8]> = data.iter().map(|chunk| &chunk[..]).collect();
            let parity = |_| Buf::new(bytes);
            let mut parities: Vec<Buf> = (0..after.parity_chunks()).map(parity).collect();
            let mut slices: Vec<&mut [u8]> = parities.iter_mut().map(|it| &mut it[..]).collect();
            self.stripes.code().encode(&sources, &mut slices, Stores::Cached);
            let slots = sources.into_iter().chain(parities.iter().map(|parity| &parity[..]));
            let owners = after.slot_members(stripe);
            for (slot, chunk) in StripeSlot::all(after.width()).zip(slots) {
                let member = owners.member_of(slot);
                members[member.0][index * bytes..(index + 1) * bytes].copy_from_slice(chunk);
            }
        }
        Filled { rows, span, members: members.into_iter().map(Buf::freeze).collect() }
    }

    /// Writes rows to their members, in place.
    ///
    /// # Errors
    /// When a member does not take them that cannot be lost.
    pub(super) async fn write_rows(self: &Rc<Self>, filled: &Filled) -> IoResult<()> {
        let members = self.members.indexes().zip(&filled.members);
        let writes = members.flat_map(|(member, bytes)| {
            let pieces = self.pieces_of_rows(filled, bytes);
            pieces.into_iter().map(move |(at, piece)| (member, at, piece))
        });
        let write = |(member, at, piece)| {
            self.members.clone().write(member, at, Payload::One(piece), Durability::Cached)
        };
        let results = together(&self.handle, writes.map(write).collect()).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.members.check_group(GroupIndex::FIRST)
    }

    /// The content of one member in some rows, as it is written: whole rows in long runs.
    fn pieces_of_rows(&self, filled: &Filled, bytes: &Bytes) -> Vec<(Lba, Bytes)> {
        let chunk_sectors = self.geometry.chunk_sectors();
        let chunk_bytes = chunk_sectors * SECTOR_BYTES;
        let Filled { rows, span, .. } = filled;
        let is_whole = span.count() == chunk_sectors;
        let longest = if is_whole { self.run_bytes_max() / chunk_bytes * chunk_bytes } else { 0 };
        let piece_bytes = (longest as usize).max(span.bytes());
        let pieces = (0..bytes.len()).step_by(piece_bytes);
        let piece = |start: usize| {
            let row = rows.start + (start / span.bytes()) as u64;
            let at = self.geometry.lba_of_row(row).plus(span.start);
            (at, bytes.slice(start..(start + piece_bytes).min(bytes.len())))
        };
        pieces.map(piece).collect()
    }

    /// The bytes that all members take at once.
    fn run_bytes_max(&self) -> u64 {
        run_bytes_max(&self.geometry, &self.members, GroupIndex::FIRST)
    }

    /// # Errors
    /// When a part of some rows can neither be read nor computed.
    pub(super) async fn check_readable(
        self: &Rc<Self>,
        two: &TwoShapes,
        sections: Range<Section>,
    ) -> Result<(), IoError> {
        for strip in strips(two, sections) {
            self.strip_in_new_shape(two, &strip).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reshape_record::ReshapeRecord;
    use crate::geometry::level::{Layout, Level};
    use crate::geometry::shapes::Shapes;

    #[test]
    fn strips_are_all_of_the_chunks_of_all_sections_and_of_bounded_length() {
        for (members, chunk_bytes) in [(3, 4096), (4, 1 << 16), (12, 1 << 16), (63, 1 << 20)] {
            let geometry =
                Geometry::new(Level::Raid5, Layout::default(), members, chunk_bytes, 1 << 30);
            let shapes = geometry.expect("possible").with_member().expect("possible");
            let shapes = Shapes::of(&shapes).expect("possible");
            let moving = TwoShapes::new(shapes, ReshapeRecord::default()).expect("possible");
            let strips = strips(&moving, Section(5)..Section(50));
            let chunks = moving.shapes().section_rows() * (moving.shapes().section_rows() + 1);
            let mut next = (Section(5), 0);
            for Strip { sections, span } in strips {
                assert_eq!((sections.start, span.start), next);
                let bytes = (sections.end - sections.start) * chunks * span.count() * SECTOR_BYTES;
                assert!(bytes <= STRIP_BYTES.max(chunks * 4096));
                assert!(span.start.is_multiple_of(8) && span.end.is_multiple_of(8));
                let is_whole = span.end == chunk_bytes / SECTOR_BYTES;
                next = if is_whole { (sections.end, 0) } else { (sections.start, span.end) };
            }
            assert_eq!(next, (Section(50), 0));
        }
    }
}
