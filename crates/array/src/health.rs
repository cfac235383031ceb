//! How well members do: their errors, and whether one is slower than the others.
//!
//! # Errors
//!
//! A read that fails is made good from the others and rewritten, and counted; a write that fails is
//! tried once more, and counted. The count halves with every window that passes. A member that passes the
//! limit is given up, if its group can lose it.
//!
//! # Slowness
//!
//! One I/O in 31 of each member is timed, more if they take long, one at a time. Every fifth of the window
//! the means of the members are held against each other. Who was slower than the median of the others
//! by the factor five times in a row is *slow*. Nobody is asked while nothing is timed, so an array at rest
//! does nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use voltier_block::{BlockDevice, Durability, IoError, IoResult, Lba, Nanos, Payload};

use crate::array::{Array, Inner};
use crate::background::BackgroundTask;
use crate::geometry::Stripe;
use crate::latency::Latency;
use crate::member_watch::{ROUNDS, ReadUnderWay, Timed};
use crate::plan::{SlotState, unusable};

const SECOND_NS: Nanos = 1_000_000_000;
/// Samples of a member without which a round says nothing of it.
const SAMPLES_MIN: u32 = 4;
/// A mean below this is not slow, whatever the others do.
const SLOW_NS_MIN: Nanos = 500_000;
/// News that nobody has fetched yet; more replace the oldest.
const NEWS_MAX: usize = 64;

/// What is done about a member that is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowAction {
    /// It is shown; of copies, the others are read.
    #[default]
    Show,
    /// What would be read from it is computed from the others, too, where there is parity.
    Avoid,
    /// It is given up, if that leaves the group redundancy; until then it is avoided.
    Fail,
}

impl SlowAction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Show, Self::Avoid, Self::Fail];

    /// The word of the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Show => "show",
            Self::Avoid => "avoid",
            Self::Fail => "fail",
        }
    }
}

/// When a member has done too badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// A member with more errors than this of late is given up, if its group can lose it; 0 for never.
    pub max_errors: u32,
    /// The time in which errors count half, in nanoseconds; not 0.
    pub error_window_ns: Nanos,
    /// A member that takes more than so many times as long as the others is slow; 0 for never.
    pub slow_factor: u32,
    /// For how long it must be that, in nanoseconds; not 0.
    pub slow_window_ns: Nanos,
    /// What is done about it.
    pub slow_action: SlowAction,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            max_errors: 20,
            error_window_ns: 3600 * SECOND_NS,
            slow_factor: 5,
            slow_window_ns: 30 * SECOND_NS,
            slow_action: SlowAction::Show,
        }
    }
}

/// How well a member does, since it came or the array was assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberHealth {
    /// Reads that failed.
    pub errors_read: u64,
    /// Writes and flushes that failed.
    pub errors_write: u64,
    /// Chunks, or parts, that were rewritten after a read that failed.
    pub repaired: u64,
    /// Errors of late: half as many with every window that has passed.
    pub errors_recent: u32,
    /// Whether these are too many; the group cannot lose it, then.
    pub has_too_many_errors: bool,
    /// Whether it is slower than the others.
    pub is_slow: bool,
    /// How long reads take.
    pub reads: Latency,
    /// How long writes take.
    pub writes: Latency,
}

/// Something about a member that somebody should hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthNews {
    /// It has passed the limit of errors. Given up, or kept because the group cannot lose it.
    TooManyErrors {
        /// The member.
        member: usize,
        /// Its errors of late.
        errors: u32,
        /// Whether it was given up.
        is_failed: bool,
    },
    /// It is slow.
    Slow {
        /// The member.
        member: usize,
        /// What it takes on the mean, in nanoseconds.
        mean_ns: Nanos,
        /// What the others take, in nanoseconds.
        others_ns: Nanos,
    },
    /// It was given up because it is slow.
    SlowFailed {
        /// The member.
        member: usize,
    },
    /// It is not slow any more.
    NotSlow {
        /// The member.
        member: usize,
    },
}

/// What is known of all members together.
#[derive(Default)]
pub(crate) struct Watch {
    policy: Cell<HealthPolicy>,
    round_ends_ns: Cell<Nanos>,
    news: RefCell<VecDeque<HealthNews>>,
    /// Whom to tell that something has changed.
    listener: RefCell<Option<Rc<dyn Fn()>>>,
}

impl Watch {
    /// The same in an array that takes over.
    pub(crate) fn moved(&self) -> Watch {
        Watch {
            policy: self.policy.clone(),
            round_ends_ns: self.round_ends_ns.clone(),
            news: RefCell::new(self.news.take()),
            listener: self.listener.clone(),
        }
    }

    /// Has the listener look at the array.
    pub(crate) fn tell(&self) {
        let listener = self.listener.borrow().clone();
        listener.iter().for_each(|listener| listener());
    }

    fn say(&self, news: HealthNews) {
        let mut queue = self.news.borrow_mut();
        if queue.len() == NEWS_MAX {
            queue.pop_front();
        }
        queue.push_back(news);
        drop(queue);
        self.tell();
    }
}

fn add_one(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// What members took in a round, of one kind of I/O; none of those of whom nothing is known.
struct Means(Vec<Option<Nanos>>);

impl Means {
    /// The median of the others with which a member is compared: those of its group, or of all groups if
    /// there are not two others in its own.
    fn of_others(&self, member: usize, group: impl Iterator<Item = usize>) -> Option<Nanos> {
        let mut others: Vec<usize> = group.filter(|other| *other != member).collect();
        if others.len() < 2 {
            others = (0..self.0.len()).filter(|other| *other != member).collect();
        }
        let mut means: Vec<Nanos> = others.into_iter().filter_map(|other| self.0[other]).collect();
        means.sort_unstable();
        // Of an even number the slower one: when in doubt, nobody is blamed.
        means.get(means.len() / 2).copied()
    }
}

/// What a round says of a member.
struct Verdict {
    is_slow: bool,
    mean_ns: Nanos,
    others_ns: Nanos,
}

impl<D> Inner<D> {
    /// A read of a member begins.
    #[inline]
    pub(crate) fn begin_read(&self, member: usize) -> ReadUnderWay<'_> {
        self.members[member].watch().begin_read(|| self.handle.now())
    }

    /// A write of a member begins; when, if it is timed, or 0. It runs to its end.
    #[inline]
    pub(crate) fn begin_write(&self, member: usize) -> Nanos {
        self.members[member].watch().begin(Timed::Write, || self.handle.now())
    }

    pub(crate) fn note_repair(&self, member: usize) {
        self.counters.add(|counts| counts.repairs += 1);
        add_one(&self.members[member].watch().repaired);
    }

    /// A write or a flush has failed.
    pub(crate) fn note_failed_change(&self, member: usize) {
        add_one(&self.members[member].watch().errors_write);
    }

    /// What the members took in this round.
    fn means(&self, timed: Timed, now: Nanos, round_ns: Nanos) -> Means {
        let mean = |member: &crate::members::Member<D>| {
            let watch = member.watch();
            let under_way = watch.under_way_ns(timed, now).filter(|took| *took >= round_ns / 2);
            let samples = watch.samples(timed).borrow();
            member.is_online().then(|| samples.mean_ns(SAMPLES_MIN, under_way)).flatten()
        };
        Means(self.members.iter().map(mean).collect())
    }

    fn verdict(&self, member: usize, means: &[Means], factor: u32) -> Option<Verdict> {
        let is_slow_now = self.members[member].watch().is_slow();
        let mut verdict: Option<Verdict> = None;
        for means in means {
            let group = self.geometry.members_of(self.geometry.group_of_member(member));
            let (Some(mean_ns), Some(others_ns)) =
                (means.0[member], means.of_others(member, group))
            else {
                continue;
            };
            let limit_ns = others_ns.saturating_mul(factor.into()).max(SLOW_NS_MIN);
            let is_slow = mean_ns > limit_ns;
            // Who is called slow must become better by more than a hair.
            let is_between = is_slow_now && !is_slow && mean_ns > limit_ns / 2;
            if is_between {
                return None;
            }
            if is_slow || verdict.is_none() {
                verdict = Some(Verdict { is_slow, mean_ns, others_ns });
            }
        }
        verdict
    }

    fn set_avoided(&self, member: usize) {
        let watch = self.members[member].watch();
        let is_shown_only = self.watch.policy.get().slow_action == SlowAction::Show;
        let may_avoid = self.geometry.is_mirror() || !is_shown_only;
        watch.set_avoided(watch.is_slow() && may_avoid);
    }

    pub(crate) fn health_of(&self, member: usize) -> MemberHealth {
        let (watch, policy) = (self.members[member].watch(), self.watch.policy.get());
        let errors_recent = watch.recent(self.handle.now(), policy.error_window_ns);
        MemberHealth {
            errors_read: watch.errors_read.get(),
            errors_write: watch.errors_write.get(),
            repaired: watch.repaired.get(),
            errors_recent,
            has_too_many_errors: policy.max_errors > 0 && errors_recent > policy.max_errors,
            is_slow: watch.is_slow(),
            reads: watch.samples(Timed::Read).borrow().latency(),
            writes: watch.samples(Timed::Write).borrow().latency(),
        }
    }
}

impl<D: BlockDevice> Inner<D> {
    /// A read has ended.
    #[inline]
    pub(crate) fn end_read(self: &Rc<Self>, member: usize, under_way: ReadUnderWay<'_>) {
        let since = under_way.end();
        if since != 0 {
            self.end_timed(member, Timed::Read, since);
        }
    }

    /// A write has ended that began then.
    #[inline]
    pub(crate) fn end_write(self: &Rc<Self>, member: usize, since: Nanos) {
        if since != 0 {
            self.members[member].watch().end();
            self.end_timed(member, Timed::Write, since);
        }
    }

    #[cold]
    fn end_timed(self: &Rc<Self>, member: usize, timed: Timed, since: Nanos) {
        let now = self.handle.now();
        let took_ns = now.saturating_sub(since);
        self.members[member].watch().add(timed, took_ns);
        if now >= self.watch.round_ends_ns.get() {
            self.end_round(now);
        }
    }

    fn end_round(self: &Rc<Self>, now: Nanos) {
        let policy = self.watch.policy.get();
        let round_ns = (policy.slow_window_ns / Nanos::from(ROUNDS)).max(1);
        let is_first = self.watch.round_ends_ns.replace(now + round_ns) == 0;
        // Members that others are filled from have more to do than their peers.
        let is_uneven = self.progress(BackgroundTask::Rebuild, 0, 0).is_running;
        if is_first || is_uneven || policy.slow_factor == 0 {
            self.forget_means(|_| true);
            return;
        }
        let means = [Timed::Read, Timed::Write].map(|timed| self.means(timed, now, round_ns));
        for member in 0..self.members.len() {
            let Some(verdict) = self.verdict(member, &means, policy.slow_factor) else { continue };
            if self.members[member].watch().judge(verdict.is_slow) {
                self.set_avoided(member);
                let Verdict { is_slow, mean_ns, others_ns } = verdict;
                self.watch.say(if is_slow {
                    HealthNews::Slow { member, mean_ns, others_ns }
                } else {
                    HealthNews::NotSlow { member }
                });
            }
            let is_slow = self.members[member].watch().is_slow();
            if is_slow && policy.slow_action == SlowAction::Fail && self.can_spare(member, 1) {
                self.give_up(member);
                self.watch.say(HealthNews::SlowFailed { member });
            }
        }
        self.forget_means(|member| means.iter().any(|means| means.0[member].is_some()));
    }

    fn forget_means(&self, is_done: impl Fn(usize) -> bool) {
        for member in (0..self.members.len()).filter(|member| is_done(*member)) {
            self.members[member].watch().forget_means();
        }
    }

    /// Whether a member in service can be given up by choice, so that its group can lose `more` after
    /// that: never while some of its parity may not match.
    fn can_spare(&self, member: usize, more: usize) -> bool {
        let group = self.geometry.group_of_member(member);
        let rows = 0..self.geometry.member_sectors() / self.geometry.chunk_sectors();
        let marks = self.durable.as_ref().map(|durable| &durable.marks);
        self.members[member].is_online()
            && self.lost_in(group) + 1 + more <= self.geometry.parity_chunks()
            && marks.is_none_or(|marks| marks.next_in_doubt(0).is_none())
            && !self.has_half_written(group, rows)
    }

    fn give_up(self: &Rc<Self>, member: usize) {
        self.lose(member);
        self.begin_to_store();
    }

    /// A read has failed; it is made good from the others, if there are any.
    #[cold]
    pub(crate) fn read_failed(self: &Rc<Self>, member: usize, device: &Rc<D>, error: IoError) {
        if !self.members[member].is_device(device) {
            return;
        }
        if error == IoError::Gone {
            self.lose(member);
            return;
        }
        add_one(&self.members[member].watch().errors_read);
        self.note_error(member);
    }

    /// A write has failed; whether to try once more. A drive that remaps a block does so when it is
    /// written, and a path that was lost for a moment is back.
    #[cold]
    pub(crate) fn may_try_again(
        self: &Rc<Self>,
        member: usize,
        device: &Rc<D>,
        error: IoError,
    ) -> bool {
        if error != IoError::Medium || !self.members[member].is_device(device) {
            return false;
        }
        self.note_failed_change(member);
        self.note_error(member);
        self.members[member].is_device(device)
    }

    /// Writes to a member; what fails with a medium error is written once more.
    pub(crate) async fn write_device(
        self: &Rc<Self>,
        member: usize,
        device: &Rc<D>,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        match device.write(at, data.clone(), durability).await {
            Err(error) if self.may_try_again(member, device, error) => {
                Box::pin(device.write(at, data, durability)).await
            }
            result => result,
        }
    }

    fn note_error(self: &Rc<Self>, member: usize) {
        let policy = self.watch.policy.get();
        let watch = self.members[member].watch();
        let errors = watch.add_error(self.handle.now(), policy.error_window_ns);
        if policy.max_errors == 0 || errors <= policy.max_errors {
            return;
        }
        let is_failed = self.can_spare(member, 0);
        if is_failed {
            self.give_up(member);
        }
        // Once for each time that it passes the limit.
        if is_failed || errors == policy.max_errors + 1 {
            self.watch.say(HealthNews::TooManyErrors { member, errors, is_failed });
        }
    }

    /// Has slots of slow members not read, as far as the others have all they hold.
    pub(crate) fn avoid_slow(&self, stripe: Stripe, states: &mut [SlotState]) {
        if self.is_in_doubt(stripe) {
            return;
        }
        let mut left = self.geometry.parity_chunks() - unusable(states).len();
        for (slot, state) in states.iter_mut().enumerate() {
            let member = &self.members[self.shape(stripe).member_of(stripe, slot)];
            let is_avoided = *state == SlotState::Online && member.watch().is_avoided();
            if is_avoided && left > 0 {
                *state = SlotState::Lost;
                left -= 1;
            }
        }
    }
}

impl<D: BlockDevice> Array<D> {
    /// Says when a member has done too badly, and what is done then.
    ///
    /// # Panics
    /// If a window is 0.
    pub fn set_health_policy(&self, policy: HealthPolicy) {
        assert!(policy.error_window_ns > 0 && policy.slow_window_ns > 0, "windows are not 0");
        let inner = &self.0;
        inner.watch.policy.set(policy);
        inner.watch.round_ends_ns.set(0);
        for (number, member) in inner.members.iter().enumerate() {
            member.watch().judge_anew(policy.slow_factor > 0);
            inner.set_avoided(number);
        }
    }

    /// When a member has done too badly.
    pub fn health_policy(&self) -> HealthPolicy {
        self.0.watch.policy.get()
    }

    /// How well a member does.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn health(&self, member: usize) -> MemberHealth {
        self.0.health_of(member)
    }

    /// What happened to members since this was last asked, the oldest first.
    pub fn take_health_news(&self) -> Vec<HealthNews> {
        self.0.watch.news.take().into()
    }

    /// Whom to tell when members came, went, or did badly. It is called in the middle of things: it may
    /// not use the array.
    pub fn set_listener(&self, listener: impl Fn() + 'static) {
        self.0.watch.listener.replace(Some(Rc::new(listener)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_others_is_of_the_group_or_of_all_if_that_is_a_pair() {
        let means = Means([1, 9, 5, 4, 100, 6].map(Some).into());
        assert_eq!(means.of_others(0, 0..3), Some(9));
        assert_eq!(means.of_others(4, 3..6), Some(6));
        assert_eq!(means.of_others(4, 4..6), Some(5));
        assert_eq!(means.of_others(1, [1, 3, 5].into_iter()), Some(6));
        assert_eq!(Means(vec![Some(1), None]).of_others(0, 0..2), None);
    }
}
