//! Making parity anew where it may not match, after a stop that was none: in the background.
//!
//! The array serves meanwhile. Waiting for a resync would cost minutes for every power cut, and hours
//! without a bitmap, and would not make the data safer. Until the resync is through, a lost member
//! takes along what its stripes that need a resync held, whether somebody reads them or not. A stripe
//! is made right under its lock. The stripe's region stays dirty until the region is through, so a
//! restart goes on.
//!
//! A block that cannot be read is computed from what can be, as a client's read does, and written. The rest
//! of its chunk stays what it is. A region that fails all the same is tried again every minute.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Nanos, SECTOR_BYTES};
use voltier_parity::Stores;
use voltier_ring::{Handle, Signal};

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, Region, StripeNumber, StripeSlot, each};
use crate::geometry::plan::SlotState;
use crate::members::at_once::together;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::foreground::Foreground;
use crate::stripe::ground::Ground;
use crate::stripe::stripes::{Access, Stripes};
use crate::tasks::pace::{Pacer, Pacing};
use crate::tasks::rebuild::RebuildTask;

/// Stripes that are made right at once.
const STRIPES_AT_ONCE: usize = 4;
/// Sectors of the pieces of a stripe that are made right each for itself when the whole cannot be read.
const PIECE_SECTORS: u64 = 8;
/// When regions that failed are tried again.
const RETRY_NS: Nanos = 60_000_000_000;

/// All slots of a stripe over a span.
struct Slots {
    states: Vec<SlotState>,
    /// The content that was read, and then also what was computed.
    chunks: Vec<Option<Buf>>,
}

/// The task that makes parity match where it may not.
pub(crate) struct Resync<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
    foreground: Rc<Foreground>,
    /// The pace of a rebuild is that of a resync as well.
    rebuild: Rc<RebuildTask<D>>,
    pacer: Pacer,
    is_running: Cell<bool>,
    ended: Signal,
    /// Groups whose part of a region is right although another group's is not.
    matched: RefCell<BTreeSet<(Region, GroupIndex)>>,
}

impl<D: BlockDevice> Resync<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        foreground: &Rc<Foreground>,
        rebuild: &Rc<RebuildTask<D>>,
    ) -> Rc<Self> {
        let Ground { handle, geometry, members, membership, bitmap, .. } = ground.clone();
        Rc::new(Self {
            handle,
            geometry,
            members,
            membership,
            bitmap,
            stripes: stripes.clone(),
            foreground: foreground.clone(),
            rebuild: rebuild.clone(),
            pacer: Pacer::default(),
            is_running: Cell::new(false),
            ended: Signal::new(),
            matched: RefCell::default(),
        })
    }

    /// Whether the parity of all of a group matches.
    pub(crate) fn is_matched(&self, group: GroupIndex) -> bool {
        let (matched, mut from) = (self.matched.borrow(), Region(0));
        while let Some(region) = self.bitmap.next_to_resync(from) {
            if !matched.contains(&(region, group)) {
                return false;
            }
            from = region + 1;
        }
        true
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
        self.pacer.start(self.handle.now());
        let (resync, handle) = (Rc::downgrade(self), self.handle.clone());
        drop(self.handle.spawn(async move {
            let mut from = Region(0);
            let in_service = || resync.upgrade().filter(|resync| !resync.members.is_superseded());
            // Between two regions nothing keeps the task.
            while let Some(resync) = in_service() {
                match resync.resync_next(from).await {
                    Some(next) => from = next,
                    None => {
                        resync.end();
                        break;
                    }
                }
            }
            let is_left = |resync: &Rc<Self>| {
                resync.bitmap.next_to_resync(Region(0)).is_some() && !resync.membership.is_closed()
            };
            if in_service().as_ref().is_some_and(is_left) {
                handle.sleep(RETRY_NS).await;
                in_service().filter(is_left).iter().for_each(Self::begin);
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
        if self.resync_region(region).await {
            self.bitmap.note_resynced(region);
            self.bitmap.begin_rounds();
        }
        Some(region + 1)
    }

    /// Makes the stripes of a region right; whether all of them are.
    async fn resync_region(self: &Rc<Self>, region: Region) -> bool {
        let sectors = self.bitmap.regions().sectors_of(region);
        let first_of = |at| self.geometry.stripe_of(GroupIndex::FIRST, self.geometry.row_at(at));
        let stripes: Vec<StripeNumber> =
            each(first_of(sectors.start)..first_of(sectors.end())).collect();
        let mut failed = BTreeSet::new();
        for stripes in stripes.chunks(STRIPES_AT_ONCE) {
            self.await_turn().await;
            if self.membership.is_closed() {
                return false;
            }
            let begun = self.handle.now();
            let bytes = stripes.len() as u64 * self.geometry.chunk_sectors() * SECTOR_BYTES;
            self.pacer.begin(begun, bytes);
            let tasks = stripes.iter().map(|stripe| self.clone().resync_stripe(*stripe));
            let results = together(&self.handle, tasks.collect()).await;
            self.pacer.end(self.handle.now(), begun, bytes);
            let results = stripes.iter().zip(results).filter(|(_, result)| result.is_err());
            failed.extend(results.map(|(stripe, _)| self.geometry.group_of(*stripe)));
        }
        let mut matched = self.matched.borrow_mut();
        for group in self.geometry.groups().filter(|group| !failed.contains(group)) {
            matched.insert((region, group));
        }
        if failed.is_empty() {
            matched.retain(|(other, _)| *other != region);
        }
        failed.is_empty()
    }

    /// Waits until the next stripes may be read beside requests, or the array is being stopped.
    async fn await_turn(&self) {
        while !self.membership.is_closed() {
            self.pacer.set_pace_if_new(self.rebuild.pace());
            match self.pacer.pacing(self.handle.now(), &self.foreground) {
                Pacing::Go => return,
                Pacing::WaitUntil(until_ns) => self.handle.sleep_until(until_ns).await,
            }
        }
    }

    /// Makes the parity of a stripe match its data. Data that are lost are what parity says.
    async fn resync_stripe(self: Rc<Self>, stripe: StripeNumber) -> IoResult<()> {
        let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
        let _guard = self.stripes.lock(stripe, whole, Access::Exclusive).await;
        if self.stripes.is_idle(stripe) {
            return Ok(());
        }
        match self.resync_span(stripe, whole, false).await {
            Err(IoError::Medium) => {}
            result => return result,
        }
        let mut result = Ok(());
        for start in (0..whole.end).step_by(PIECE_SECTORS as usize) {
            let piece = Span { start, end: (start + PIECE_SECTORS).min(whole.end) };
            result = result.and(self.resync_span(stripe, piece, true).await);
        }
        result
    }

    /// The same for a span of a stripe; `is_computed` says what becomes of blocks that cannot be read.
    async fn resync_span(
        &self,
        stripe: StripeNumber,
        span: Span,
        is_computed: bool,
    ) -> IoResult<()> {
        let Slots { states, mut chunks } = self.read(stripe, span, is_computed).await?;
        let data_chunks = self.stripes.shape(stripe).data_chunks();
        if chunks[..data_chunks].iter().any(Option::is_none) {
            self.stripes.compute_rest(stripe, span, &states, &mut chunks);
        }
        let data = StripeSlot::all(data_chunks).zip(&chunks);
        let data = data.filter_map(|(slot, chunk)| Some((slot, chunk.as_ref()?)));
        self.stripes.check_computed(stripe, span, &states, data).await?;
        let data = chunks[..data_chunks].iter().flatten().map(|buf| &buf[..]);
        let data: Vec<&[u8]> = data.collect();
        let parity_count = self.geometry.parity_chunks();
        let mut parities: Vec<Buf> = (0..parity_count).map(|_| Buf::new(span.bytes())).collect();
        let mut slices: Vec<&mut [u8]> = parities.iter_mut().map(|buf| &mut buf[..]).collect();
        self.stripes.code_of(stripe).encode(&data, &mut slices, Stores::Cached);
        let (mut writes, mut right_parities) = (Vec::new(), BTreeSet::new());
        let mut write = |slot: StripeSlot, content: Buf| {
            let member = self.stripes.shape(stripe).member_of(stripe, slot);
            let at = self.geometry.member_lba(stripe, span.start);
            if states[slot.0] == SlotState::Unreadable {
                self.members.note_repair(member);
            }
            let members = self.members.clone();
            writes.push(members.write(member, at, content.into(), Durability::Cached));
        };
        for (slot, parity) in StripeSlot::all(states.len()).skip(data_chunks).zip(parities) {
            let is_right = chunks[slot.0].as_ref().is_some_and(|before| before[..] == parity[..]);
            let is_wrong = states[slot.0] == SlotState::Online && !is_right;
            if is_right {
                right_parities.insert(slot.0);
            }
            if is_wrong {
                self.members.counters().add(|counts| counts.resynced_chunks += 1);
            }
            if is_wrong || states[slot.0] == SlotState::Unreadable {
                write(slot, parity);
            }
        }
        let data_slots = StripeSlot::all(data_chunks);
        for slot in data_slots.filter(|slot| states[slot.0] == SlotState::Unreadable) {
            chunks[slot.0].take().into_iter().for_each(|content| write(slot, content));
        }
        let results = together(&self.handle, writes).await;
        results.into_iter().collect::<IoResult<()>>()?;
        // Blocks that were not written are right as they were read.
        let is_online = |slot: &usize| states[*slot] == SlotState::Online;
        let read = (0..states.len()).filter(is_online);
        let read = read.filter(|slot| *slot < data_chunks || right_parities.contains(slot));
        let read = read.filter_map(|at| Some((StripeSlot(at), &chunks[at].as_ref()?[..])));
        self.stripes.adopt(stripe, span, read).await;
        Ok(())
    }

    /// Reads a span of all slots that can be read.
    ///
    /// # Errors
    /// When a slot cannot be read, unless the slot is to be computed and can be.
    async fn read(&self, stripe: StripeNumber, span: Span, is_computed: bool) -> IoResult<Slots> {
        let mut unreadable = Vec::new();
        loop {
            let states = self.stripes.slot_states(stripe, &unreadable)?;
            match self.stripes.read_online(stripe, span, &states).await {
                Ok(chunks) => return Ok(Slots { states, chunks }),
                Err(failed) if is_computed => unreadable.extend(failed),
                Err(_) => return Err(IoError::Medium),
            }
        }
    }
}
