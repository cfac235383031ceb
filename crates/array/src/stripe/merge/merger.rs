//! Small writes that wait for each other, and go as one.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{BlockDevice, Durability, IoResult, Nanos, SectorRange};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::geometry::chunks::{Geometry, Stripe};
use crate::members::at_once::at_once;
use crate::members::member_set::MemberSet;
use crate::stripe::ground::Ground;
use crate::stripe::merge::batch::{MergeBatch, batches_of};
use crate::stripe::merge::policy::{MergeMode, MergePolicy};
use crate::stripe::merge::streams::{Arrival, Streams};
use crate::stripe::new_data::{NewData, SmallWrite};
use crate::stripe::stripe_writer::StripeWriter;

/// Waits until a batch has changed, or for a time.
async fn change_or(handle: &Handle, batch: &MergeBatch, until_ns: Nanos) {
    let mut change = pin!(batch.changed.wait());
    let mut alarm = pin!(handle.sleep_until(until_ns));
    poll_fn(|context| match change.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => alarm.as_mut().poll(context),
    })
    .await;
}

/// Merges small writes before they reach their stripe.
pub(crate) struct Merger<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    writer: Rc<StripeWriter<D>>,
    streams: Streams,
    /// Where rows have two shapes no writes are merged.
    is_reshaping: bool,
}

impl<D: BlockDevice> Merger<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        writer: &Rc<StripeWriter<D>>,
        policy: MergePolicy,
        is_reshaping: bool,
    ) -> Self {
        let Ground { handle, geometry, members, .. } = ground.clone();
        Self {
            handle,
            geometry,
            members,
            writer: writer.clone(),
            streams: Streams::new(policy),
            is_reshaping,
        }
    }

    pub(crate) fn policy(&self) -> MergePolicy {
        self.streams.policy()
    }

    pub(crate) fn set_policy(&self, policy: MergePolicy) {
        self.streams.set_policy(policy);
    }

    /// The stream that a write belongs to; none while writes are not merged. Where rows have two shapes
    /// none are.
    pub(crate) fn stream_of(&self, range: SectorRange) -> Option<usize> {
        if self.streams.policy().mode == MergeMode::Off || self.is_reshaping {
            return None;
        }
        self.streams.stream_of(range, self.geometry.stripe_sectors())
    }

    /// Takes a small write of a stream in. So many parts of the same request have gone already.
    pub(crate) fn arrive(&self, stream: usize, small: SmallWrite, gone: u32) -> Arrival {
        let stripe_sectors = self.geometry.stripe_sectors();
        self.streams.arrive(stream, small, gone, stripe_sectors, || self.handle.now())
    }

    /// Writes what has arrived; a batch once begun is written also when nobody waits.
    pub(crate) async fn write_arrived(self: &Rc<Self>, arrival: Arrival) -> IoResult<()> {
        match arrival {
            Arrival::Alone(stream, small) => {
                self.handle.finish(self.clone().write_alone(stream, small)).await
            }
            Arrival::Lead(batch) => self.handle.finish(self.clone().lead(batch)).await,
            Arrival::Follow(_) if canary::is(Canary::HeldAcknowledged) => Ok(()),
            Arrival::Follow(batch) => batch.result().await,
        }
    }

    async fn write_alone(self: Rc<Self>, stream: usize, small: SmallWrite) -> IoResult<()> {
        let SmallWrite { stripe, parts, durability, .. } = small;
        let result = if parts.len() == 1 {
            self.writer.clone().write_stripe(stripe, parts, durability).await
        } else {
            self.write_batches(stripe, parts, durability).await
        };
        self.streams.ended(stream, 1, || self.handle.now());
        result
    }

    /// Waits as long as it is of use, then writes what has come.
    async fn lead(self: Rc<Self>, batch: Rc<MergeBatch>) -> IoResult<()> {
        while let Some(until_ns) = self.streams.waits_until(&batch, self.handle.now()) {
            change_or(&self.handle, &batch, until_ns).await;
        }
        let taken = self.streams.close(&batch, self.handle.now());
        let (writes, held_ns) = (taken.writes, taken.held_ns);
        self.members.counters().add(|counts| {
            counts.held_writes += u64::from(writes);
            counts.held_ns += held_ns;
            if writes > 1 {
                counts.merged_writes += u64::from(writes);
                counts.merges += 1;
            }
        });
        let result = self.write_batches(batch.stripe, taken.parts, taken.durability).await;
        self.streams.ended(batch.stream, writes, || self.handle.now());
        batch.end(result);
        result
    }

    /// Parts of a stripe in any order, over each other: later ones count.
    async fn write_batches(
        self: &Rc<Self>,
        stripe: Stripe,
        parts: Vec<NewData>,
        durability: Durability,
    ) -> IoResult<()> {
        let write = |batch| self.writer.clone().write_stripe(stripe, batch, durability);
        let writes = batches_of(parts).into_iter().map(write);
        at_once(&self.handle, writes).await.into_iter().collect()
    }
}
