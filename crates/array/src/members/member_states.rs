//! The members of an array as a whole: which of them are in service, and when one is given up.
//!
//! The part sends nothing to a member. [`MemberSet`](crate::members::member_set::MemberSet) does, and reports
//! how requests ended. A [`MemberEvent`] tells the floors above.

mod lookup;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{DriveControl, IoError, IoResult, Nanos};
use voltier_ring::{Handle, Signal};

use crate::canary::{self, Canary};
use crate::format::superblock::ArrayRecord;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{GroupIndex, MemberIndex};
use crate::members::checksums::page_errors::ErrorCounts;
use crate::members::counts::Counters;
use crate::members::event::{Above, MemberEvent};
use crate::members::health::{
    HealthNews, HealthPolicy, HealthWatch, MemberHealth, SlowAction, Slowness,
};
use crate::members::member::Member;
use crate::members::member_watch::MemberWatch;
use crate::members::refusals::Refusals;
use crate::members::vitals::{ReadUnderWay, Timed};

/// The members of an array with their states, errors and times.
pub(crate) struct MemberStates<D> {
    handle: Handle,
    geometry: Geometry,
    members: Vec<Member<D>>,
    counters: Rc<Counters>,
    health: HealthWatch,
    watch: Rc<MemberWatch>,
    refusals: Refusals,
    /// Grows with every member that comes or goes.
    changes: Cell<u64>,
    /// Whether members may hold older content than was acknowledged: the journal alone has the newer one.
    are_stale: Cell<bool>,
    /// Failed flushes that are not judged yet.
    doubts: Cell<u32>,
    judged: Signal,
    above: OnceCell<Box<dyn Above>>,
}

/// A failed flush that is not judged yet; it is when this is dropped.
pub(crate) struct Doubt<'a, D: DriveControl>(&'a MemberStates<D>);

impl<D: DriveControl> Drop for Doubt<'_, D> {
    fn drop(&mut self) {
        self.0.doubts.set(self.0.doubts.get() - 1);
        self.0.judged.notify();
        self.0.emit(MemberEvent::Judged);
    }
}

impl<D: DriveControl> MemberStates<D> {
    pub(super) fn new(
        handle: &Handle,
        geometry: &Geometry,
        members: Vec<Member<D>>,
        watch: &Rc<MemberWatch>,
    ) -> Self {
        Self {
            handle: handle.clone(),
            geometry: geometry.clone(),
            members,
            counters: Rc::default(),
            health: HealthWatch::default(),
            watch: watch.clone(),
            refusals: Refusals::new(handle),
            changes: Cell::new(0),
            are_stale: Cell::new(false),
            doubts: Cell::new(0),
            judged: Signal::new(),
            above: OnceCell::new(),
        }
    }

    /// The same members, and further ones, in another geometry. Nothing is left in these states.
    pub(super) fn moved(&self, geometry: &Geometry, added: Vec<Member<D>>) -> Self {
        let mut members: Vec<Member<D>> = self.members.iter().map(Member::moved).collect();
        members.extend(added);
        Self {
            counters: Rc::new(Counters::of(self.counters.get())),
            health: self.health.moved(),
            ..Self::new(&self.handle, geometry, members, &self.watch)
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

    /// The watch over all devices of the array.
    pub(crate) fn watch(&self) -> &Rc<MemberWatch> {
        &self.watch
    }

    /// The members that refuse requests.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Whether so many members of a member's group refuse changes that the group cannot lose them all: the
    /// cause may be a common one, which passes.
    pub(crate) fn is_refusal_common(&self, member: MemberIndex) -> bool {
        if canary::is(Canary::CommonRefusalIgnored) {
            return false;
        }
        self.is_too_many_with(member, self.refusals.changes_of_late())
    }

    fn is_too_many_with(&self, member: MemberIndex, failing: BTreeSet<MemberIndex>) -> bool {
        let group = self.geometry.group_of_member(member);
        let is_other = |other: &MemberIndex| {
            *other != member
                && self.geometry.group_of_member(*other) == group
                && self[*other].is_online()
        };
        let others = failing.into_iter().filter(is_other).count();
        others > 0 && self.lost_in(group) + others + 1 > self.geometry.parity_chunks()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
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
        self[member].vitals().count(|counts| counts.repaired += 1);
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
    pub(crate) fn end_read(&self, member: MemberIndex, under_way: ReadUnderWay<'_>) {
        let since = under_way.end();
        if since != 0 {
            self.end_timed(member, Timed::Read, since);
        }
    }

    /// A write has ended that began then.
    #[inline]
    pub(crate) fn end_write(&self, member: MemberIndex, since: Nanos) {
        if since != 0 {
            self[member].vitals().end();
            self.end_timed(member, Timed::Write, since);
        }
    }

    #[cold]
    fn end_timed(&self, member: MemberIndex, timed: Timed, since: Nanos) {
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
            // A slow member has all its data: it goes only while the group can lose yet another one.
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

    /// A member has failed a flush; the failure is judged when the result is dropped.
    pub(crate) fn doubt(&self) -> Doubt<'_, D> {
        self.doubts.set(self.doubts.get() + 1);
        self.emit(MemberEvent::Doubted);
        Doubt(self)
    }

    /// To be awaited when a member was read, before the content is used: the member may have dropped what was
    /// acknowledged meanwhile.
    ///
    /// # Errors
    /// When the content does not count: the member was lost for a failed flush, or the journal alone has the newest.
    #[inline]
    pub(crate) async fn settled(&self, member: MemberIndex, device: &Rc<D>) -> IoResult<()> {
        if self.doubts.get() == 0 && !self.are_stale.get() {
            return Ok(());
        }
        self.judged.until(|| self.doubts.get() == 0).await;
        let counts = !self.are_stale.get() && self[member].is_device(device);
        if counts { Ok(()) } else { Err(IoError::Medium) }
    }

    /// Members may have dropped what the journal alone has now, and nothing of them is served; or they have it
    /// again.
    pub(crate) fn set_stale(&self, are_stale: bool) {
        self.are_stale.set(are_stale);
    }

    /// Whether members may hold older content than was acknowledged.
    #[inline]
    pub(crate) fn are_stale(&self) -> bool {
        self.are_stale.get()
    }

    pub(crate) fn emit(&self, event: MemberEvent) {
        self.above.get().inspect(|above| above.on(event));
    }

    /// A read has failed; it is made good from the others, if there are any.
    #[cold]
    pub(crate) fn read_failed(&self, member: MemberIndex, device: &Rc<D>, error: IoError) {
        if !self[member].is_device(device) {
            return;
        }
        if error == IoError::Gone {
            self.lose(member);
            return;
        }
        self[member].vitals().count(|counts| counts.errors_read += 1);
        self.refusals.note_read(member, error);
        if !self.is_too_many_with(member, self.refusals.reads_of_late()) {
            self.note_error(member);
        }
    }

    /// A write has failed; whether to try once more. A drive that remaps a block does so when it is
    /// written, and a path that was lost for a moment is back.
    #[cold]
    pub(crate) fn may_try_again(
        &self,
        member: MemberIndex,
        device: &Rc<D>,
        error: IoError,
    ) -> bool {
        if error != IoError::Medium || !self[member].is_device(device) {
            return false;
        }
        self[member].vitals().count(|counts| counts.errors_write += 1);
        true
    }

    /// Pages of checksums had medium errors: blocks of the device are bad, whatever these hold.
    pub(crate) fn note_page_errors(
        &self,
        member: MemberIndex,
        device: &Rc<D>,
        errors: ErrorCounts,
    ) {
        for _ in 0..errors.reads {
            self.read_failed(member, device, IoError::Medium);
        }
        for _ in 0..errors.writes {
            if self.may_try_again(member, device, IoError::Medium) {
                self.note_error(member);
            }
        }
    }

    pub(crate) fn note_error(&self, member: MemberIndex) {
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
