//! Members that refuse requests: a path that is switched over, an adapter that restarts, a file system that is
//! full, drives that somebody has set read-only.
//!
//! The cause may pass. So a change that a member refuses is tried again for some seconds. Then a member that is
//! alone with that is lost. When others refuse requests too, the cause may be a common one: the change waits for
//! longer, and fails in the end. No more members are lost for it than their group can lose, because what was
//! thrown away so would not come back by itself.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use voltier_block::{IoError, IoResult, Nanos};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::geometry::numbers::MemberIndex;

const SECOND_NS: Nanos = 1_000_000_000;
/// The rests before each further try: 3.1 s in all.
pub(super) const RESTS_NS: [Nanos; 5] =
    [SECOND_NS / 10, SECOND_NS / 5, 2 * SECOND_NS / 5, 4 * SECOND_NS / 5, 8 * SECOND_NS / 5];
/// The rest before each further one while others refuse requests, and for how long: as long as an adapter takes
/// to restart.
const COMMON_REST_NS: Nanos = SECOND_NS;
const COMMON_NS_MAX: Nanos = 30 * SECOND_NS;
/// For so long a member counts as one without space.
const SHORT_NS: Nanos = 600 * SECOND_NS;
/// For so long a member counts as one that fails reads: longer than a rest.
const READS_OF_LATE_NS: Nanos = 5 * SECOND_NS;
/// For so long a member counts as one that refuses changes, unless it takes one: others may have to be judged
/// while it is asked for nothing.
const CHANGES_OF_LATE_NS: Nanos = 2 * COMMON_NS_MAX;
/// For so long a member still counts when it takes changes again: drives behind one adapter come back one after the
/// other, and the last is not alone with its trouble.
const BACK_NS: Nanos = 5 * SECOND_NS;
/// Flushes of all members end in some order. One that fails waits so long before it is judged.
pub(super) const FLUSH_JUDGED_NS: Nanos = SECOND_NS / 5;

/// What a member refused last, when that began, when it was last so, and since when it is not any more.
#[derive(Clone, Copy)]
struct Refusal {
    error: IoError,
    since: Nanos,
    at: Nanos,
    over: Option<Nanos>,
}

/// What each member refused last.
#[derive(Default)]
struct OfMembers(RefCell<BTreeMap<MemberIndex, Refusal>>);

impl OfMembers {
    /// One more of a member; when it began to refuse.
    fn note(&self, member: MemberIndex, error: IoError, now: Nanos, of_late_ns: Nanos) -> Nanos {
        let mut all = self.0.borrow_mut();
        let before = all.get(&member).filter(|it| it.at + of_late_ns > now && it.over.is_none());
        let since = before.map_or(now, |it| it.since);
        all.insert(member, Refusal { error, since, at: now, over: None });
        since
    }

    /// A member does not refuse it any more.
    fn end(&self, member: MemberIndex, now: Nanos) {
        if let Some(refusal) = self.0.borrow_mut().get_mut(&member) {
            refusal.over.get_or_insert(now);
        }
    }

    /// Nobody does.
    fn end_all(&self, now: Nanos) {
        self.0.borrow_mut().values_mut().for_each(|it| _ = it.over.get_or_insert(now));
    }

    /// The members that refused something within so long, and not only before they came back.
    fn of_late(&self, now: Nanos, of_late_ns: Nanos) -> BTreeSet<MemberIndex> {
        let all = self.0.borrow();
        let is_of_late = |it: &Refusal| {
            it.at + of_late_ns >= now && it.over.is_none_or(|over| over + BACK_NS > now)
        };
        all.iter().filter(|(_, it)| is_of_late(it)).map(|(member, _)| *member).collect()
    }
}

/// The members that refuse requests.
pub(crate) struct Refusals {
    handle: Handle,
    changes: OfMembers,
    /// Apart from the changes: a drive that takes a write again has not said yet that it flushes.
    flushes: OfMembers,
    reads: OfMembers,
    /// Members that are being asked whether they answer at all.
    probed: RefCell<BTreeSet<MemberIndex>>,
}

/// Whether the cause of an error may pass without anybody doing anything to the array.
const fn may_pass(error: IoError) -> bool {
    matches!(error, IoError::Medium | IoError::ReadOnly | IoError::NoSpace)
}

impl Refusals {
    pub(crate) fn new(handle: &Handle) -> Self {
        Self {
            handle: handle.clone(),
            changes: OfMembers::default(),
            flushes: OfMembers::default(),
            reads: OfMembers::default(),
            probed: RefCell::default(),
        }
    }

    /// A member has refused a change.
    pub(crate) fn note_change(&self, member: MemberIndex, error: IoError) {
        self.changes.note(member, error, self.handle.now(), CHANGES_OF_LATE_NS);
    }

    /// A member has failed a flush.
    pub(crate) fn note_flush(&self, member: MemberIndex, error: IoError) {
        self.flushes.note(member, error, self.handle.now(), CHANGES_OF_LATE_NS);
    }

    /// A member has flushed.
    pub(crate) fn forget_flush(&self, member: MemberIndex) {
        self.flushes.end(member, self.handle.now());
    }

    /// Whether a member is being asked whether it answers at all.
    pub(crate) fn is_probed(&self, member: MemberIndex) -> bool {
        self.probed.borrow().contains(&member)
    }

    /// A member is being asked that from now on, or not any more.
    pub(crate) fn note_probe(&self, member: MemberIndex, is_probed: bool) {
        let mut probed = self.probed.borrow_mut();
        if is_probed {
            probed.insert(member)
        } else {
            probed.remove(&member)
        };
    }

    /// A member has failed a read.
    pub(crate) fn note_read(&self, member: MemberIndex, error: IoError) {
        self.reads.note(member, error, self.handle.now(), READS_OF_LATE_NS);
    }

    /// The rest before reads are tried again that several members fail; none when they have failed for too
    /// long.
    pub(crate) fn rest_of_reads(&self) -> Option<Nanos> {
        let now = self.handle.now();
        let reads = self.reads.0.borrow();
        let mut of_late = reads.values().filter(|it| it.at + READS_OF_LATE_NS > now);
        of_late.any(|it| now < it.since + COMMON_NS_MAX).then_some(COMMON_REST_NS)
    }

    /// Whether several members failed reads of late, or one did so some time ago, but not longer than a request may
    /// wait for changes: the cause may have passed.
    pub(crate) fn may_have_come_back(&self) -> bool {
        let now = self.handle.now();
        let reads = self.reads.0.borrow();
        let of_late = reads.values().filter(|it| it.at + READS_OF_LATE_NS > now).count();
        let is_old = |it: &Refusal| {
            it.at + RESTS_NS[0] <= now && it.at + COMMON_NS_MAX + READS_OF_LATE_NS > now
        };
        of_late > 1 || reads.values().any(is_old)
    }

    /// Does a change of a member again while the member refuses it, as long as that is of use; longer while
    /// the cause is a common one.
    pub(crate) async fn again<F: Future<Output = IoResult<()>>>(
        &self,
        member: MemberIndex,
        mut result: IoResult<()>,
        is_of_use: impl Fn() -> bool,
        is_common: impl AsyncFn() -> bool,
        change: impl Fn() -> F,
    ) -> IoResult<()> {
        let (mut rests, mut is_last) = (RESTS_NS.into_iter(), false);
        while let Err(error) = result
            && may_pass(error)
            && is_of_use()
            && !is_last
            && !canary::is(Canary::RefusalNotAwaited)
        {
            let now = self.handle.now();
            let since = self.changes.note(member, error, now, CHANGES_OF_LATE_NS);
            // A file system that is full stays so for as long as nobody does anything.
            let waits = error != IoError::NoSpace && now < since + COMMON_NS_MAX;
            if error != IoError::NoSpace && !waits {
                // Others have waited for it already, and a request may be many changes.
                break;
            }
            match rests.next() {
                Some(rest_ns) => self.handle.sleep(rest_ns).await,
                None if waits && is_common().await => self.handle.sleep(COMMON_REST_NS).await,
                // The members may have come back since the change failed.
                None => is_last = true,
            }
            result = change().await;
            if result.is_ok() {
                self.changes.end(member, self.handle.now());
            }
        }
        result
    }

    /// All members take changes: what they refused before does not count any more.
    pub(crate) fn forget(&self) {
        let now = self.handle.now();
        self.changes.end_all(now);
        self.flushes.end_all(now);
    }

    /// Whether another member had no space of late.
    pub(crate) fn is_short_elsewhere(&self, member: MemberIndex) -> bool {
        let since = self.handle.now().saturating_sub(SHORT_NS);
        let changes = self.changes.0.borrow();
        let mut others = changes.iter().filter(|(other, _)| **other != member);
        others.any(|(_, it)| it.error == IoError::NoSpace && it.at >= since)
    }

    /// When the first of the members that refused changes or flushes of late began to.
    pub(crate) fn first_of_late(&self) -> Option<Nanos> {
        let then = self.handle.now().saturating_sub(CHANGES_OF_LATE_NS);
        let (changes, flushes) = (self.changes.0.borrow(), self.flushes.0.borrow());
        let all = changes.values().chain(flushes.values());
        all.filter(|it| it.at >= then && it.over.is_none()).map(|it| it.since).min()
    }

    /// The members that refused changes or flushes of late.
    pub(crate) fn changes_of_late(&self) -> BTreeSet<MemberIndex> {
        let now = self.handle.now();
        &self.changes.of_late(now, CHANGES_OF_LATE_NS)
            | &self.flushes.of_late(now, CHANGES_OF_LATE_NS)
    }

    /// The members that failed reads of late.
    pub(crate) fn reads_of_late(&self) -> BTreeSet<MemberIndex> {
        self.reads.of_late(self.handle.now(), READS_OF_LATE_NS)
    }
}
