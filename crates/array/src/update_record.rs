//! The record of the array: what its members say is made what is true, as one protocol.

use std::rc::Rc;

use voltier_block::{DriveControl, IoResult};
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::format::superblock::{
    ArrayRecord, JournalDeviceRecord, MemberRecord, MemberState, Superblock,
};
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{MemberIndex, Region};
use crate::journal::transaction::Journal;
use crate::members::at_once::together;
use crate::members::label_copies::{evict, write_superblock};
use crate::members::member::Member;
use crate::members::member_set::MemberSet;
use crate::membership::current::{Membership, UpdateClaim};
use crate::stripe::ground::Ground;
use crate::stripe::stripes::Stripes;
use crate::tasks::replace::Replacements;

/// The news of an update, and the record before the news.
struct RecordNews {
    before: ArrayRecord,
    next: ArrayRecord,
    /// Whether a member in service goes: it comes back by the regions that are dirty.
    is_loss: bool,
    /// Whether a member comes: what it lacks is known before anybody takes it for one.
    is_join: bool,
}

/// Changes of members that a record did not say yet.
#[derive(Default)]
struct MemberNews {
    is_any: bool,
    is_loss: bool,
    is_join: bool,
}

/// New members of a record, and old ones. The array writes new members first: a member leaves on
/// record only when the superblock of the member in its place says so.
fn new_and_old(before: &ArrayRecord, next: &ArrayRecord) -> (Vec<MemberIndex>, Vec<MemberIndex>) {
    let is_new =
        |member: &MemberIndex| before.get(*member).map(|it| it.uuid) != Some(next[*member].uuid);
    next.indexes().partition(is_new)
}

/// Updates of the record of an array.
pub(crate) struct UpdateRecord<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    bitmap: Rc<Bitmap<D>>,
    journal: Rc<Journal<D>>,
    stripes: Rc<Stripes<D>>,
    replacements: Rc<Replacements<D>>,
}

impl<D: DriveControl> UpdateRecord<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        replacements: &Rc<Replacements<D>>,
    ) -> Rc<Self> {
        let Ground { handle, geometry, members, membership, bitmap, journal, .. } = ground.clone();
        let (stripes, replacements) = (stripes.clone(), replacements.clone());
        Rc::new(Self {
            handle,
            geometry,
            members,
            membership,
            bitmap,
            journal,
            stripes,
            replacements,
        })
    }

    /// Updates the record from now on when the membership asks for that. The membership does not keep the
    /// array alive.
    pub(crate) fn install(self: &Rc<Self>) {
        let own = Rc::downgrade(self);
        self.membership.set_update(Rc::new(move || {
            let update = own.upgrade();
            update.as_ref().inspect(|update| update.begin()).is_some()
        }));
    }

    /// Has the news stored by a task of its own, if none is at work. The task goes on when nobody waits.
    fn begin(self: &Rc<Self>) {
        if let Some(claim) = self.membership.claim_update() {
            let update = self.clone();
            drop(self.handle.spawn(async move { update.store_news(claim).await }));
        }
    }

    async fn store_news(self: Rc<Self>, claim: UpdateClaim) {
        while let Some(changes) = self.membership.news() {
            let result = self.update_record().await;
            self.membership.end_update(changes, result);
        }
        drop(claim);
        self.members.health().tell();
        // What a replay brings in place is nowhere else: nobody is filled before. The recovery does this then.
        if self.journal.check().is_ok() {
            self.replacements.begin_to_use_spares();
        }
    }

    /// Makes durable on all members what is true now and the record does not say. The order is the protocol:
    /// each step relies on those before it.
    async fn update_record(self: &Rc<Self>) -> IoResult<()> {
        self.journal.leave_failing_device().await?;
        self.flush_before_loss().await?;
        self.members.check_groups()?;
        if let Some(next) = self.membership.stored_in_part() {
            self.store(self.membership.record(), next, true).await?;
        }
        let needs_resync = self.flush_before_resync_ends().await?;
        let Some(news) = self.news_of_record(needs_resync) else { return Ok(()) };
        let RecordNews { before, next, is_loss, is_join } = news;
        if is_loss {
            self.bitmap.call_dirty_what_may_be_missing().await?;
        }
        if is_join && !canary::is(Canary::JoinBeforeMap) {
            self.bitmap.store_whole_map().await?;
        }
        self.store(before, next, is_loss).await
    }

    /// Stores a record on all members that it is for. One that only some of them took is kept, and stored first
    /// the next time, unchanged: one event has one record.
    async fn store(
        self: &Rc<Self>,
        before: ArrayRecord,
        next: ArrayRecord,
        is_loss: bool,
    ) -> IoResult<()> {
        self.membership.begin_store(&next);
        self.journal.placement().write_device_label(&next).await;
        let (new, old) = new_and_old(&before, &next);
        self.write_superblocks(&next, new.clone()).await?;
        self.write_superblocks(&next, old).await?;
        self.membership.stored(next);
        let is_replaced = self.evict_replaced(&before, new).await;
        if is_loss || is_replaced {
            // A device that has left can have all that a start needs, and the others may be away then.
            self.membership.count_kept().await;
        }
        Ok(())
    }

    /// Members often go together, with their shelf. Nothing is acknowledged any more without those
    /// that cannot be spared: then none of them is lost on record, and all may come back.
    async fn flush_before_loss(&self) -> IoResult<()> {
        if self.membership.has_unrecorded_loss(&self.members) {
            self.members.flush().await?;
        }
        Ok(())
    }

    /// Whether regions need a resync that no replay makes right. Before the record says that none does,
    /// what was made to match is durable.
    async fn flush_before_resync_ends(&self) -> IoResult<bool> {
        // While the array has failed, flushes may fail until the replay, which this record comes before.
        let is_open =
            || self.membership.has_failed() || self.bitmap.next_to_resync(Region(0)).is_some();
        let needs_resync = self.membership.needs_resync() && is_open();
        if self.membership.record().needs_resync && !needs_resync {
            self.members.flush().await?;
            self.membership.resync_has_ended();
        }
        Ok(needs_resync)
    }

    /// The record as it is to be; none if the members say all of it already.
    fn news_of_record(&self, needs_resync: bool) -> Option<RecordNews> {
        let before = self.membership.record();
        let mut next = before.clone();
        next.event += u64::from(!canary::is(Canary::EventNotRaised));
        next.usage = self.membership.usage();
        next.needs_resync = needs_resync;
        let is_due = self.membership.take_due();
        let is_grown = self.put_geometry(&mut next);
        let is_moved = self.put_journal(&mut next);
        let is_reshaped = self.put_reshape(&mut next);
        let MemberNews { is_any, is_loss, is_join } = self.put_members(&mut next);
        let is_join = is_join || is_grown;
        let is_news = is_due || next.usage != before.usage || is_grown || is_moved || is_reshaped;
        (is_news || is_any).then_some(RecordNews { before, next, is_loss, is_join })
    }

    /// Puts the geometry into a record, and members that came with it. Returns whether the geometry is news.
    fn put_geometry(&self, next: &mut ArrayRecord) -> bool {
        if next.geometry == self.geometry {
            return false;
        }
        next.geometry = self.geometry.clone();
        let (known, since_event) = (next.members.len(), next.event);
        let added = self.members.iter().skip(known).map(Member::uuid);
        let state = MemberState::Absent;
        next.members.extend(added.map(|uuid| MemberRecord { uuid, state, since_event }));
        true
    }

    /// Puts the journal's device into a record; whether that is news.
    fn put_journal(&self, next: &mut ArrayRecord) -> bool {
        let journal = self.journal.placement().identity();
        if journal == next.journal_device.map(|it| (it.uuid, it.state)) {
            return false;
        }
        let since_event = next.event;
        let record = |(uuid, state)| JournalDeviceRecord { uuid, state, since_event };
        next.journal_device = journal.map(record);
        true
    }

    /// Puts the frontier of a reshape into a record; whether that is news.
    fn put_reshape(&self, next: &mut ArrayRecord) -> bool {
        let reshape = self.stripes.two_shapes().map(|two| two.record());
        std::mem::replace(&mut next.reshape, reshape) != reshape
    }

    /// Puts the states of all members into a record.
    fn put_members(&self, next: &mut ArrayRecord) -> MemberNews {
        let mut news = MemberNews::default();
        for (member, record) in self.members.iter().zip(&mut next.members) {
            let (state, uuid) = (member.state(record.state), member.uuid());
            if (record.state, record.uuid) != (state, uuid) {
                news.is_any = true;
                news.is_loss |= record.state == MemberState::InService && state != record.state;
                news.is_join |= record.uuid != uuid || state == MemberState::Rebuilding;
                (record.state, record.uuid, record.since_event) = (state, uuid, next.event);
            }
        }
        news
    }

    /// Tells devices that successors have replaced them.
    async fn evict_replaced(&self, before: &ArrayRecord, members: Vec<MemberIndex>) -> bool {
        let mut is_replaced = false;
        for member in members {
            let Some((device, uuid)) = self.members[member].take_replaced() else { continue };
            is_replaced = true;
            let mut array = before.clone();
            array[member].uuid = uuid;
            let device_sectors = device.limits().sectors;
            evict(&*device, Superblock { array, member, device_sectors }).await;
        }
        is_replaced
    }

    /// Writes the record to those members that it calls in service or rebuilding. A member that does not
    /// take the record is lost, which is news.
    async fn write_superblocks(
        self: &Rc<Self>,
        record: &ArrayRecord,
        members: Vec<MemberIndex>,
    ) -> IoResult<()> {
        let is_used =
            |member: &MemberIndex| record.is_in_service(*member) || record.is_rebuilding(*member);
        let used = members.into_iter().filter(is_used);
        let writes = used.map(|member| self.clone().write_own(member, record.clone()));
        let results = together(&self.handle, writes.collect()).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.members.check_groups()
    }

    async fn write_own(self: Rc<Self>, member: MemberIndex, array: ArrayRecord) -> IoResult<()> {
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        if self.members[member].uuid() != array[member].uuid {
            // The device came when the record was on its way: the next record names the device.
            return Ok(());
        }
        let device_sectors = device.limits().sectors;
        self.members.counters().add(|counts| counts.metadata_writes += 2);
        let superblock = Superblock { array, member, device_sectors };
        let write = || write_superblock(&*device, &superblock);
        let result = self.members.again(member, &device, write().await, write).await;
        self.members.lose_on_error(member, &device, result)
    }
}
