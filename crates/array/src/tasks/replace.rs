//! Members that come: in the place of one that is lost, beside one that is to go, or as spares.

use std::rc::Rc;

use voltier_block::{BlockDevice, IoError, Lba, Nanos, SECTOR_BYTES};

use crate::array::{Array, Inner};
use crate::errors::ArrayError;
use crate::errors::replace::ReplaceError;
use crate::format::bits::Bits;
use crate::format::member_layout::MemberLayout;
use crate::format::superblock::MemberState;
use crate::members::label_copies::read_superblock;
use crate::members::member::Member;
use crate::tasks::rebuild::successor;

/// How often a replacement looks whether writes under way have ended.
const LOOK_NS: Nanos = 100_000;

/// How a device came to an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// In the place of a lost member: all that was written is computed.
    Rebuild,
    /// It is the lost member itself: what changed since is computed.
    Return,
    /// Beside a member in service, which goes when all is copied.
    Copy,
}

/// A device that waits for a loss.
pub(crate) struct Spare<D> {
    device: Rc<D>,
    uuid: [u8; 16],
}

impl<D: BlockDevice> Inner<D> {
    pub(crate) fn check_device(&self, device: &D, uuid: &[u8; 16]) -> Result<(), ReplaceError> {
        let limits = device.limits();
        let needed = self.members.on_device(Lba(self.geometry.member_sectors())).0;
        let [_, second_copy] = MemberLayout::superblock_lbas(limits.sectors);
        let has = if self.membership.is_durable() { second_copy.0 } else { limits.sectors };
        if has < needed {
            return Err(ReplaceError::TooSmall { has, needed });
        }
        if limits.block_bytes > self.limits.block_bytes {
            let (has, array) = (limits.block_bytes, self.limits.block_bytes);
            return Err(ReplaceError::Blocks { has, array });
        }
        let bytes = limits.max_transfer_bytes;
        if u64::from(bytes) < self.geometry.chunk_sectors() * SECTOR_BYTES {
            return Err(ReplaceError::Transfer { bytes });
        }
        if limits.read_only {
            return Err(ReplaceError::ReadOnly);
        }
        let is_taken = |member: &Member<D>| {
            let beside = member.successor().borrow().as_ref().map(|it| it.uuid);
            (member.has_device() && member.uuid() == *uuid) || beside == Some(*uuid)
        };
        let is_taken = self.membership.is_durable() && self.members.iter().any(is_taken);
        if is_taken { Err(ReplaceError::Uuid) } else { Ok(()) }
    }

    fn check_place(&self, member: usize) -> Result<(), ReplaceError> {
        let members = self.members.len();
        let Some(own) = self.members.get(member) else {
            return Err(ReplaceError::NoSuchMember { member, members });
        };
        if self.background.is_closing() {
            return Err(ReplaceError::Stopped);
        }
        if own.is_rebuilding() || own.successor().borrow().is_some() {
            return Err(ReplaceError::Busy { member });
        }
        let group = self.geometry.group_of_member(member);
        if !own.has_device() && self.members.check_group(group).is_err() {
            return Err(ReplaceError::Hopeless { member });
        }
        Ok(())
    }

    /// The uuid of a device that is this member, given up by the others and not used since: it lacks
    /// what is marked and nothing else.
    async fn returning(&self, member: usize, device: &D) -> Option<[u8; 16]> {
        let record = self.membership.durable()?.record();
        let found = read_superblock(device).await.ok()??.superblock;
        let entry = record.members[member];
        let own = found.array.members.get(found.member)?;
        let is_it = found.array.uuid == record.uuid
            && found.member == member
            && own.uuid == entry.uuid
            && own.state == MemberState::InService
            && entry.state == MemberState::Lost;
        // The others had the event before the loss, it may have missed that one.
        let was_there = (1..=2).contains(&entry.since_event.saturating_sub(found.array.event));
        (is_it && was_there).then_some(entry.uuid)
    }

    pub(crate) async fn replace(
        self: &Rc<Self>,
        member: usize,
        device: Rc<D>,
        uuid: [u8; 16],
    ) -> Result<Replacement, ArrayError> {
        self.check_place(member)?;
        // A loss that is under way is on record first: then all that was changed since is marked.
        self.membership.settled().await.map_err(ArrayError::Io)?;
        let returning = self.returning(member, &device).await;
        let uuid = returning.unwrap_or(uuid);
        // Somebody may have been faster, with the same device even.
        self.check_place(member)?;
        self.check_device(&device, &uuid)?;
        let own = &self.members[member];
        let all = Bits::all(self.bitmap.region_count());
        let is_copy = own.has_device();
        if is_copy {
            self.stripes.set_copying(true);
            own.successor().replace(Some(successor(device.clone(), uuid, all)));
        } else {
            own.join(device.clone(), uuid, all);
        }
        self.members.change();
        // Regions that were being made zero without it; those that come from now on are so on it too.
        self.bitmap.zeroing_ended().await;
        while is_copy && !self.stripes.unlocked().is_quiet() {
            self.handle.sleep(LOOK_NS).await;
        }
        self.narrow(member, &device, !is_copy && returning.is_some());
        if !is_copy && let Some(durable) = self.membership.durable() {
            durable.note_change();
            self.membership.settled().await.map_err(ArrayError::Io)?;
        }
        let is_there = own.succeeding().into_iter().chain(own.device().ok());
        if !is_there.into_iter().any(|it| Rc::ptr_eq(&it, &device)) {
            return Err(ReplaceError::Device(IoError::Gone).into());
        }
        self.begin_rebuild();
        Ok(match returning {
            _ if is_copy => Replacement::Copy,
            Some(_) => Replacement::Return,
            None => Replacement::Rebuild,
        })
    }

    /// A device that came lacks all regions so far: from now on only those that it does.
    fn narrow(&self, member: usize, device: &Rc<D>, is_back: bool) {
        let Some(lacking) = self.bitmap.lacking(is_back) else { return };
        let own = &self.members[member];
        if own.device().is_ok_and(|it| Rc::ptr_eq(&it, device)) {
            if let Some(missing) = &mut *own.missing().borrow_mut() {
                missing.regions = lacking;
            }
        } else if let Some(successor) = &mut *own.successor().borrow_mut()
            && Rc::ptr_eq(&successor.device, device)
        {
            successor.missing.regions = lacking;
        }
    }

    /// Puts spares in the places of members that are lost, by a task of its own.
    pub(crate) fn begin_to_use_spares(self: &Rc<Self>) {
        let background = &self.background;
        let is_work = !background.spares.borrow().is_empty() && self.place_for_spare().is_some();
        if background.is_closing() || !is_work || background.is_using_spares.replace(true) {
            return;
        }
        let inner = self.clone();
        drop(self.handle.spawn(async move {
            while let Some(member) = inner.place_for_spare() {
                let spare = inner.background.spares.borrow_mut().pop_front();
                let Some(Spare { device, uuid }) = spare else { break };
                // One that does not serve is no spare any more; the next one may.
                let _ = inner.replace(member, device, uuid).await;
            }
            inner.background.is_using_spares.set(false);
        }));
    }

    /// A lost member that can be rebuilt, of the group that has the fewest left.
    fn place_for_spare(&self) -> Option<usize> {
        let is_place = |member: &usize| {
            !self.members[*member].has_device() && self.check_place(*member).is_ok()
        };
        let exposed = |member: &usize| self.members.lost_in(self.geometry.group_of_member(*member));
        (0..self.members.len()).rev().filter(is_place).max_by_key(exposed)
    }
}

impl<D: BlockDevice> Array<D> {
    /// Puts a device in the place of a member and begins to fill it. `uuid` is a new one, for the device.
    ///
    /// A member that is lost is computed from the others. If the device is that member itself, not used
    /// elsewhere since, it keeps its uuid and what it has, and only regions changed since are computed. A
    /// member in service stays that until all is copied; then the device takes its place, and the old one
    /// is left behind as a stale member. A restart goes on with a rebuild; a copy begins anew when it is
    /// asked for again.
    ///
    /// # Errors
    /// When the device does not suit or fails; the array is as before then.
    pub async fn replace(
        &self,
        member: usize,
        device: D,
        uuid: [u8; 16],
    ) -> Result<Replacement, ArrayError> {
        self.0.enter().await.replace(member, Rc::new(device), uuid).await
    }

    /// Keeps a device for the next member that is lost, or takes it for one that is. It holds nothing of
    /// the array until then, so it is to be added again after a restart. `uuid` is a new one.
    ///
    /// # Errors
    /// When the device does not suit.
    pub fn add_spare(&self, device: D, uuid: [u8; 16]) -> Result<(), ArrayError> {
        let inner = &self.0;
        if !inner.membership.is_durable() {
            return Err(ReplaceError::Bare.into());
        }
        if inner.background.is_closing() {
            return Err(ReplaceError::Stopped.into());
        }
        inner.check_device(&device, &uuid)?;
        let is_known = inner.background.spares.borrow().iter().any(|spare| spare.uuid == uuid);
        if is_known {
            return Err(ReplaceError::Uuid.into());
        }
        inner.background.spares.borrow_mut().push_back(Spare { device: Rc::new(device), uuid });
        inner.begin_to_use_spares();
        Ok(())
    }

    /// Whether a device suits as a spare; nothing is changed.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check_spare(&self, device: &D) -> Result<(), ArrayError> {
        if !self.0.membership.is_durable() {
            return Err(ReplaceError::Bare.into());
        }
        Ok(self.0.check_device(device, &[0; 16])?)
    }

    /// Lost members that can be rebuilt and for which no spare waits.
    pub fn spares_wanted(&self) -> usize {
        let inner = &self.0;
        let is_place = |member: &usize| {
            !inner.members[*member].has_device() && inner.check_place(*member).is_ok()
        };
        let places = (0..inner.members.len()).filter(is_place).count();
        places.saturating_sub(self.spare_count())
    }

    /// Spares that wait.
    pub fn spare_count(&self) -> usize {
        self.0.background.spares.borrow().len()
    }
}
