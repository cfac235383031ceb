//! How well members do: their errors, and whether one is slower than the others.
//!
//! # Errors
//!
//! A read that fails is made good from the others and rewritten, and counted; a write that fails is tried
//! again (see [`refusals`](crate::members::refusals)), and counted if that helped. The count halves with every
//! window that passes. (md halves by the hours since the last error, so an error every 59 minutes adds up for
//! ever.) A member that passes the limit is given up, if its group can lose it: else all blocks that the member
//! still reads would go with it.
//!
//! # Slowness
//!
//! A member is held against its like, for no limit in milliseconds suits disks and SSDs. Means, not
//! medians: clients feel one second in a hundred requests, which a median hides.
//!
//! One I/O in 31 of each member is timed, more if they take long, one at a time. Every fifth of the
//! window the means of the members are held against each other. A member that was slower than the
//! median of the others by the factor five times in a row is *slow*. Nobody is asked while nothing is
//! timed, so an array at rest does nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Index;
use std::rc::Rc;

use voltier_block::{IoError, Nanos, SectorRange};

use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::MemberIndex;
use crate::members::counts::MemberCounts;
use crate::members::latency::Latency;
use crate::members::member::Member;
use crate::members::vitals::{ROUNDS, Timed};

const SECOND_NS: Nanos = 1_000_000_000;
/// The kernel tries a command to a disk again after 30 seconds without an answer, and resets the disk after
/// that. A disk that the kernel brings back so is not hung.
const DEADLINE_NS: Nanos = 75 * SECOND_NS;
/// Samples of a member without which a round says nothing of it.
const SAMPLES_MIN: u32 = 4;
/// A mean below this is not slow, whatever the others do.
const SLOW_NS_MIN: Nanos = 500_000;
/// News that nobody has fetched yet; more replace the oldest.
const NEWS_MAX: usize = 64;

voltier_block::words! {
    /// The action on a member that is slow.
    #[derive(Default)]
    pub enum SlowAction, "not an action" {
        /// The member is shown; of copies, the others are read.
        #[default]
        Show = "show",
        /// Reads from the member are computed from the others, too, where there is parity.
        Avoid = "avoid",
        /// The member is given up, if that leaves the group redundancy; until then it is avoided.
        Fail = "fail",
    }
}

/// When a member counts as failing or slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// A member with more recent errors than this is given up, if its group can lose it; 0 for never.
    pub max_errors: u32,
    /// The time after which an error counts half, in nanoseconds; not 0.
    pub error_window_ns: Nanos,
    /// A member is slow if it takes more than this many times as long as the others; 0 for never.
    pub slow_factor: u32,
    /// How long that must last, in nanoseconds; not 0.
    pub slow_window_ns: Nanos,
    /// What is done about a slow member.
    pub slow_action: SlowAction,
    /// A member that ends no request for so long is given up, if its group can lose it and the others
    /// answer. In nanoseconds; 0 for never.
    pub deadline_ns: Nanos,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            max_errors: 20,
            error_window_ns: 3600 * SECOND_NS,
            slow_factor: 5,
            slow_window_ns: 30 * SECOND_NS,
            slow_action: SlowAction::Show,
            deadline_ns: DEADLINE_NS,
        }
    }
}

/// How well a member does, since it came or the array was assembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberHealth {
    /// Its figures.
    pub counts: MemberCounts,
    /// Whether the recent errors are too many: the group cannot lose the member, then.
    pub has_too_many_errors: bool,
    /// Whether the member is slower than the others.
    pub is_slow: bool,
    /// How long reads take.
    pub reads: Latency,
    /// How long writes take.
    pub writes: Latency,
}

/// Something about a member that somebody should hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthNews {
    /// The member has passed the limit of errors. Given up, or kept because the group cannot lose it.
    TooManyErrors {
        /// The member.
        member: usize,
        /// The member's errors of late.
        errors: u32,
        /// Whether the member was given up.
        is_failed: bool,
    },
    /// The member is slow.
    Slow {
        /// The member.
        member: usize,
        /// The time that the member takes on the mean, in nanoseconds.
        mean_ns: Nanos,
        /// The time that the others take, in nanoseconds.
        others_ns: Nanos,
    },
    /// The member was given up because it is slow.
    SlowFailed {
        /// The member.
        member: usize,
    },
    /// The member is not slow any more.
    NotSlow {
        /// The member.
        member: usize,
    },
    /// The member was given up because it does not answer.
    Hung {
        /// The member.
        member: usize,
        /// The time that the oldest request has waited, at least, in nanoseconds.
        waited_ns: Nanos,
    },
    /// The successor of the member was given up because it does not answer.
    SuccessorHung {
        /// The member.
        member: usize,
        /// The time that the oldest request has waited, at least, in nanoseconds.
        waited_ns: Nanos,
    },
    /// The device of the journal was given up because it does not answer.
    JournalHung {
        /// The time that the oldest request has waited, at least, in nanoseconds.
        waited_ns: Nanos,
    },
    /// Members do not answer, and none of them is given up: the array cannot lose them, or the cause may
    /// be a common one.
    Waiting {
        /// How many there are.
        members: usize,
        /// The time that the oldest request has waited, at least, in nanoseconds.
        waited_ns: Nanos,
    },
    /// So many of these answer again that nothing waits for them in vain.
    WaitingEnded,
    /// Members refuse what the array cannot do without: it takes no changes.
    Failed {
        /// The error of the members.
        error: IoError,
    },
    /// The members take changes again, and so does the array. All that was acknowledged is there.
    Recovered,
    /// Checksums of blocks of the member cannot be read: the blocks are held against the other members.
    ChecksumsLost {
        /// The member.
        member: usize,
        /// The blocks, in sectors of the member's device.
        sectors: SectorRange,
    },
    /// These blocks have checksums again, and are right.
    ChecksumsRebuilt {
        /// The member.
        member: usize,
        /// The blocks, in sectors of the member's device.
        sectors: SectorRange,
    },
    /// Some of these blocks can be held against nothing, or one of their stripes does not match.
    BlocksUnchecked {
        /// The member.
        member: usize,
        /// The blocks, in sectors of the member's device.
        sectors: SectorRange,
    },
}

/// The state of all members together.
#[derive(Default)]
pub(crate) struct HealthWatch {
    policy: Cell<HealthPolicy>,
    round_ends_ns: Cell<Nanos>,
    news: RefCell<VecDeque<HealthNews>>,
    /// The listener to tell that something has changed.
    listener: RefCell<Option<Rc<dyn Fn()>>>,
}

impl HealthWatch {
    /// The same in an array that takes over.
    pub(crate) fn moved(&self) -> HealthWatch {
        HealthWatch {
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

    pub(crate) fn say(&self, news: HealthNews) {
        let mut queue = self.news.borrow_mut();
        if queue.len() == NEWS_MAX {
            queue.pop_front();
        }
        queue.push_back(news);
        drop(queue);
        self.tell();
    }
}

/// The mean times of members in a round, of one kind of I/O; none for members of which nothing is
/// known.
struct Means(Vec<Option<Nanos>>);

impl Index<MemberIndex> for Means {
    type Output = Option<Nanos>;

    fn index(&self, member: MemberIndex) -> &Option<Nanos> {
        &self.0[member.0]
    }
}

impl Means {
    /// The median of the others with which a member is compared. The others are those of its group, or of
    /// all groups if there are not two others in its own.
    fn of_others(
        &self,
        member: MemberIndex,
        group: impl Iterator<Item = MemberIndex>,
    ) -> Option<Nanos> {
        let mut others: Vec<MemberIndex> = group.filter(|other| *other != member).collect();
        if others.len() < 2 {
            others = MemberIndex::all(self.0.len()).filter(|other| *other != member).collect();
        }
        let mut means: Vec<Nanos> = others.into_iter().filter_map(|other| self[other]).collect();
        means.sort_unstable();
        // Of an even number the slower one: then fewer members are blamed.
        means.get(means.len() / 2).copied()
    }
}

/// The result of a round for a member.
pub(crate) struct Slowness {
    pub(crate) is_slow: bool,
    pub(crate) mean_ns: Nanos,
    pub(crate) others_ns: Nanos,
}

impl Means {
    /// The times of the members in this round.
    fn of<D>(members: &[Member<D>], timed: Timed, now: Nanos, round_ns: Nanos) -> Self {
        let mean = |member: &Member<D>| {
            let vitals = member.vitals();
            let under_way = vitals.under_way_ns(timed, now).filter(|took| *took >= round_ns / 2);
            let samples = vitals.samples(timed).borrow();
            member.is_online().then(|| samples.mean_ns(SAMPLES_MIN, under_way)).flatten()
        };
        Self(members.iter().map(mean).collect())
    }

    /// Whether a member has samples in this round.
    fn has(&self, member: MemberIndex) -> bool {
        self[member].is_some()
    }
}

/// A round in which members are held against each other.
pub(crate) struct HealthRound {
    means: [Means; 2],
    slow_factor: u32,
}

impl HealthRound {
    /// The verdict of the round on a member; none if nothing.
    pub(crate) fn verdict<D>(
        &self,
        geometry: &Geometry,
        index: MemberIndex,
        member: &Member<D>,
    ) -> Option<Slowness> {
        let is_slow_now = member.vitals().is_slow();
        let mut verdict: Option<Slowness> = None;
        for means in &self.means {
            let group = geometry.members_of(geometry.group_of_member(index));
            let (Some(mean_ns), Some(others_ns)) = (means[index], means.of_others(index, group))
            else {
                continue;
            };
            let limit_ns = others_ns.saturating_mul(self.slow_factor.into()).max(SLOW_NS_MIN);
            let is_slow = mean_ns > limit_ns;
            // A slow member must become better by more than a hair.
            let is_between = is_slow_now && !is_slow && mean_ns > limit_ns / 2;
            if is_between {
                return None;
            }
            if is_slow || verdict.is_none() {
                verdict = Some(Slowness { is_slow, mean_ns, others_ns });
            }
        }
        verdict
    }

    /// Whether the round had samples of a member.
    pub(crate) fn has(&self, member: MemberIndex) -> bool {
        self.means.iter().any(|means| means.has(member))
    }
}

impl HealthWatch {
    pub(crate) fn policy(&self) -> HealthPolicy {
        self.policy.get()
    }

    /// Sets the policy and begins the rounds anew.
    pub(crate) fn set_policy(&self, policy: HealthPolicy) {
        assert!(policy.error_window_ns > 0 && policy.slow_window_ns > 0, "windows are not 0");
        self.policy.set(policy);
        self.round_ends_ns.set(0);
    }

    pub(crate) fn is_round_over(&self, now: Nanos) -> bool {
        now >= self.round_ends_ns.get()
    }

    /// Ends a round; none if the members cannot be held against each other. Members that others are filled
    /// from (`is_uneven`) have more to do than their peers.
    pub(crate) fn end_round<D>(
        &self,
        members: &[Member<D>],
        now: Nanos,
        is_uneven: bool,
    ) -> Option<HealthRound> {
        let policy = self.policy.get();
        let round_ns = (policy.slow_window_ns / Nanos::from(ROUNDS)).max(1);
        let is_first = self.round_ends_ns.replace(now + round_ns) == 0;
        if is_first || is_uneven || policy.slow_factor == 0 {
            return None;
        }
        let means = [Timed::Read, Timed::Write].map(|it| Means::of(members, it, now, round_ns));
        Some(HealthRound { means, slow_factor: policy.slow_factor })
    }

    /// The health of a member by its record under the policy.
    pub(crate) fn health_of<D>(&self, member: &Member<D>, now: Nanos) -> MemberHealth {
        let (vitals, policy) = (member.vitals(), self.policy.get());
        let errors_recent = vitals.recent(now, policy.error_window_ns);
        MemberHealth {
            counts: MemberCounts { errors_recent: errors_recent.into(), ..vitals.counts() },
            has_too_many_errors: policy.max_errors > 0 && errors_recent > policy.max_errors,
            is_slow: vitals.is_slow(),
            reads: vitals.samples(Timed::Read).borrow().latency(),
            writes: vitals.samples(Timed::Write).borrow().latency(),
        }
    }

    /// The news since the last call, the oldest first.
    pub(crate) fn take_news(&self) -> Vec<HealthNews> {
        self.news.take().into()
    }

    pub(crate) fn set_listener(&self, listener: impl Fn() + 'static) {
        self.listener.replace(Some(Rc::new(listener)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_others_is_of_the_group_or_of_all_if_that_is_a_pair() {
        let means = Means([1, 9, 5, 4, 100, 6].map(Some).into());
        let of_others = |means: &Means, member, group: &[usize]| {
            means.of_others(MemberIndex(member), group.iter().map(|member| MemberIndex(*member)))
        };
        assert_eq!(of_others(&means, 0, &[0, 1, 2]), Some(9));
        assert_eq!(of_others(&means, 4, &[3, 4, 5]), Some(6));
        assert_eq!(of_others(&means, 4, &[4, 5]), Some(5));
        assert_eq!(of_others(&means, 1, &[1, 3, 5]), Some(6));
        assert_eq!(of_others(&Means(vec![Some(1), None]), 0, &[0, 1]), None);
    }
}
