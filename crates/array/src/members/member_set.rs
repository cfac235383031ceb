//! The members of an array: what is sent to them, and when they are given up.
//!
//! Everything that reads, writes or flushes members goes through here. One place counts it, times it,
//! tries a write once more, and decides what a failure means. A [`MemberEvent`] tells the floors above.

mod lookup;

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Nanos, Payload, SECTOR_BYTES,
    SectorRange,
};
use voltier_ring::{Handle, JoinHandle};

use crate::canary::{self, Canary};
use crate::format::region_map::RegionGrid;
use crate::format::superblock::ArrayRecord;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{GroupIndex, MemberIndex, Region, each};
use crate::members::at_once::together;
use crate::members::clear::{Clear, clear_device};
use crate::members::counts::Counters;
use crate::members::event::{Above, MemberEvent};
use crate::members::health::{
    HealthNews, HealthPolicy, HealthWatch, MemberHealth, SlowAction, Slowness,
};
use crate::members::member::Member;
use crate::members::member_watch::MemberWatch;
use crate::members::space::SpaceRetry;
use crate::members::vitals::{ReadUnderWay, Timed};

/// The members of an array in service.
pub(crate) struct MemberSet<D> {
    handle: Handle,
    geometry: Geometry,
    members: Vec<Member<D>>,
    /// The first sector of the chunks on a member's device.
    data_start: u64,
    regions: RegionGrid,
    counters: Rc<Counters>,
    health: HealthWatch,
    watch: Rc<MemberWatch>,
    space_retry: SpaceRetry,
    /// Grows with every member that comes or goes.
    changes: Cell<u64>,
    /// Whether another set has taken over: this one has no devices any more.
    is_superseded: Cell<bool>,
    above: OnceCell<Box<dyn Above>>,
}

impl<D: BlockDevice> MemberSet<D> {
    pub(crate) fn new(
        handle: &Handle,
        geometry: &Geometry,
        members: Vec<Member<D>>,
        data_start: u64,
        watch: &Rc<MemberWatch>,
    ) -> Self {
        Self {
            handle: handle.clone(),
            geometry: geometry.clone(),
            members,
            data_start,
            regions: RegionGrid::new(geometry.member_sectors()),
            counters: Rc::default(),
            health: HealthWatch::default(),
            watch: watch.clone(),
            space_retry: SpaceRetry::new(handle),
            changes: Cell::new(0),
            is_superseded: Cell::new(false),
            above: OnceCell::new(),
        }
    }

    /// The same members, and further ones, in another geometry. Nothing is left in this set.
    pub(crate) fn moved(&self, geometry: &Geometry, added: Vec<Member<D>>) -> Self {
        let mut members: Vec<Member<D>> = self.members.iter().map(Member::moved).collect();
        members.extend(added);
        Self {
            counters: Rc::new(Counters::of(self.counters.get())),
            health: self.health.moved(),
            ..Self::new(&self.handle, geometry, members, self.data_start, &self.watch)
        }
    }

    /// Says who is told of events. Once.
    pub(crate) fn report_to(&self, above: Box<dyn Above>) {
        assert!(self.above.set(above).is_ok(), "members report to one array");
    }

    /// The indexes of all members, in order.
    pub(crate) fn indexes(
        &self,
    ) -> impl DoubleEndedIterator<Item = MemberIndex> + ExactSizeIterator + Clone + use<D> {
        MemberIndex::all(self.members.len())
    }

    /// All members with their indexes, in order.
    pub(crate) fn indexed(&self) -> impl Iterator<Item = (MemberIndex, &Member<D>)> {
        self.indexes().zip(&self.members)
    }

    /// Tells the members who they are.
    pub(crate) fn name(&self, record: &ArrayRecord) {
        for (member, record) in self.members.iter().zip(&record.members) {
            member.set_uuid(record.uuid);
        }
    }

    pub(crate) fn supersede(&self) {
        self.is_superseded.set(true);
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.is_superseded.get()
    }

    /// The watch over all devices of the array.
    pub(crate) fn watch(&self) -> &Rc<MemberWatch> {
        &self.watch
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The region of a sector of a member.
    #[inline]
    pub(crate) fn region_at(&self, at: Lba) -> Region {
        self.regions.region_at(at)
    }

    /// How members are cut into regions.
    pub(crate) fn regions(&self) -> RegionGrid {
        self.regions
    }

    pub(crate) async fn read(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        into: Buf,
    ) -> IoResult<Buf> {
        let device = self[member].device()?;
        // Since the choice, the member may have got a device that is to be filled.
        if !self[member].has_region(self.region_at(at)) {
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
    pub(crate) async fn read_run(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        into: Vec<Buf>,
    ) -> IoResult<Vec<Buf>> {
        let device = self[member].device()?;
        let bytes: u64 = into.iter().map(|buf| buf.len() as u64).sum();
        let last = at.plus(bytes / SECTOR_BYTES - 1);
        let mut regions = each(self.region_at(at)..self.region_at(last) + 1);
        // Since the choice, the member may have got a device that is to be filled.
        if !regions.all(|region| self[member].has_region(region)) {
            return Err(IoError::Gone);
        }
        self.counters.add(|counts| counts.member_reads += 1);
        let under_way = self.begin_read(member);
        let result = device.read_vectored(self.on_device(at), into).await;
        self.end_read(member, under_way);
        result
    }

    pub(crate) async fn write(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        // The others have what a lost member would have held.
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.counters.add(|counts| counts.member_writes += 1);
        let at = self.on_device(at);
        let beside = self.beside(member, |device: Rc<D>| {
            let data = data.clone();
            async move { device.write(at, data, durability).await }
        });
        let since = self.begin_write(member);
        let write = || device.write(at, data.clone(), durability);
        let mut result = write().await;
        self.end_write(member, since);
        if result.is_err() {
            // In a box: seldom, and else every write would carry its room along.
            result = Box::pin(self.again(member, &device, result, write)).await;
        }
        self.finish_beside(member, beside).await;
        self.lose_on_error(member, &device, result)
    }

    pub(crate) async fn clear(
        self: Rc<Self>,
        member: MemberIndex,
        range: SectorRange,
        clear: Clear,
    ) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.counters.add(|counts| counts.member_writes += 1);
        let range = SectorRange::new(self.on_device(range.start), range.count);
        let has_parity = self.geometry.parity_chunks() > 0;
        let suited = self[member].succeeding().map(|device| clear.suited(&*device, has_parity));
        let beside = self.beside(member, move |device: Rc<D>| async move {
            clear_device(&*device, range, suited.unwrap_or(clear)).await
        });
        let own = clear.suited(&*device, has_parity);
        let cleared = || clear_device(&*device, range, own);
        let mut result = cleared().await;
        if result.is_err() {
            result = Box::pin(self.again(member, &device, result, cleared)).await;
        }
        self.finish_beside(member, beside).await;
        self.lose_on_error(member, &device, result)
    }

    /// Flushes every member; one that fails is lost.
    pub(crate) async fn flush(self: &Rc<Self>) -> IoResult<()> {
        let flush = |member| self.clone().flush_one(member);
        // The flush runs to its end also when nobody waits: who could not flush is lost, and says so once.
        let (inner, flushes) = (self.clone(), self.indexes().map(flush).collect());
        let flushed = async move { together(&inner.handle, flushes).await };
        let results = self.handle.finish(flushed).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.check_groups()
    }

    pub(crate) async fn flush_one(self: Rc<Self>, member: MemberIndex) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        let beside = self.beside(member, move |device: Rc<D>| async move { device.flush().await });
        let result = device.flush().await;
        self.finish_beside(member, beside).await;
        self.lose_on_error(member, &device, result)
    }

    /// A durable write of something that is not a chunk, at its sector of the device.
    pub(crate) async fn write_meta(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        data: Bytes,
    ) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.counters.add(|counts| counts.metadata_writes += 1);
        let write = || device.write(at, data.clone().into(), Durability::Durable);
        let mut result = write().await;
        if result.is_err() {
            result = Box::pin(self.again(member, &device, result, write)).await;
        }
        self.lose_on_error(member, &device, result)
    }

    /// Does a change that failed again: once after a medium error, and for seconds while there is no space.
    pub(crate) async fn again<F: Future<Output = IoResult<()>>>(
        self: &Rc<Self>,
        member: MemberIndex,
        device: &Rc<D>,
        mut result: IoResult<()>,
        change: impl Fn() -> F,
    ) -> IoResult<()> {
        if let Err(error) = result
            && self.may_try_again(member, device, error)
        {
            result = change().await;
        }
        self.space_retry.again(member, result, || self[member].is_device(device), change).await
    }

    /// Does the same to the successor of a member, if it has one.
    fn beside<F: Future<Output = IoResult<()>> + 'static>(
        &self,
        member: MemberIndex,
        change: impl FnOnce(Rc<D>) -> F,
    ) -> Option<(Rc<D>, JoinHandle<IoResult<()>>)> {
        let device = self[member].succeeding()?;
        if canary::is(Canary::CopyMissesWrites) {
            return None;
        }
        Some((device.clone(), self.handle.spawn(change(device))))
    }

    /// A successor that does not take a change is none any more.
    async fn finish_beside(
        &self,
        member: MemberIndex,
        beside: Option<(Rc<D>, JoinHandle<IoResult<()>>)>,
    ) {
        let Some((device, result)) = beside else { return };
        if result.await.is_err() {
            self.give_successor_up(member, &device);
        }
    }

    /// Writes to a device that is being filled. A device that refuses the write is given up.
    pub(crate) async fn write_target(
        &self,
        member: MemberIndex,
        device: &Rc<D>,
        at: Lba,
        data: Bytes,
    ) {
        self.counters().add(|counts| counts.member_writes += 1);
        let result = device.write(self.on_device(at), data.into(), Durability::Cached).await;
        if result.is_err() {
            self.give_successor_up(member, device);
        }
    }

    pub(crate) fn give_successor_up(&self, member: MemberIndex, device: &Rc<D>) {
        if self[member].drop_successor(device) {
            self.counters.add(|counts| counts.members_lost += 1);
            self.change();
        } else if self[member].is_device(device) {
            // The successor has taken the place of the member meanwhile.
            self.lose(member);
        }
    }

    /// The sector of a device that has this sector of the member's chunks.
    pub(crate) fn on_device(&self, at: Lba) -> Lba {
        at.plus(self.data_start)
    }

    /// A member that did not take a change is lost, if the others have all it held; then the change stands.
    /// The membership's barrier comes before the acknowledgement (the journal's end, the array's write).
    pub(crate) fn lose_on_error(
        &self,
        member: MemberIndex,
        device: &Rc<D>,
        result: IoResult<()>,
    ) -> IoResult<()> {
        let Err(error) = result else { return Ok(()) };
        let lost = self.lost_in(self.geometry.group_of_member(member));
        let others_have_it = lost < self.geometry.parity_chunks();
        if !self[member].is_device(device) {
            return Ok(());
        }
        self[member].vitals().note_failed_change();
        if self[member].is_rebuilding() {
            // Nobody counts on it yet.
            self.lose(member);
            return Ok(());
        }
        if error == IoError::NoSpace && self.space_retry.is_short_elsewhere(member) {
            return Err(error);
        }
        if error == IoError::Gone || others_have_it {
            self.lose(member);
        }
        if others_have_it { Ok(()) } else { Err(error) }
    }

    /// The same for whatever is the device of a member.
    pub(crate) fn lose_on_error_now(
        &self,
        member: MemberIndex,
        result: IoResult<()>,
    ) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.lose_on_error(member, &device, result)
    }

    /// Gives a member up: at once in memory, and on record before the next acknowledgement.
    pub(crate) fn lose(&self, member: MemberIndex) {
        let left = self[member].device().map(|device| device.under_way());
        if self[member].lose() {
            self.watch.note_left(member, left.unwrap_or_default());
            self.counters.add(|counts| counts.members_lost += 1);
            self.change();
            self.health.tell();
            self.emit(MemberEvent::Lost);
        }
    }

    /// Takes note that a member has come or gone: what was begun with the members of before is of no use.
    pub(crate) fn change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// How often members have come or gone.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Members of a group that are lost, or do not have all of it yet.
    pub(crate) fn lost_in(&self, group: GroupIndex) -> usize {
        let members = self.geometry.members_of(group).map(|member| &self[member]);
        members.filter(|member| !member.is_online()).count()
    }

    /// # Errors
    /// When more members of the group are lost than it can lose.
    pub(crate) fn check_group(&self, group: GroupIndex) -> IoResult<()> {
        let stands = self.lost_in(group) <= self.geometry.parity_chunks();
        if stands { Ok(()) } else { Err(IoError::Gone) }
    }

    /// # Errors
    /// When more members of any group are lost than it can lose.
    pub(crate) fn check_groups(&self) -> IoResult<()> {
        self.geometry.groups().try_for_each(|group| self.check_group(group))
    }

    /// Whether a member is out, or does not have all of it yet: what is written now must be known
    /// when it comes back.
    pub(crate) fn is_degraded(&self) -> bool {
        self.members.iter().any(|member| !member.is_online())
    }

    /// A read of a member begins.
    #[inline]
    pub(crate) fn begin_read(&self, member: MemberIndex) -> ReadUnderWay<'_> {
        self[member].vitals().begin_read(|| self.handle.now())
    }

    /// A write of a member begins; when, if it is timed, or 0. The write runs to its end.
    #[inline]
    pub(crate) fn begin_write(&self, member: MemberIndex) -> Nanos {
        self[member].vitals().begin(Timed::Write, || self.handle.now())
    }

    pub(crate) fn note_repair(&self, member: MemberIndex) {
        self.counters.add(|counts| counts.repairs += 1);
        self[member].vitals().note_repair();
    }

    fn set_avoided(&self, member: MemberIndex) {
        let vitals = self[member].vitals();
        let is_shown_only = self.health.policy().slow_action == SlowAction::Show;
        let may_avoid = self.geometry.is_mirror() || !is_shown_only;
        vitals.set_avoided(vitals.is_slow() && may_avoid);
    }

    pub(crate) fn health_of(&self, member: MemberIndex) -> MemberHealth {
        self.health.health_of(&self[member], self.handle.now())
    }

    pub(crate) fn health(&self) -> &HealthWatch {
        &self.health
    }

    /// Judges all members anew by another policy.
    pub(crate) fn set_health_policy(&self, policy: HealthPolicy) {
        self.health.set_policy(policy);
        self.watch.set_deadline(policy.deadline_ns);
        for (index, member) in self.indexed() {
            member.vitals().judge_anew(policy.slow_factor > 0);
            self.set_avoided(index);
        }
    }

    /// A read has ended.
    #[inline]
    pub(crate) fn end_read(self: &Rc<Self>, member: MemberIndex, under_way: ReadUnderWay<'_>) {
        let since = under_way.end();
        if since != 0 {
            self.end_timed(member, Timed::Read, since);
        }
    }

    /// A write has ended that began then.
    #[inline]
    pub(crate) fn end_write(self: &Rc<Self>, member: MemberIndex, since: Nanos) {
        if since != 0 {
            self[member].vitals().end();
            self.end_timed(member, Timed::Write, since);
        }
    }

    #[cold]
    fn end_timed(self: &Rc<Self>, member: MemberIndex, timed: Timed, since: Nanos) {
        let now = self.handle.now();
        let took_ns = now.saturating_sub(since);
        self[member].vitals().add(timed, took_ns);
        if self.health.is_round_over(now) {
            self.end_round(now);
        }
    }

    fn end_round(&self, now: Nanos) {
        let is_uneven = self.above.get().is_some_and(|above| above.is_load_uneven());
        let Some(round) = self.health.end_round(&self.members, now, is_uneven) else {
            return self.forget_means(|_| true);
        };
        let slow_action = self.health.policy().slow_action;
        for (index, member) in self.indexed() {
            let Some(verdict) = round.verdict(&self.geometry, index, member) else { continue };
            if member.vitals().judge(verdict.is_slow) {
                self.set_avoided(index);
                let Slowness { is_slow, mean_ns, others_ns } = verdict;
                self.health.say(if is_slow {
                    HealthNews::Slow { member: index.0, mean_ns, others_ns }
                } else {
                    HealthNews::NotSlow { member: index.0 }
                });
            }
            let is_slow = member.vitals().is_slow();
            if is_slow && slow_action == SlowAction::Fail && self.can_spare(index, 1) {
                self.give_up(index);
                self.health.say(HealthNews::SlowFailed { member: index.0 });
            }
        }
        self.forget_means(|member| round.has(member));
    }

    fn forget_means(&self, is_done: impl Fn(MemberIndex) -> bool) {
        for member in self.indexes().filter(|member| is_done(*member)) {
            self[member].vitals().forget_means();
        }
    }

    /// Whether a member in service can be given up by choice, so that its group can lose `more` after
    /// that. Never while some of the group's parity may not match.
    pub(crate) fn can_spare(&self, member: MemberIndex, more: usize) -> bool {
        let group = self.geometry.group_of_member(member);
        self[member].is_online()
            && self.lost_in(group) + 1 + more <= self.geometry.parity_chunks()
            && self.above.get().is_none_or(|above| above.is_consistent(group))
    }

    pub(crate) fn give_up(&self, member: MemberIndex) {
        self.lose(member);
        self.emit(MemberEvent::GivenUp);
    }

    pub(crate) fn emit(&self, event: MemberEvent) {
        self.above.get().inspect(|above| above.on(event));
    }

    /// A read has failed; it is made good from the others, if there are any.
    #[cold]
    pub(crate) fn read_failed(
        self: &Rc<Self>,
        member: MemberIndex,
        device: &Rc<D>,
        error: IoError,
    ) {
        if !self[member].is_device(device) {
            return;
        }
        if error == IoError::Gone {
            self.lose(member);
            return;
        }
        self[member].vitals().note_failed_read();
        self.note_error(member);
    }

    /// A write has failed; whether to try once more. A drive that remaps a block does so when it is
    /// written, and a path that was lost for a moment is back.
    #[cold]
    pub(crate) fn may_try_again(
        self: &Rc<Self>,
        member: MemberIndex,
        device: &Rc<D>,
        error: IoError,
    ) -> bool {
        if error != IoError::Medium || !self[member].is_device(device) {
            return false;
        }
        self[member].vitals().note_failed_change();
        self.note_error(member);
        self[member].is_device(device)
    }

    fn note_error(self: &Rc<Self>, member: MemberIndex) {
        let policy = self.health.policy();
        let errors = self[member].vitals().add_error(self.handle.now(), policy.error_window_ns);
        if policy.max_errors == 0 || errors <= policy.max_errors {
            return;
        }
        let is_failed = self.can_spare(member, 0);
        if is_failed {
            self.give_up(member);
        }
        // Once for each time that it passes the limit.
        if is_failed || errors == policy.max_errors + 1 {
            self.health.say(HealthNews::TooManyErrors { member: member.0, errors, is_failed });
        }
    }
}
