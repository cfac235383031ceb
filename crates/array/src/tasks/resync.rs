//! Making parity anew where it may not match, after a stop that was none: in the background.
//!
//! The array serves meanwhile. Waiting for a resync would cost minutes for every power cut, and hours
//! without a bitmap, and would not make the data safer. Until the resync is through, a lost member
//! takes along what its stripes that need a resync held, whether somebody reads them or not. A stripe
//! is made right under its lock. The stripe's region stays dirty until the region is through, so a
//! restart goes on.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult};
use voltier_parity::Stores;
use voltier_ring::{Handle, Signal};

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, Region, StripeNumber, each};
use crate::geometry::plan::{SlotState, unusable};
use crate::members::at_once::together;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::ground::Ground;
use crate::stripe::stripes::{Access, Stripes};

/// Stripes that are made right at once.
const STRIPES_AT_ONCE: usize = 4;

/// The task that makes parity match where it may not.
pub(crate) struct Resync<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
    is_running: Cell<bool>,
    ended: Signal,
}

impl<D: BlockDevice> Resync<D> {
    pub(crate) fn new(ground: &Ground<D>, stripes: &Rc<Stripes<D>>) -> Rc<Self> {
        let Ground { handle, geometry, members, membership, bitmap, .. } = ground.clone();
        let (stripes, is_running, ended) = (stripes.clone(), Cell::new(false), Signal::new());
        Rc::new(Self { handle, geometry, members, membership, bitmap, stripes, is_running, ended })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running.get()
    }

    /// Waits until the task is not running.
    pub(crate) async fn ended(&self) {
        self.ended.until(|| !self.is_running.get()).await;
    }

    /// Starts the task, if a region needs a resync.
    pub(crate) fn begin(self: &Rc<Self>) {
        if self.bitmap.next_to_resync(Region(0)).is_none() || self.is_running.replace(true) {
            return;
        }
        let resync = Rc::downgrade(self);
        drop(self.handle.spawn(async move {
            let mut from = Region(0);
            let in_service = || resync.upgrade().filter(|resync| !resync.members.is_superseded());
            // Between two regions nothing keeps the task.
            while let Some(resync) = in_service() {
                match resync.resync_next(from).await {
                    Some(next) => from = next,
                    None => return resync.end(),
                }
            }
        }));
    }

    fn end(&self) {
        self.is_running.set(false);
        self.ended.notify();
    }

    /// Makes the next region right; where to go on, if there is more.
    async fn resync_next(self: &Rc<Self>, from: Region) -> Option<Region> {
        let region = self.bitmap.next_to_resync(from)?;
        if self.membership.is_closed() {
            return None;
        }
        // A region that cannot be read cannot be made right: it still needs a resync, and the others go
        // on.
        if self.resync_region(region).await.is_ok() {
            self.bitmap.note_resynced(region);
            self.bitmap.begin_rounds();
        }
        Some(region + 1)
    }

    async fn resync_region(self: &Rc<Self>, region: Region) -> IoResult<()> {
        let sectors = self.bitmap.regions().sectors_of(region);
        let first_of = |at| self.geometry.stripe_of(GroupIndex::FIRST, self.geometry.row_at(at));
        let stripes: Vec<StripeNumber> =
            each(first_of(sectors.start)..first_of(sectors.end())).collect();
        for stripes in stripes.chunks(STRIPES_AT_ONCE) {
            if self.membership.is_closed() {
                return Err(IoError::Gone);
            }
            let tasks = stripes.iter().map(|stripe| self.clone().resync_stripe(*stripe));
            let results = together(&self.handle, tasks.collect()).await;
            results.into_iter().collect::<IoResult<()>>()?;
        }
        Ok(())
    }

    /// Makes the parity of a stripe match its data. Data that are lost are what parity says.
    async fn resync_stripe(self: Rc<Self>, stripe: StripeNumber) -> IoResult<()> {
        let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
        let _guard = self.stripes.lock(stripe, whole, Access::Exclusive).await;
        if self.stripes.is_idle(stripe) {
            return Ok(());
        }
        let states = self.stripes.slot_states(stripe, &[])?;
        let online = (0..states.len()).filter(|&slot| states[slot] == SlotState::Online);
        let reads: Vec<(usize, Span)> = online.map(|slot| (slot, whole)).collect();
        let read = self.stripes.read_slots(stripe, &reads).await.map_err(|_| IoError::Medium)?;
        let mut chunks: Vec<Option<Buf>> = states.iter().map(|_| None).collect();
        for ((slot, _), buf) in reads.into_iter().zip(read) {
            chunks[slot] = Some(buf);
        }
        let data_chunks = self.stripes.shape(stripe).data_chunks();
        if chunks[..data_chunks].iter().any(Option::is_none) {
            let decoder = self.stripes.decoder(stripe, &unusable(&states));
            let source = |slot: &usize| &chunks[*slot].as_ref().expect("a source is online")[..];
            let sources: Vec<&[u8]> = decoder.sources().iter().map(source).collect();
            let mut targets: Vec<Buf> =
                decoder.targets().iter().map(|_| Buf::new(whole.bytes())).collect();
            let mut slices: Vec<&mut [u8]> = targets.iter_mut().map(|buf| &mut buf[..]).collect();
            decoder.decode(&sources, &mut slices);
            for (slot, buf) in decoder.targets().iter().zip(targets) {
                chunks[*slot] = Some(buf);
            }
        }
        let data = chunks[..data_chunks].iter().flatten().map(|buf| &buf[..]);
        let data: Vec<&[u8]> = data.collect();
        let parity_count = self.geometry.parity_chunks();
        let mut parities: Vec<Buf> = (0..parity_count).map(|_| Buf::new(whole.bytes())).collect();
        let mut slices: Vec<&mut [u8]> = parities.iter_mut().map(|buf| &mut buf[..]).collect();
        self.stripes.code_of(stripe).encode(&data, &mut slices, Stores::Cached);
        let mut writes = Vec::new();
        for (index, parity) in parities.into_iter().enumerate() {
            let slot = data_chunks + index;
            let is_right = chunks[slot].as_ref().is_some_and(|before| before[..] == parity[..]);
            if states[slot] == SlotState::Online && !is_right {
                self.members.counters().add(|counts| counts.resynced_chunks += 1);
                let member = self.stripes.shape(stripe).member_of(stripe, slot);
                let at = self.geometry.member_lba(stripe, 0);
                writes.push(self.members.clone().write(
                    member,
                    at,
                    parity.into(),
                    Durability::Cached,
                ));
            }
        }
        let results = together(&self.handle, writes).await;
        results.into_iter().collect()
    }
}
