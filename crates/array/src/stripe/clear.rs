//! Discards and writes of zeroes. Whole stripes go by a command to each member, for the parity of zeroes
//! is zero. Parts of stripes go as writes, or not at all.

use std::ops::Range;
use std::rc::Rc;

use voltier_block::{DriveControl, IoResult, Lba, Payload, SECTOR_BYTES, SectorRange};
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, MemberIndex, StripeNumber, StripeSlot, count, each};
use crate::journal::ring::{Content, Piece};
use crate::journal::transaction::Journal;
use crate::members::at_once::together;
use crate::members::clear::Clear;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::stripes::{Access, Stripes};
use crate::stripe::write::Writer;

/// Stripes that are locked at once.
const STRIPES_AT_ONCE: u64 = 1024;

/// Clears ranges for requests.
pub(crate) struct Clearer<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    journal: Rc<Journal<D>>,
    stripes: Rc<Stripes<D>>,
    writer: Rc<Writer<D>>,
}

impl<D: DriveControl> Clearer<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        writer: &Rc<Writer<D>>,
    ) -> Self {
        let Ground { handle, geometry, members, bitmap, journal, .. } = ground.clone();
        let (stripes, writer) = (stripes.clone(), writer.clone());
        Self { handle, geometry, members, bitmap, journal, stripes, writer }
    }

    pub(crate) async fn clear(self: &Rc<Self>, range: SectorRange, clear: Clear) -> IoResult<()> {
        if self.stripes.two_shapes().is_some() {
            return self.clear_beside(range, clear).await;
        }
        let stripe_sectors = self.geometry.stripe_sectors();
        let first = StripeNumber(range.start.0.div_ceil(stripe_sectors));
        let end = StripeNumber(range.end().0 / stripe_sectors);
        if first >= end {
            return self.clear_part(range, clear).await;
        }
        let (first_lba, end_lba) = (Lba(first.0 * stripe_sectors), Lba(end.0 * stripe_sectors));
        let before = SectorRange::new(range.start, first_lba.0 - range.start.0);
        let behind = SectorRange::new(end_lba, range.end().0 - end_lba.0);
        self.clear_part(before, clear).await?;
        let mut start = first;
        while start < end {
            let stripes = start..self.end_of_run(start).min(end);
            start = stripes.end;
            // Regions that were never written read as zeroes already.
            if !self.bitmap.is_blank(stripes.start) {
                // A task of its own: members are cleared together, whether somebody waits or not.
                self.handle.spawn(self.clone().clear_stripes(stripes, clear)).await?;
            }
        }
        self.clear_part(behind, clear).await
    }

    /// Clears a range beside a capacity expansion, a stripe at a time. Discards are left out: what they leave
    /// is anything.
    async fn clear_beside(self: &Rc<Self>, range: SectorRange, clear: Clear) -> IoResult<()> {
        let Clear::Zeroes(durability) = clear else { return Ok(()) };
        let chunk_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
        for range in range.split_at_multiples(self.geometry.stripe_sectors()) {
            let data = Payload::zeroes(range.bytes(), chunk_bytes);
            self.writer.write(range, data, durability).await?;
        }
        Ok(())
    }

    /// Up to which stripe those from `start` on are locked at once: all in one region.
    fn end_of_run(&self, start: StripeNumber) -> StripeNumber {
        let end = start + STRIPES_AT_ONCE;
        if !self.bitmap.is_durable() {
            return end;
        }
        let groups = self.geometry.group_count() as u64;
        let in_region =
            self.members.regions().region_sectors() / self.geometry.chunk_sectors() * groups;
        end.min(StripeNumber((start.0 / in_region + 1) * in_region))
    }

    /// Less than a stripe, or the ends of two.
    async fn clear_part(self: &Rc<Self>, range: SectorRange, clear: Clear) -> IoResult<()> {
        if range.is_empty() {
            return Ok(());
        }
        match clear {
            Clear::Zeroes(durability) => {
                let chunk_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
                for range in range.split_at_multiples(self.geometry.stripe_sectors()) {
                    if !self.bitmap.is_blank(self.geometry.place_of(range.start).stripe) {
                        self.writer
                            .write(range, Payload::zeroes(range.bytes(), chunk_bytes), durability)
                            .await?;
                    }
                }
                Ok(())
            }
            Clear::Discard if self.geometry.parity_chunks() > 0 && !self.geometry.is_mirror() => {
                Ok(())
            }
            // Without parity, and on copies, parts stand for themselves.
            Clear::Discard => {
                let parts: Vec<_> = self.geometry.parts(range).collect();
                let slots = |slot| {
                    if self.geometry.is_mirror() {
                        StripeSlot::all(self.geometry.width()).collect()
                    } else {
                        vec![slot]
                    }
                };
                for part in parts.into_iter().filter(|part| !self.bitmap.is_blank(part.stripe)) {
                    let whole = self.handle.spawn(self.clone().clear_span(
                        part.stripe,
                        slots(part.slot),
                        part.span,
                        clear,
                    ));
                    whole.await?;
                }
                Ok(())
            }
        }
    }

    /// The same span of some slots of a stripe.
    async fn clear_span(
        self: Rc<Self>,
        stripe: StripeNumber,
        slots: Vec<StripeSlot>,
        span: Span,
        clear: Clear,
    ) -> IoResult<()> {
        let _entered = self.bitmap.enter(stripe).await?;
        let _guard = self.stripes.lock(stripe, span, Access::Exclusive).await;
        let group = self.geometry.group_of(stripe);
        self.members.check_group(group)?;
        let range = SectorRange::new(self.geometry.member_lba(stripe, span.start), span.count());
        let slots = slots.into_iter();
        let members = slots.map(|slot| self.geometry.member_of(stripe, slot)).collect();
        self.clear_members(group, members, range, clear).await
    }

    /// Whole stripes of one region: the rows of each group are one range of its members.
    async fn clear_stripes(
        self: Rc<Self>,
        stripes: Range<StripeNumber>,
        clear: Clear,
    ) -> IoResult<()> {
        let _entered = self.bitmap.enter(stripes.start).await?;
        let chunk = Span { start: 0, end: self.geometry.chunk_sectors() };
        let mut guards = Vec::new();
        // Ascending, and nobody else holds two: no two of these wait for each other.
        for stripe in each(stripes.clone()) {
            guards.push(self.stripes.lock(stripe, chunk, Access::Exclusive).await);
        }
        let groups = self.geometry.group_count() as u64;
        let mut clears = Vec::new();
        for first in each(stripes.clone()).take(groups as usize) {
            let group = self.geometry.group_of(first);
            self.members.check_group(group)?;
            let rows = count(&(first..stripes.end)).div_ceil(groups);
            let start = self.geometry.member_lba(first, 0);
            let range = SectorRange::new(start, rows * chunk.end);
            let members = self.geometry.members_of(group).collect();
            let inner = self.clone();
            clears.push(async move { inner.clear_members(group, members, range, clear).await });
        }
        together(&self.handle, clears).await.into_iter().collect()
    }

    /// The same range of some members of a group, as one transaction.
    async fn clear_members(
        self: &Rc<Self>,
        group: GroupIndex,
        members: Vec<MemberIndex>,
        range: SectorRange,
        clear: Clear,
    ) -> IoResult<()> {
        let content = Content::Zeroes { sectors: range.count };
        let piece = |member: &MemberIndex| Piece {
            member: *member,
            at: range.start,
            content: content.clone(),
        };
        let pieces = if self.journal.is_in_service() && !canary::is(Canary::ClearsUnrecorded) {
            members.iter().map(piece).collect()
        } else {
            Vec::new()
        };
        let transaction = self.journal.begin(group, pieces).await?;
        let clear = match clear {
            Clear::Zeroes(durability) => Clear::Zeroes(transaction.in_place(durability)),
            Clear::Discard => Clear::Discard,
        };
        let clears = members.iter().map(|it| self.members.clone().clear(*it, range, clear));
        let results = together(&self.handle, clears.collect()).await;
        for (member, _) in members.iter().zip(&results).filter(|(_, result)| result.is_err()) {
            self.stripes.note_half_written(*member, range);
        }
        let cleared: IoResult<()> = results.into_iter().collect();
        let result = cleared.and_then(|()| self.members.check_group(group));
        self.journal.end(transaction, result).await
    }
}
