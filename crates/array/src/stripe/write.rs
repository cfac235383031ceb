//! Writes of requests: a request is cut into stripes, small parts are merged, and whole stripes joined.

use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoResult, Payload, PayloadCursor, SectorRange};
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::{Geometry, Part};
use crate::geometry::numbers::StripeNumber;
use crate::journal::ledger::Ledger;
use crate::journal::transaction::Journal;
use crate::members::at_once::at_once;
use crate::members::long_transfer::longest_run;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::merge::batch::batches_of;
use crate::stripe::merge::merger::{Arrival, Merger};
use crate::stripe::new_data::{NewData, SmallWrite};
use crate::stripe::runs::{Run, runs_of};
use crate::stripe::stripe_writer::StripeWriter;
use crate::stripe::stripes::Stripes;

/// The parts of a request that are written at once.
enum Work {
    Run(Run),
    /// A part of a stripe, which others may go with.
    Small(Arrival),
}

/// Writes for requests.
pub(crate) struct Writer<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    bitmap: Rc<Bitmap<D>>,
    journal: Rc<Journal<D>>,
    stripes: Rc<Stripes<D>>,
    writer: Rc<StripeWriter<D>>,
    merger: Rc<Merger<D>>,
}

impl<D: BlockDevice> Writer<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        writer: &Rc<StripeWriter<D>>,
        merger: &Rc<Merger<D>>,
    ) -> Self {
        let Ground { handle, geometry, members, bitmap, journal, .. } = ground.clone();
        Self {
            handle,
            geometry,
            members,
            bitmap,
            journal,
            stripes: stripes.clone(),
            writer: writer.clone(),
            merger: merger.clone(),
        }
    }

    /// Writes a range. When the old content cannot be read because members do not answer at all, the cause may
    /// pass: the write waits for that, but not for long.
    pub(crate) async fn write(
        self: &Rc<Self>,
        range: SectorRange,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let request = async || self.write_once(range, data.clone(), durability).await;
        self.members.with_patience(request).await
    }

    /// Writes a range; beside a capacity expansion to its end, whoever waits.
    async fn write_once(
        self: &Rc<Self>,
        range: SectorRange,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let Some(fence) = self.stripes.fence() else {
            return self.write_inside(range, data, durability).await;
        };
        let (writer, fence) = (self.clone(), fence.clone());
        let write = async move {
            let _pass = fence.pass(range).await?;
            writer.write_inside(range, data, durability).await
        };
        self.handle.finish(write).await
    }

    /// Writes a range of which nothing is being moved.
    async fn write_inside(
        self: &Rc<Self>,
        range: SectorRange,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let stream = self.merger.stream_of(range);
        if let Some(Part { stripe, slot, span }) = self.stripes.only_part(range) {
            let parts = vec![NewData { slot, span, data: data.into_bytes() }];
            let Some(stream) = stream else {
                return self.write_to_the_end(stripe, parts, durability).await;
            };
            let small = SmallWrite { stripe, range, parts, durability };
            return self.merger.write_arrived(self.merger.arrive(stream, small, 0)).await;
        }
        let mut works = Vec::new();
        let mut rest = Vec::new();
        let (mut pieces, mut start, mut alone) = (PayloadCursor::new(data), range.start, 0);
        let stripe_sectors = self.geometry.stripe_sectors();
        for parts in self.stripes.parts(range).chunk_by(|one, next| one.stripe == next.stripe) {
            let stripe = parts[0].stripe;
            let count = parts.iter().map(|part| part.span.count()).sum();
            let range = SectorRange::new(start, count);
            start = range.end();
            let new = parts.iter().map(|&Part { slot, span, .. }| NewData {
                slot,
                span,
                data: pieces.take(span.bytes()),
            });
            let parts: Vec<NewData> = new.collect();
            match stream.filter(|_| count < stripe_sectors) {
                Some(stream) => {
                    let small = SmallWrite { stripe, range, parts, durability };
                    let arrival = self.merger.arrive(stream, small, alone);
                    alone += u32::from(matches!(arrival, Arrival::Alone(..)));
                    works.push(Work::Small(arrival));
                }
                // Of one request only the end of a chunk and the start of the next may be far apart.
                None if parts.len() == 2 => {
                    rest.extend(batches_of(parts).into_iter().map(|new| (stripe, new)));
                }
                None => rest.push((stripe, parts)),
            }
        }
        works.extend(self.runs_of(rest).into_iter().map(Work::Run));
        let work = |work| {
            let array = self.clone();
            async move {
                match work {
                    Work::Small(arrival) => array.merger.write_arrived(arrival).await,
                    Work::Run(run) => array.write_joined(run, durability).await,
                }
            }
        };
        at_once(&self.handle, works.into_iter().map(work)).await.into_iter().collect()
    }

    /// A stripe, or several whole ones.
    async fn write_joined(self: &Rc<Self>, mut run: Run, durability: Durability) -> IoResult<()> {
        if run.len() > 1 {
            return self.handle.finish(self.writer.clone().write_run(run, durability)).await;
        }
        let (stripe, new) = run.pop().expect("a run has a stripe");
        self.write_to_the_end(stripe, new, durability).await
    }

    /// A stripe once begun is finished also when nobody waits.
    async fn write_to_the_end(
        self: &Rc<Self>,
        stripe: StripeNumber,
        new: Vec<NewData>,
        durability: Durability,
    ) -> IoResult<()> {
        self.handle.finish(self.writer.clone().write_stripe(stripe, new, durability)).await
    }

    /// Rows that are written as one, at most: members and the journal take them at once.
    fn rows_of_run_max(&self) -> usize {
        let mut sectors = longest_run(&self.members);
        let mut rows = u64::MAX;
        let width = self.geometry.width();
        if let Some(sectors_max) = self.journal.run_sectors_max(width) {
            sectors = sectors.min(sectors_max);
            rows = Ledger::run_rows_max(width);
        }
        (sectors / self.geometry.chunk_sectors()).min(rows).max(1) as usize
    }

    fn runs_of(&self, writes: Run) -> Vec<Run> {
        let rows_max = if writes.len() > 1 { self.rows_of_run_max() } else { 1 };
        runs_of(&self.stripes, &self.geometry, &self.bitmap, rows_max, writes)
    }
}
