//! Pages of checksums that cannot be read are made anew: all of their blocks are held against the other
//! members, in the background.
//!
//! Reads hold what they need against the others by themselves (`stripe::vouch`). The task does the same for
//! the rest of a page, because what is not read may be wrong as well, and the page is to be stored again.
//! Pages with blocks that nothing can be held against are looked at again every minute: a scrub gives
//! checksums, and so does a member that comes back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{DriveControl, Lba, Nanos};
use voltier_ring::{Handle, Signal};

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{MemberIndex, Row, StripeNumber};
use crate::members::checksums::checked::Checked;
use crate::members::health::HealthNews;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::foreground::Foreground;
use crate::stripe::ground::Ground;
use crate::stripe::stripes::{Access, Stripes};
use crate::stripe::vouch::Vouched;
use crate::tasks::pace::{Pacer, Pacing};
use crate::tasks::rebuild::RebuildTask;

/// When pages that could not be made anew are looked at again.
const RETRY_NS: Nanos = 60_000_000_000;

/// A page of a member's checksums.
type Page = (MemberIndex, u64);

/// The task that makes pages of checksums anew.
pub(crate) struct Vouching<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
    foreground: Rc<Foreground>,
    /// The pace of a rebuild is that of this task as well.
    rebuild: Rc<RebuildTask<D>>,
    pacer: Pacer,
    is_running: Cell<bool>,
    ended: Signal,
    /// Pages of which not all could be held against something.
    left: RefCell<BTreeMap<Page, Left>>,
}

/// A page of which not all could be held against something.
struct Left {
    /// How often members had come or gone then; none if there is more to be had in any case.
    changes: Option<u64>,
    is_due: bool,
}

/// A page that is being made anew.
struct Work {
    page: Page,
    rows: Range<Row>,
    /// Whether more may be known than the last time. Otherwise it is only seen whether others have given the
    /// blocks checksums.
    may_vouch: bool,
    /// Of what was done so far.
    worst: Vouched,
    /// Whether a stripe needs a resync, which gives its blocks checksums.
    awaits_resync: bool,
}

impl<D: DriveControl> Vouching<D> {
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
            left: RefCell::default(),
        })
    }

    /// Waits until the task is not running.
    pub(crate) async fn ended(&self) {
        self.ended.until(|| !self.is_running.get()).await;
    }

    /// Starts the task, if it is not running.
    pub(crate) fn begin(self: &Rc<Self>) {
        if self.is_over() || self.is_running.replace(true) {
            return;
        }
        self.pacer.start(self.handle.now());
        let (task, handle) = (Rc::downgrade(self), self.handle.clone());
        drop(self.handle.spawn(async move {
            let mut work = None;
            // Between two stripes nothing keeps the task.
            while let Some(task) = task.upgrade() {
                if !task.go_on(&mut work).await {
                    task.is_running.set(false);
                    task.ended.notify();
                    break;
                }
            }
            let has_left = |task: &Rc<Self>| !task.is_over() && !task.left.borrow().is_empty();
            if task.upgrade().as_ref().is_some_and(has_left) {
                handle.sleep(RETRY_NS).await;
                let Some(task) = task.upgrade().filter(has_left) else { return };
                task.left.borrow_mut().values_mut().for_each(|left| left.is_due = true);
                task.begin();
            }
        }));
    }

    fn is_over(&self) -> bool {
        self.membership.is_closed() || self.members.is_superseded()
    }

    fn checked(&self, member: MemberIndex) -> Option<Rc<Checked>> {
        let device = self.members[member].device().ok()?;
        self.members.devices().checked(&device)
    }

    /// Does the next stripe; whether there is more.
    async fn go_on(&self, work: &mut Option<Work>) -> bool {
        if self.is_over() {
            return false;
        }
        let Some(now) = work else {
            *work = self.next_work();
            return work.is_some();
        };
        if now.rows.is_empty() {
            work.take().into_iter().for_each(|done| self.end(&done));
            return true;
        }
        let row = now.rows.start;
        now.rows.start = row + 1;
        let (member, _) = now.page;
        let stripe = self.stripes.stripe_of(self.geometry.group_of_member(member), row);
        if self.bitmap.is_blank(stripe) {
            return true;
        }
        if self.bitmap.needs_resync(stripe) {
            now.awaits_resync = true;
            return true;
        }
        let whole = Span { start: 0, end: self.geometry.chunk_sectors() };
        let slot = self.geometry.slot_of(stripe, member);
        let Some(slot) = slot.filter(|_| !now.may_vouch) else {
            return self.vouch(now, stripe, whole).await;
        };
        if self.stripes.has_unknown(stripe, slot, whole).await {
            now.worst = Vouched::Unchecked;
        }
        true
    }

    /// Holds the blocks of a stripe against each other; whether there is more to do.
    async fn vouch(&self, now: &mut Work, stripe: StripeNumber, whole: Span) -> bool {
        self.await_turn().await;
        if self.is_over() {
            return false;
        }
        let (begun, bytes) = (self.handle.now(), whole.bytes() as u64);
        self.pacer.begin(begun, bytes);
        let guard = self.stripes.lock(stripe, whole, Access::Exclusive).await;
        now.worst = now.worst.max(self.stripes.vouch(stripe, whole).await);
        drop(guard);
        self.pacer.end(self.handle.now(), begun, bytes);
        true
    }

    /// The first damaged page that is new, or may have got something to be held against.
    fn next_work(&self) -> Option<Work> {
        let changes = self.members.changes();
        let mut left = self.left.borrow_mut();
        left.retain(|(member, page), _| {
            self.checked(*member).is_some_and(|checked| checked.damaged().contains(page))
        });
        for member in self.members.indexes() {
            let Some(checked) = self.checked(member) else { continue };
            let is_due = |page: &u64| left.get(&(member, *page)).is_none_or(|left| left.is_due);
            if let Some(page) = checked.damaged().into_iter().find(is_due) {
                let before = left.get(&(member, page)).and_then(|left| left.changes);
                let sectors = checked.sectors_of(page);
                let last = Lba(sectors.end.0.saturating_sub(1));
                let rows = self.geometry.row_at(sectors.start)..self.geometry.row_at(last) + 1;
                return Some(Work {
                    page: (member, page),
                    rows,
                    may_vouch: before != Some(changes),
                    worst: Vouched::Right,
                    awaits_resync: false,
                });
            }
        }
        None
    }

    /// All stripes of a page have been looked at.
    fn end(&self, work: &Work) {
        let (member, page) = work.page;
        let Some(checked) = self.checked(member) else { return };
        let sectors = checked.sectors_on_device(page);
        if work.worst == Vouched::Right && !work.awaits_resync {
            self.left.borrow_mut().remove(&work.page);
            checked.note_whole(page);
            if checked.may_tell_end() {
                let news = HealthNews::ChecksumsRebuilt { member: member.0, sectors };
                self.members.health().say(news);
            }
            return;
        }
        let changes = (!work.awaits_resync).then(|| self.members.changes());
        let left = Left { changes, is_due: false };
        let before = self.left.borrow_mut().insert(work.page, left);
        if before.is_none() && work.worst != Vouched::Right && checked.may_tell_end() {
            let news = HealthNews::BlocksUnchecked { member: member.0, sectors };
            self.members.health().say(news);
        }
    }

    /// Waits until the next stripe may be read beside requests, or the array is being stopped.
    async fn await_turn(&self) {
        while !self.is_over() {
            self.pacer.set_pace_if_new(self.rebuild.pace());
            match self.pacer.pacing(self.handle.now(), &self.foreground) {
                Pacing::Go => return,
                Pacing::WaitUntil(until_ns) => self.handle.sleep_until(until_ns).await,
            }
        }
    }
}
