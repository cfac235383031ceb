//! Members that come: in the place of one that is lost, beside one that is to go, or as spares.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use voltier_block::{DriveControl, IoError, Lba, SECTOR_BYTES};
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::errors::ArrayError;
use crate::errors::replace::ReplaceError;
use crate::format::bits::Bits;
use crate::format::member_layout::MemberLayout;
use crate::format::superblock::MemberState;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::MemberIndex;
use crate::members::label_copies::{clear_for_member, read_superblock};
use crate::members::member::Missing;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::ground::Ground;
use crate::stripe::stripes::Stripes;
use crate::tasks::background::{Closing, REST_LOOK_NS};
use crate::tasks::rebuild::RebuildTask;

/// How a device came to an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// In the place of a lost member: all that was written is computed.
    Rebuild,
    /// The device is the lost member itself: what changed since is computed.
    Return,
    /// As the successor of a member in service, which goes when the device has everything. A member that was
    /// taken out first would leave less redundancy for hours, and blocks that no other member can give.
    Successor,
}

/// A device that waits for a loss.
pub(crate) struct Spare<D> {
    device: Rc<D>,
    uuid: [u8; 16],
}

/// A device whose labels are being cleared, until dropped.
struct Clearing<'a>(&'a Cell<u32>);

impl<'a> Clearing<'a> {
    fn new(clearing: &'a Cell<u32>) -> Self {
        clearing.set(clearing.get() + 1);
        Self(clearing)
    }
}

impl Drop for Clearing<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Spares that wait.
pub(crate) type Spares<D> = VecDeque<Spare<D>>;

/// # Errors
/// When a drive has requests of before: it may do their writes at any time, over what is written now.
pub(crate) fn check_drained(device: &impl DriveControl) -> Result<(), ReplaceError> {
    let requests = device.under_way().count();
    if requests > 0 && !canary::is(Canary::UndrainedTakenBack) {
        return Err(ReplaceError::Undrained { requests });
    }
    Ok(())
}

/// Whether a device does not serve, wherever it is put. Otherwise the place is taken, or the array does
/// not get on.
fn is_about_device(error: &ArrayError) -> bool {
    let ArrayError::Replace(error) = error else { return false };
    !matches!(
        error,
        ReplaceError::NoSuchMember { .. }
            | ReplaceError::Stopped
            | ReplaceError::Busy { .. }
            | ReplaceError::Hopeless { .. }
    )
}

/// Brings devices into the array in the places of members.
pub(crate) struct Replacements<D> {
    handle: Handle,
    geometry: Geometry,
    block_bytes: u32,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    bitmap: Rc<Bitmap<D>>,
    stripes: Rc<Stripes<D>>,
    rebuild: Rc<RebuildTask<D>>,
    closing: Closing,
    spares: RefCell<Spares<D>>,
    is_using_spares: Cell<bool>,
    /// Devices whose labels are being cleared.
    clearing: Cell<u32>,
    /// The place for which a spare has left the queue, until the spare is in it or is refused; and its uuid.
    place_of_spare: Cell<Option<(MemberIndex, [u8; 16])>>,
}

impl<D: DriveControl> Replacements<D> {
    pub(crate) fn new(
        ground: &Ground<D>,
        stripes: &Rc<Stripes<D>>,
        rebuild: &Rc<RebuildTask<D>>,
        closing: &Closing,
        spares: Spares<D>,
    ) -> Rc<Self> {
        let Ground { handle, geometry, block_bytes, members, membership, bitmap, .. } =
            ground.clone();
        Rc::new(Self {
            handle,
            geometry,
            block_bytes,
            members,
            membership,
            bitmap,
            stripes: stripes.clone(),
            rebuild: rebuild.clone(),
            closing: closing.clone(),
            spares: RefCell::new(spares),
            is_using_spares: Cell::new(false),
            clearing: Cell::new(0),
            place_of_spare: Cell::new(None),
        })
    }

    /// Spares that wait, for an array that takes over.
    pub(crate) fn hand_over(&self) -> Spares<D> {
        self.spares.take()
    }

    /// # Errors
    /// Why a device does not suit as a member.
    pub(crate) fn check_device(
        &self,
        device: &impl DriveControl,
        uuid: &[u8; 16],
    ) -> Result<(), ReplaceError> {
        check_drained(device)?;
        let limits = device.limits();
        let needed = self.members.on_device(Lba(self.geometry.member_sectors())).0;
        let [_, second_copy] = MemberLayout::superblock_lbas(limits.sectors);
        let has = if self.membership.is_durable() { second_copy.0 } else { limits.sectors };
        if has < needed {
            return Err(ReplaceError::TooSmall { has, needed });
        }
        if limits.block_bytes > self.block_bytes {
            let (has, array) = (limits.block_bytes, self.block_bytes);
            return Err(ReplaceError::Blocks { has, array });
        }
        let bytes = limits.max_transfer_bytes;
        if u64::from(bytes) < self.geometry.chunk_sectors() * SECTOR_BYTES {
            return Err(ReplaceError::Transfer { bytes });
        }
        if limits.read_only {
            return Err(ReplaceError::ReadOnly);
        }
        let is_taken =
            self.membership.is_durable() && self.members.iter().any(|member| member.has_uuid(uuid));
        if is_taken { Err(ReplaceError::Uuid) } else { Ok(()) }
    }

    fn check_place(&self, member: MemberIndex) -> Result<(), ReplaceError> {
        let members = self.members.len();
        let Some(own) = self.members.get(member.0) else {
            return Err(ReplaceError::NoSuchMember { member: member.0, members });
        };
        if self.closing.is_begun() {
            return Err(ReplaceError::Stopped);
        }
        if own.is_rebuilding() || own.has_successor() {
            return Err(ReplaceError::Busy { member: member.0 });
        }
        let group = self.geometry.group_of_member(member);
        if !own.has_device() && self.members.check_group(group).is_err() {
            return Err(ReplaceError::Hopeless { member: member.0 });
        }
        Ok(())
    }

    /// The uuid of a device that is this member, given up by the others and not used since. The device
    /// lacks what is dirty and nothing else.
    async fn returning(&self, member: MemberIndex, device: &D) -> Option<[u8; 16]> {
        let record = self.membership.durable()?.record();
        let found = read_superblock(device).await.ok()??.superblock;
        let entry = record[member];
        let own = found.array.get(found.member)?;
        let is_it = found.array.uuid == record.uuid
            && found.member == member
            && own.uuid == entry.uuid
            && own.state == MemberState::InService
            && entry.state == MemberState::Lost;
        // The others had the event before the loss, it may have missed that one.
        let was_there = (1..=2).contains(&entry.since_event.saturating_sub(found.array.event));
        // A member that was used without the others has one of them lost that serves here.
        let mut others = record.members.iter().zip(&found.array.members);
        let is_apart = others.any(|(here, there)| {
            let serves = here.state == MemberState::InService;
            let is_known = here.since_event <= found.array.event;
            serves && is_known && there.state == MemberState::Lost
        });
        (is_it && was_there && !is_apart).then_some(entry.uuid)
    }

    /// Puts a device in the place of a member and begins to fill it.
    ///
    /// # Errors
    /// When the device does not suit or fails; the array is as before then.
    pub(crate) async fn replace(
        &self,
        member: MemberIndex,
        device: Rc<D>,
        uuid: [u8; 16],
    ) -> Result<Replacement, ArrayError> {
        let returning = self.look_for_return(member, &device).await?;
        self.clear_labels_of(&device, returning.is_some(), &uuid).await?;
        self.put_in_place(member, device, returning, returning.unwrap_or(uuid)).await
    }

    /// Clears what the labels of a device say that is no member, if it suits. It gets a label of its own when it
    /// has the map.
    async fn clear_labels_of(
        &self,
        device: &D,
        is_returning: bool,
        uuid: &[u8; 16],
    ) -> Result<(), ArrayError> {
        if !is_returning && self.membership.is_durable() {
            self.check_device(device, uuid)?;
            // After a stop somebody else may have the device. A stop that began meanwhile does not wait for a
            // clearing that is yet to begin.
            if self.closing.is_begun() {
                return Err(ReplaceError::Stopped.into());
            }
            let _clearing = Clearing::new(&self.clearing);
            clear_for_member(device).await.map_err(ReplaceError::Device)?;
        }
        Ok(())
    }

    /// Whether no device is being written to that has no place yet.
    pub(crate) fn is_quiet(&self) -> bool {
        self.clearing.get() == 0
    }

    /// The same of a spare, which fills the place of a lost member and does not become a successor.
    ///
    /// # Errors
    /// The errors of [`replace`](Self::replace); `Busy` when the member is back.
    async fn replace_lost(
        &self,
        member: MemberIndex,
        device: Rc<D>,
        uuid: [u8; 16],
    ) -> Result<Replacement, ArrayError> {
        let returning = self.look_for_return(member, &device).await?;
        // The member may have come back, and be whole, while the label was read.
        if self.members[member].has_device() {
            return Err(ReplaceError::Busy { member: member.0 }.into());
        }
        self.clear_labels_of(&device, returning.is_some(), &uuid).await?;
        self.put_in_place(member, device, returning, returning.unwrap_or(uuid)).await
    }

    /// Puts a lost member back that is whole but for what changed since. `false` of any other device, which
    /// is not written to.
    ///
    /// # Errors
    /// When the device does not suit or fails; the array is as before then.
    pub(crate) async fn restore_member(
        &self,
        member: MemberIndex,
        device: Rc<D>,
    ) -> Result<bool, ArrayError> {
        let Some(uuid) = self.look_for_return(member, &device).await? else { return Ok(false) };
        // Another device may have taken the place while the label was read.
        let record = self.membership.durable().map(|durable| durable.record()[member]);
        let is_lost = record.is_some_and(|it| it.uuid == uuid && it.state == MemberState::Lost);
        if !is_lost || self.members[member].has_device() {
            return Ok(false);
        }
        self.put_in_place(member, device, Some(uuid), uuid).await.map(|_| true)
    }

    /// The uuid of a device that is the lost member itself.
    async fn look_for_return(
        &self,
        member: MemberIndex,
        device: &D,
    ) -> Result<Option<[u8; 16]>, ArrayError> {
        check_drained(device)?;
        self.check_place(member)?;
        // A loss that is under way is on record first: then all that was changed since is dirty.
        self.membership.recorded().await.map_err(ArrayError::Io)?;
        Ok(self.returning(member, device).await)
    }

    /// Puts a device in a place; one that is `returning` lacks what changed since it left, and no more.
    async fn put_in_place(
        &self,
        member: MemberIndex,
        device: Rc<D>,
        returning: Option<[u8; 16]>,
        uuid: [u8; 16],
    ) -> Result<Replacement, ArrayError> {
        // Somebody may have been faster, with the same device even.
        self.check_place(member)?;
        self.check_device(&device, &uuid)?;
        let own = &self.members[member];
        let missing = Missing::of_pending_member(Bits::all(self.bitmap.regions().count()));
        let is_successor = own.has_device();
        if returning.is_some() {
            let none = || Bits::new(self.bitmap.regions().count());
            self.members.devices().join(&device, uuid, none);
        } else {
            self.members.devices().join_new(&device, uuid);
        }
        if is_successor {
            self.stripes.set_has_successor(true);
            own.begin_succession(device.clone(), uuid, missing);
        } else {
            own.join(device.clone(), uuid, missing);
        }
        self.members.change();
        // Regions that were being made zero without it; those that come from now on are so on it too.
        self.bitmap.zeroing_ended().await;
        while is_successor && !self.stripes.unlocked().is_quiet() {
            self.handle.sleep(REST_LOOK_NS).await;
        }
        self.narrow(member, &device, !is_successor && returning.is_some());
        if !is_successor && let Some(durable) = self.membership.durable() {
            durable.note_change();
            self.membership.recorded().await.map_err(ArrayError::Io)?;
        }
        let is_there = own.succeeding().into_iter().chain(own.device().ok());
        if !is_there.into_iter().any(|it| Rc::ptr_eq(&it, &device)) {
            return Err(ReplaceError::Device(IoError::Gone).into());
        }
        self.rebuild.begin_if_wanted();
        Ok(match returning {
            _ if is_successor => Replacement::Successor,
            Some(_) => Replacement::Return,
            None => Replacement::Rebuild,
        })
    }

    /// A device that came counts as lacking all regions so far. From now on it counts as lacking those that
    /// the bitmap names, which the rebuild fills.
    fn narrow(&self, member: MemberIndex, device: &Rc<D>, is_back: bool) {
        let all = || Bits::all(self.bitmap.regions().count());
        let lacking = self.bitmap.lacking(is_back).unwrap_or_else(all);
        self.members.devices().distrust(device, &lacking);
        self.members[member].with_missing(device, |missing| missing.note_reached(lacking));
    }

    /// Puts spares in the places of members that are lost, by a task of its own.
    pub(crate) fn begin_to_use_spares(self: &Rc<Self>) {
        let is_work = !self.spares.borrow().is_empty() && self.place_for_spare().is_some();
        if self.closing.is_begun() || !is_work || self.is_using_spares.replace(true) {
            return;
        }
        let own = self.clone();
        drop(self.handle.spawn(async move {
            own.use_spares().await;
            own.is_using_spares.set(false);
        }));
    }

    /// Puts spares in places one after the other, until none waits or no place is free.
    async fn use_spares(&self) {
        while let Some(member) = self.place_for_spare() {
            let spare = self.spares.borrow_mut().pop_front();
            let Some(Spare { device, uuid }) = spare else { return };
            self.place_of_spare.set(Some((member, uuid)));
            let placed = self.replace_lost(member, device.clone(), uuid).await;
            self.place_of_spare.set(None);
            let Err(error) = placed else { continue };
            if is_about_device(&error) {
                // One that does not serve is no spare any more. The next one may, or one of a pool.
                self.members.health().tell();
                continue;
            }
            self.spares.borrow_mut().push_front(Spare { device, uuid });
            if matches!(error, ArrayError::Io(_)) {
                // The record could not be stored: no spare would come further.
                return;
            }
        }
    }

    /// Lost members that can be rebuilt.
    fn places(&self) -> impl DoubleEndedIterator<Item = MemberIndex> {
        let is_place = |member: &MemberIndex| {
            !self.members[*member].has_device() && self.check_place(*member).is_ok()
        };
        self.members.indexes().filter(is_place)
    }

    /// A lost member that can be rebuilt, of the group that has the fewest left.
    fn place_for_spare(&self) -> Option<MemberIndex> {
        let exposed =
            |member: &MemberIndex| self.members.lost_in(self.geometry.group_of_member(*member));
        self.places().rev().max_by_key(exposed)
    }

    /// Keeps a device for the next member that is lost, or takes it for one that is.
    ///
    /// # Errors
    /// When the device does not suit.
    pub(crate) fn add_spare(
        self: &Rc<Self>,
        device: Rc<D>,
        uuid: [u8; 16],
    ) -> Result<(), ArrayError> {
        if !self.membership.is_durable() {
            return Err(ReplaceError::Bare.into());
        }
        if self.closing.is_begun() {
            return Err(ReplaceError::Stopped.into());
        }
        self.check_device(&device, &uuid)?;
        let is_known = self.spares.borrow().iter().any(|spare| spare.uuid == uuid);
        if is_known {
            return Err(ReplaceError::Uuid.into());
        }
        self.spares.borrow_mut().push_back(Spare { device, uuid });
        self.begin_to_use_spares();
        Ok(())
    }

    /// Takes a spare out of the queue; whether it was there.
    ///
    /// # Errors
    /// When it has left the queue for a place.
    pub(crate) fn remove_spare(&self, uuid: [u8; 16]) -> Result<bool, ReplaceError> {
        if let Some((member, _)) = self.place_of_spare.get().filter(|(_, taken)| *taken == uuid) {
            return Err(ReplaceError::SpareTaken { member: member.0 });
        }
        let mut spares = self.spares.borrow_mut();
        let before = spares.len();
        spares.retain(|spare| spare.uuid != uuid);
        Ok(spares.len() < before)
    }

    /// # Errors
    /// Why a device does not suit as a spare.
    pub(crate) fn check_spare(&self, device: &impl DriveControl) -> Result<(), ArrayError> {
        if !self.membership.is_durable() {
            return Err(ReplaceError::Bare.into());
        }
        Ok(self.check_device(device, &[0; 16])?)
    }

    /// Lost members that can be rebuilt, and for which no spare waits or is on its way.
    pub(crate) fn spares_wanted(&self) -> usize {
        let place = self.place_of_spare.get().map(|(place, _)| place);
        let has_no_spare = |member: &MemberIndex| place != Some(*member);
        self.places().filter(has_no_spare).count().saturating_sub(self.spare_count())
    }

    /// How many spares wait.
    pub(crate) fn spare_count(&self) -> usize {
        self.spares.borrow().len()
    }
}
