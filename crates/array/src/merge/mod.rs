//! Merging of small writes: writes of less than a stripe wait for those behind them, and one write of the
//! stripe does for all. On RAID 6 with eight chunks of data, 32 writes that fill a stripe take 10 device
//! I/Os together, and 192 one by one.
//!
//! - `streams`: which writes follow one another, and how long they wait.
//! - `gather`: those that wait for the same stripe, and what is written of them.
//!
//! A write that waits is not acknowledged, so nothing is promised that is in memory alone. Where nobody
//! writes sequentially with several requests at once, nothing waits ([`MergeMode::Adaptive`]).

pub(crate) mod gather;
mod streams;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{BlockDevice, Durability, IoResult, Nanos, SectorRange};
use voltier_ring::Handle;

use crate::array::{Array, Inner};
use crate::canary::{self, Canary};
use crate::geometry::Stripe;
use crate::members::at_once;
use crate::write::NewData;
use gather::{Gather, batches_of};
pub(crate) use streams::Streams;

/// Which writes of less than a stripe wait for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeMode {
    /// None.
    #[default]
    Off,
    /// Those of sequential streams with several writes under way, as long as that pays.
    Adaptive,
    /// All.
    Always,
}

impl MergeMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Off, Self::Adaptive, Self::Always];

    /// The word of the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Adaptive => "adaptive",
            Self::Always => "always",
        }
    }
}

/// How small writes are merged. For levels with parity; copies and RAID 0 have nothing to gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergePolicy {
    /// Which writes wait.
    pub mode: MergeMode,
    /// How long for the next one, in nanoseconds.
    pub wait_ns: Nanos,
    /// How long in all, in nanoseconds.
    pub max_ns: Nanos,
}

impl Default for MergePolicy {
    fn default() -> Self {
        Self { mode: MergeMode::Off, wait_ns: 100_000, max_ns: 10_000_000 }
    }
}

/// New data of one stripe, less than all of it.
pub(crate) struct SmallWrite {
    pub(crate) stripe: Stripe,
    /// Where in the volume.
    pub(crate) range: SectorRange,
    /// One part of each chunk.
    pub(crate) parts: Vec<NewData>,
    pub(crate) durability: Durability,
}

/// What becomes of a small write.
pub(crate) enum Arrival {
    /// It goes, as one of a stream.
    Alone(usize, SmallWrite),
    /// It waits; who brought it sees to the gather.
    Lead(Rc<Gather>),
    /// It waits with others.
    Follow(Rc<Gather>),
}

/// Waits until a gather has changed, or for a time.
async fn change_or(handle: &Handle, gather: &Gather, until_ns: Nanos) {
    let mut change = pin!(gather.changed.wait());
    let mut alarm = pin!(handle.sleep_until(until_ns));
    poll_fn(|context| match change.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => alarm.as_mut().poll(context),
    })
    .await;
}

impl<D: BlockDevice> Inner<D> {
    /// The stream that a write belongs to; none while writes are not merged. Where rows have two shapes
    /// none are.
    pub(crate) fn stream_of(&self, range: SectorRange) -> Option<usize> {
        if self.streams.policy().mode == MergeMode::Off || self.moving.is_some() {
            return None;
        }
        self.streams.stream_of(range, self.geometry.stripe_sectors())
    }

    /// Takes a small write of a stream in. So many parts of the same request have gone already.
    pub(crate) fn arrive(&self, stream: usize, small: SmallWrite, gone: u32) -> Arrival {
        let stripe_sectors = self.geometry.stripe_sectors();
        self.streams.arrive(stream, small, gone, stripe_sectors, || self.handle.now())
    }

    /// Writes what has arrived; a gather once begun is written also when nobody waits.
    pub(crate) async fn write_arrived(self: &Rc<Self>, arrival: Arrival) -> IoResult<()> {
        match arrival {
            Arrival::Alone(stream, small) => {
                self.handle.finish(self.clone().write_alone(stream, small)).await
            }
            Arrival::Lead(gather) => self.handle.finish(self.clone().lead(gather)).await,
            Arrival::Follow(_) if canary::is(Canary::HeldAcknowledged) => Ok(()),
            Arrival::Follow(gather) => gather.result().await,
        }
    }

    async fn write_alone(self: Rc<Self>, stream: usize, small: SmallWrite) -> IoResult<()> {
        let SmallWrite { stripe, parts, durability, .. } = small;
        let result = if parts.len() == 1 {
            self.clone().write_stripe(stripe, parts, durability).await
        } else {
            self.write_batches(stripe, parts, durability).await
        };
        self.streams.ended(stream, 1, || self.handle.now());
        result
    }

    /// Waits as long as it is of use, then writes what has come.
    async fn lead(self: Rc<Self>, gather: Rc<Gather>) -> IoResult<()> {
        while let Some(until_ns) = self.streams.waits_until(&gather, self.handle.now()) {
            change_or(&self.handle, &gather, until_ns).await;
        }
        let taken = self.streams.close(&gather, self.handle.now());
        let (writes, held_ns) = (taken.writes, taken.held_ns);
        self.counters.add(|counts| {
            counts.held_writes += u64::from(writes);
            counts.held_ns += held_ns;
            if writes > 1 {
                counts.merged_writes += u64::from(writes);
                counts.merges += 1;
            }
        });
        let result = self.write_batches(gather.stripe, taken.parts, taken.durability).await;
        self.streams.ended(gather.stream, writes, || self.handle.now());
        gather.end(result);
        result
    }

    /// Parts of a stripe in any order, over each other: later ones count.
    async fn write_batches(
        self: &Rc<Self>,
        stripe: Stripe,
        parts: Vec<NewData>,
        durability: Durability,
    ) -> IoResult<()> {
        let write = |batch| self.clone().write_stripe(stripe, batch, durability);
        let writes = batches_of(parts).into_iter().map(write);
        at_once(&self.handle, writes).await.into_iter().collect()
    }
}

impl<D: BlockDevice> Array<D> {
    /// How small writes are merged from now on.
    pub fn set_merge_policy(&self, policy: MergePolicy) {
        let has_parity = self.0.geometry.level().has_parity();
        let mode = if has_parity { policy.mode } else { MergeMode::Off };
        self.0.streams.set_policy(MergePolicy { mode, ..policy });
    }

    /// How small writes are merged; never, by levels that have nothing to gain.
    pub fn merge_policy(&self) -> MergePolicy {
        self.0.streams.policy()
    }
}
