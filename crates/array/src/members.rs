//! The members of an array: what is sent to them, and when they are given up.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoError, IoResult, Lba, Payload, SECTOR_BYTES,
    SectorRange,
};
use voltier_ring::{Handle, JoinHandle, join_all};

use crate::array::Inner;
use crate::bits::Bits;
use crate::canary::{self, Canary};
use crate::geometry::{Span, Stripe};
use crate::member_watch::MemberWatch;
use crate::plan::SlotState;
use crate::superblock::MemberState;

/// Longest write of zeroes to a member that has no command for it.
const ZEROES_BYTES: u64 = 1 << 20;

/// What a device does not have yet, while it is filled.
pub(crate) struct Missing {
    pub(crate) regions: Bits,
    /// Those of them that are being filled: they are written, and not read.
    pub(crate) under_way: BTreeSet<u64>,
}

impl Missing {
    pub(crate) fn new(regions: Bits) -> Self {
        Self { regions, under_way: BTreeSet::new() }
    }
}

/// A device that is filled beside a member in service, to take its place.
pub(crate) struct Successor<D> {
    pub(crate) device: Rc<D>,
    pub(crate) uuid: [u8; 16],
    pub(crate) missing: Missing,
}

/// A member: a device, as long as it is not lost.
pub(crate) struct Member<D> {
    device: RefCell<Option<Rc<D>>>,
    /// The uuid of the device; zero in a bare array.
    uuid: Cell<[u8; 16]>,
    /// What the device lacks; none of a member in service.
    missing: RefCell<Option<Missing>>,
    successor: RefCell<Option<Successor<D>>>,
    watch: MemberWatch,
    /// A device whose place a successor took, and its uuid, until the record says so.
    departed: RefCell<Option<(Rc<D>, [u8; 16])>>,
}

impl<D> Member<D> {
    pub(crate) fn new(device: Option<D>) -> Self {
        Self {
            device: RefCell::new(device.map(Rc::new)),
            uuid: Cell::default(),
            missing: RefCell::default(),
            successor: RefCell::default(),
            watch: MemberWatch::default(),
            departed: RefCell::default(),
        }
    }

    /// The same member in an array that takes over; nothing is left of this one.
    pub(crate) fn moved(&self) -> Self {
        let moved = Self::new(None);
        moved.device.swap(&self.device);
        moved.uuid.set(self.uuid.get());
        moved.missing.swap(&self.missing);
        moved.successor.swap(&self.successor);
        moved.departed.swap(&self.departed);
        moved.watch.take_over(&self.watch);
        moved
    }

    /// # Errors
    /// `Gone` when it is lost.
    pub(crate) fn device(&self) -> IoResult<Rc<D>> {
        self.device.borrow().clone().ok_or(IoError::Gone)
    }

    pub(crate) fn has_device(&self) -> bool {
        self.device.borrow().is_some()
    }

    pub(crate) fn is_device(&self, device: &Rc<D>) -> bool {
        self.device.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(own, device))
    }

    /// Whether it is in service: not lost, and not being rebuilt.
    pub(crate) fn is_online(&self) -> bool {
        self.has_device() && self.missing.borrow().is_none()
    }

    pub(crate) fn is_rebuilding(&self) -> bool {
        self.missing.borrow().is_some()
    }

    /// Whether a region can be read from it.
    pub(crate) fn has_region(&self, region: u64) -> bool {
        let missing = self.missing.borrow();
        self.has_device() && missing.as_ref().is_none_or(|it| !it.regions.has(region))
    }

    /// How a region of it can be used by requests.
    pub(crate) fn slot_state(&self, region: u64) -> SlotState {
        match &*self.missing.borrow() {
            _ if !self.has_device() => SlotState::Lost,
            Some(missing) if missing.under_way.contains(&region) => SlotState::Unreadable,
            // All of it will be computed: what is written until then does not matter.
            Some(missing) if missing.regions.has(region) => SlotState::Lost,
            _ => SlotState::Online,
        }
    }

    /// What it is to the array, of which the record says that it is `recorded`.
    pub(crate) fn state(&self, recorded: MemberState) -> MemberState {
        match (self.has_device(), recorded) {
            (false, MemberState::Absent) => MemberState::Absent,
            (false, _) => MemberState::Lost,
            (true, _) if self.is_rebuilding() => MemberState::Rebuilding,
            (true, _) => MemberState::InService,
        }
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid.get()
    }

    pub(crate) fn set_uuid(&self, uuid: [u8; 16]) {
        self.uuid.set(uuid);
    }

    pub(crate) fn missing(&self) -> &RefCell<Option<Missing>> {
        &self.missing
    }

    pub(crate) fn successor(&self) -> &RefCell<Option<Successor<D>>> {
        &self.successor
    }

    /// A device to fill, in the place of one that is lost.
    pub(crate) fn join(&self, device: Rc<D>, uuid: [u8; 16], missing: Bits) {
        self.missing.replace(Some(Missing::new(missing)));
        self.watch.forget();
        self.uuid.set(uuid);
        self.device.replace(Some(device));
    }

    /// A device of which nothing is needed yet: it lacks nothing.
    pub(crate) fn begin(&self, device: Rc<D>, uuid: [u8; 16]) {
        self.uuid.set(uuid);
        self.device.replace(Some(device));
    }

    /// The successor, which lacks nothing any more, takes the place of the device.
    pub(crate) fn succeed(&self) {
        let Some(successor) = self.successor.take() else { return };
        self.watch.forget();
        let uuid = self.uuid.replace(successor.uuid);
        let before = self.device.replace(Some(successor.device));
        self.departed.replace(before.map(|device| (device, uuid)));
    }

    /// The device that made place for another one, asked for once.
    pub(crate) fn take_departed(&self) -> Option<(Rc<D>, [u8; 16])> {
        self.departed.take()
    }

    pub(crate) fn succeeding(&self) -> Option<Rc<D>> {
        self.successor.borrow().as_ref().map(|it| it.device.clone())
    }

    /// Gives a successor up; whether it was that.
    pub(crate) fn drop_successor(&self, device: &Rc<D>) -> bool {
        let mut successor = self.successor.borrow_mut();
        successor.take_if(|it| Rc::ptr_eq(&it.device, device)).is_some()
    }

    /// How well the device does.
    pub(crate) fn watch(&self) -> &MemberWatch {
        &self.watch
    }

    /// Gives the device up; requests under way end as they may. A successor goes on in its place with
    /// what it has.
    pub(crate) fn lose(&self) -> bool {
        if self.device.borrow_mut().take().is_none() {
            return false;
        }
        self.missing.take();
        if let Some(Successor { device, uuid, missing }) = self.successor.take() {
            self.watch.forget();
            self.uuid.set(uuid);
            self.device.replace(Some(device));
            self.missing.replace(Some(missing));
        }
        true
    }
}

/// A change of a range of a member that carries no data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clear {
    Discard,
    Zeroes(Durability),
}

/// Up to so many parts of a request are polled by the request itself; more become tasks, because
/// every part that ends has all others polled.
const PARTS_INLINE_MAX: usize = 16;

/// Runs all of them at once; their results in order. What must not end half done when the request is
/// dropped is part of something that is finished: see [`Handle::finish`].
pub(crate) async fn together<F>(handle: &Handle, parts: Vec<F>) -> Vec<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    at_once(handle, parts.into_iter()).await
}

/// The same for parts that are not in a vector yet: one allocation less.
pub(crate) async fn at_once<F>(
    handle: &Handle,
    parts: impl ExactSizeIterator<Item = F>,
) -> Vec<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    if parts.len() <= PARTS_INLINE_MAX {
        return join_all(parts).await;
    }
    let tasks: Vec<_> = parts.map(|part| handle.spawn(part)).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await);
    }
    results
}

impl<D: BlockDevice> Inner<D> {
    pub(crate) async fn read_member(
        self: Rc<Self>,
        member: usize,
        at: Lba,
        into: Buf,
    ) -> IoResult<Buf> {
        let device = self.members[member].device()?;
        // Since it was chosen it may have made place for one that is to be filled.
        if !self.members[member].has_region(self.region_at(at)) {
            return Err(IoError::Gone);
        }
        self.counters.add(|counts| counts.member_reads += 1);
        let under_way = self.begin_read(member);
        let result = device.read(self.on_device(at), into).await;
        self.end_read(member, under_way);
        if let Err(error) = result {
            self.read_failed(member, &device, error);
        }
        result
    }

    /// Fills buffers with what lies behind one another on a member. A failure says nothing of any one of
    /// them, and does not count.
    pub(crate) async fn read_member_run(
        self: Rc<Self>,
        member: usize,
        at: Lba,
        into: Vec<Buf>,
    ) -> IoResult<Vec<Buf>> {
        let device = self.members[member].device()?;
        let bytes: u64 = into.iter().map(|buf| buf.len() as u64).sum();
        let last = at.plus(bytes / SECTOR_BYTES - 1);
        let mut regions = self.region_at(at)..=self.region_at(last);
        // Since it was chosen it may have made place for one that is to be filled.
        if !regions.all(|region| self.members[member].has_region(region)) {
            return Err(IoError::Gone);
        }
        self.counters.add(|counts| counts.member_reads += 1);
        let under_way = self.begin_read(member);
        let result = device.read_vectored(self.on_device(at), into).await;
        self.end_read(member, under_way);
        result
    }

    pub(crate) async fn write_member(
        self: Rc<Self>,
        member: usize,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        // What a lost member would have held is in the others.
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        self.counters.add(|counts| counts.member_writes += 1);
        let at = self.on_device(at);
        let beside = self.beside(member, |device: Rc<D>| {
            let data = data.clone();
            async move { device.write(at, data, durability).await }
        });
        let since = self.begin_write(member);
        let mut result = device.write(at, data.clone(), durability).await;
        self.end_write(member, since);
        if let Err(error) = result
            && self.may_try_again(member, &device, error)
        {
            // In a box: seldom, and else every write would carry its room along.
            result = Box::pin(device.write(at, data, durability)).await;
        }
        self.finish_beside(member, beside).await;
        self.settle(member, &device, result)
    }

    pub(crate) async fn clear_member(
        self: Rc<Self>,
        member: usize,
        range: SectorRange,
        clear: Clear,
    ) -> IoResult<()> {
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        self.counters.add(|counts| counts.member_writes += 1);
        let range = SectorRange::new(self.on_device(range.start), range.count);
        let suited = self.members[member].succeeding().map(|device| self.suited(&device, clear));
        let beside = self.beside(member, move |device: Rc<D>| async move {
            clear_device(&*device, range, suited.unwrap_or(clear)).await
        });
        let own = self.suited(&device, clear);
        let mut result = clear_device(&*device, range, own).await;
        if let Err(error) = result
            && self.may_try_again(member, &device, error)
        {
            result = Box::pin(clear_device(&*device, range, own)).await;
        }
        self.finish_beside(member, beside).await;
        self.settle(member, &device, result)
    }

    /// A discard goes into parity as zeroes: a device that came later and does not return them is
    /// written zeroes.
    fn suited(&self, device: &Rc<D>, clear: Clear) -> Clear {
        let returns_zeroes = device.limits().after_discard == AfterDiscard::Zeroes;
        match clear {
            Clear::Discard if self.geometry.parity_chunks() > 0 && !returns_zeroes => {
                Clear::Zeroes(Durability::Cached)
            }
            clear => clear,
        }
    }

    /// Flushes every member; one that fails is lost, and on record as lost, or this fails.
    pub(crate) async fn flush_all(self: &Rc<Self>) -> IoResult<()> {
        self.flush_members().await?;
        self.losses_recorded().await?;
        self.check_groups()
    }

    /// Flushes every member; one that fails is lost.
    pub(crate) async fn flush_members(self: &Rc<Self>) -> IoResult<()> {
        let flushes = (0..self.members.len()).map(|member| self.clone().flush_member(member));
        // To its end also when nobody waits: who could not flush is lost, and says so once.
        let inner = self.clone();
        let flushes: Vec<_> = flushes.collect();
        let flushed = async move { together(&inner.handle, flushes).await };
        let results = self.handle.finish(flushed).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.check_groups()
    }

    pub(crate) async fn flush_member(self: Rc<Self>, member: usize) -> IoResult<()> {
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        let beside = self.beside(member, move |device: Rc<D>| async move { device.flush().await });
        let result = device.flush().await;
        self.finish_beside(member, beside).await;
        self.settle(member, &device, result)
    }

    /// Does the same to the successor of a member, if it has one.
    fn beside<F: Future<Output = IoResult<()>> + 'static>(
        &self,
        member: usize,
        change: impl FnOnce(Rc<D>) -> F,
    ) -> Option<(Rc<D>, JoinHandle<IoResult<()>>)> {
        let device = self.members[member].succeeding()?;
        if canary::is(Canary::CopyMissesWrites) {
            return None;
        }
        Some((device.clone(), self.handle.spawn(change(device))))
    }

    /// A successor that does not take a change is none any more.
    async fn finish_beside(
        &self,
        member: usize,
        beside: Option<(Rc<D>, JoinHandle<IoResult<()>>)>,
    ) {
        let Some((device, result)) = beside else { return };
        if result.await.is_err() {
            self.give_successor_up(member, &device);
        }
    }

    pub(crate) fn give_successor_up(&self, member: usize, device: &Rc<D>) {
        if self.members[member].drop_successor(device) {
            self.counters.add(|counts| counts.members_lost += 1);
            self.background.membership_changed();
        } else if self.members[member].is_device(device) {
            // It has taken its place meanwhile.
            self.lose(member);
        }
    }

    /// The sector of a device that has this sector of the member's chunks.
    pub(crate) fn on_device(&self, at: Lba) -> Lba {
        at.plus(self.data_start)
    }

    /// What a change of a member means for the request: a member that did not take it is lost, if
    /// the others have all it held; then the change stands. Before it is acknowledged, somebody waits
    /// for [`settled`](Inner::settled).
    pub(crate) fn settle(
        &self,
        member: usize,
        device: &Rc<D>,
        result: IoResult<()>,
    ) -> IoResult<()> {
        let Err(error) = result else { return Ok(()) };
        let group = self.geometry.group_of_member(member);
        let others_have_it = self.lost_in(group) < self.geometry.parity_chunks();
        if !self.members[member].is_device(device) {
            return Ok(());
        }
        self.note_failed_change(member);
        if self.members[member].is_rebuilding() {
            // Nobody counts on it yet.
            self.lose(member);
            return Ok(());
        }
        if error == IoError::Gone || others_have_it {
            self.lose(member);
        }
        if others_have_it { Ok(()) } else { Err(error) }
    }

    /// The same for whatever is the device of a member.
    pub(crate) fn settle_now(&self, member: usize, result: IoResult<()>) -> IoResult<()> {
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        self.settle(member, &device, result)
    }

    /// A member that could not be given up failed a write to these sectors, and the others have the new
    /// content of their stripes: nothing that is computed from both is right.
    pub(crate) fn note_half_written(&self, member: usize, range: SectorRange) {
        let mut half_written = self.half_written.borrow_mut();
        for piece in range.split_at_multiples(self.geometry.chunk_sectors()) {
            // Two shapes are of one group, whose stripes are its rows.
            let row = Stripe(piece.start.0 / self.geometry.chunk_sectors());
            if let Some(place) = self.shape(row).member_place(member, piece.start) {
                half_written.insert((place.stripe, place.slot));
            }
        }
    }

    pub(crate) fn lose(&self, member: usize) {
        if self.members[member].lose() {
            self.counters.add(|counts| counts.members_lost += 1);
            self.background.membership_changed();
            self.watch.tell();
            if let Some(durable) = &self.durable {
                durable.note_change();
            }
            if let Some(journal) = self.journal.get() {
                journal.notify();
            }
        }
    }

    /// Whether writes of some rows of a group failed and stand: what is in them is not one thing.
    pub(crate) fn has_half_written(&self, group: usize, rows: std::ops::Range<u64>) -> bool {
        let half_written = self.half_written.borrow();
        let is_in = |(stripe, _): &(Stripe, usize)| {
            self.geometry.group_of(*stripe) == group
                && rows.contains(&self.geometry.row_of(*stripe))
        };
        half_written.iter().any(is_in)
    }

    /// Members of a group that are lost, or do not have all of it yet.
    pub(crate) fn lost_in(&self, group: usize) -> usize {
        let members = self.geometry.members_of(group).map(|member| &self.members[member]);
        members.filter(|member| !member.is_online()).count()
    }

    /// # Errors
    /// When more members of the group are lost than it can lose.
    pub(crate) fn check_group(&self, group: usize) -> IoResult<()> {
        let stands = self.lost_in(group) <= self.geometry.parity_chunks();
        if stands { Ok(()) } else { Err(IoError::Gone) }
    }

    /// # Errors
    /// When more members of any group are lost than it can lose.
    pub(crate) fn check_groups(&self) -> IoResult<()> {
        (0..self.geometry.group_count()).try_for_each(|group| self.check_group(group))
    }

    /// The slots of a stripe, some of which gave medium errors.
    ///
    /// # Errors
    /// When more of them cannot be read than there are parities.
    pub(crate) fn slot_states(
        &self,
        stripe: Stripe,
        unreadable: &[usize],
    ) -> IoResult<Vec<SlotState>> {
        let region = self.region_of(stripe);
        let half_written = self.half_written.borrow();
        let is_bad = |slot| unreadable.contains(&slot) || half_written.contains(&(stripe, slot));
        let state = |slot| match self.members[self.shape(stripe).member_of(stripe, slot)]
            .slot_state(region)
        {
            SlotState::Online if is_bad(slot) => SlotState::Unreadable,
            state => state,
        };
        let states: Vec<SlotState> = (0..self.shape(stripe).width()).map(state).collect();
        let count = |wanted| states.iter().filter(|state| **state == wanted).count();
        let (lost, unreadable) = (count(SlotState::Lost), count(SlotState::Unreadable));
        if lost > self.geometry.parity_chunks() {
            Err(IoError::Gone)
        } else if lost + unreadable > self.geometry.parity_chunks() {
            Err(IoError::Medium)
        } else {
            Ok(states)
        }
    }

    /// Reads spans of slots, all at once. The slots that could not be read, if there are any.
    pub(crate) async fn read_slots(
        self: &Rc<Self>,
        stripe: Stripe,
        reads: &[(usize, Span)],
    ) -> Result<Vec<Buf>, Vec<usize>> {
        let read = |(slot, span): &(usize, Span)| {
            let member = self.shape(stripe).member_of(stripe, *slot);
            let at = self.geometry.member_lba(stripe, span.start);
            self.clone().read_member(member, at, Buf::new(span.bytes()))
        };
        let results = at_once(&self.handle, reads.iter().map(read)).await;
        let mut failed = Vec::new();
        let mut read = Vec::with_capacity(results.len());
        for ((slot, _), result) in reads.iter().zip(results) {
            match result {
                Ok(buf) => read.push(buf),
                Err(_) => failed.push(*slot),
            }
        }
        if failed.is_empty() { Ok(read) } else { Err(failed) }
    }
}

async fn clear_device<D: BlockDevice>(
    device: &D,
    range: SectorRange,
    clear: Clear,
) -> IoResult<()> {
    match clear {
        Clear::Discard => device.discard(range).await,
        Clear::Zeroes(durability) => match device.write_zeroes(range, durability).await {
            Err(IoError::Unsupported) => write_zero_data(device, range, durability).await,
            result => result,
        },
    }
}

async fn write_zero_data<D: BlockDevice>(
    device: &D,
    range: SectorRange,
    durability: Durability,
) -> IoResult<()> {
    let longest = ZEROES_BYTES.min(u64::from(device.limits().max_transfer_bytes));
    let zeroes = Buf::zeroed(longest.min(range.bytes()) as usize).freeze();
    for piece in range.split_at_multiples(longest / SECTOR_BYTES) {
        let data = zeroes.slice(0..piece.bytes() as usize);
        device.write(piece.start, data.into(), durability).await?;
    }
    Ok(())
}
