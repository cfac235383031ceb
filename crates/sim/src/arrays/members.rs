//! The map from members to drives, as the array is told while it serves. The map also has which drives
//! somebody did harm to, and how many more a group can lose.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use voltier_array::{Array, GroupIndex, MemberIndex, MemberState, Superblock};

use crate::arrays::setup::{Setup, uuid};
use crate::disk::SimDisk;

/// The map from members to drives.
#[derive(Default)]
pub(crate) struct MemberMap {
    /// Uuids given away so far.
    pub(crate) named: Cell<u64>,
    uuids: RefCell<Vec<([u8; 16], usize)>>,
    /// Drives that the array was given in this life.
    taken: RefCell<BTreeSet<usize>>,
    harmed: RefCell<BTreeSet<usize>>,
    /// For a member the drive that was left out of it.
    former: RefCell<BTreeMap<usize, usize>>,
    /// Drives that came while the array served, and what they said then.
    come: RefCell<BTreeMap<usize, Option<Superblock>>>,
    /// For a member the drive that was to take its place.
    successors: RefCell<BTreeMap<usize, usize>>,
}

impl MemberMap {
    /// An empty map; so many uuids are given away.
    pub(crate) fn new(named: u64) -> Self {
        Self { named: Cell::new(named), ..Self::default() }
    }

    /// A new uuid.
    pub(crate) fn name(&self) -> [u8; 16] {
        self.named.set(self.named.get() + 1);
        uuid(self.named.get() - 1)
    }

    /// A drive is given to the array with this uuid.
    pub(crate) fn give(&self, drive: usize, uuid: [u8; 16]) {
        self.uuids.borrow_mut().push((uuid, drive));
        self.taken.borrow_mut().insert(drive);
    }

    /// The uuids given away last, with their drives: spares are among them.
    pub(crate) fn given_last(&self) -> Vec<([u8; 16], usize)> {
        self.uuids.borrow().iter().rev().take(4).copied().collect()
    }

    /// The array has given a drive back that it never used.
    pub(crate) fn take_back(&self, drive: usize, uuid: [u8; 16]) {
        self.uuids.borrow_mut().retain(|(given, _)| *given != uuid);
        self.taken.borrow_mut().remove(&drive);
        self.come.borrow_mut().remove(&drive);
    }

    pub(crate) fn note_former(&self, member: usize, drive: usize) {
        self.former.borrow_mut().insert(member, drive);
    }

    pub(crate) fn note_successor(&self, member: usize, drive: usize) {
        self.successors.borrow_mut().insert(member, drive);
    }

    pub(crate) fn note_harm(&self, drive: usize) {
        self.harmed.borrow_mut().insert(drive);
    }

    /// The drive is as well as it was.
    pub(crate) fn note_end_of_harm(&self, drive: usize) {
        self.harmed.borrow_mut().remove(&drive);
    }

    pub(crate) fn is_harmed(&self, drive: usize) -> bool {
        self.harmed.borrow().contains(&drive)
    }

    /// Whether no drive was done harm to.
    pub(crate) fn is_whole(&self) -> bool {
        self.harmed.borrow().is_empty()
    }

    /// Drives that the array was not given.
    pub(crate) fn free(&self, setup: &Setup) -> Vec<usize> {
        let taken = self.taken.borrow();
        (0..setup.member_drives()).filter(|drive| !taken.contains(drive)).collect()
    }

    /// The drive that was left out of a member, if it is as it was: it is asked for once.
    pub(crate) fn take_former(&self, member: usize) -> Option<usize> {
        let drive = self.former.borrow_mut().remove(&member);
        drive.filter(|drive| !self.is_harmed(*drive))
    }

    /// A drive that says this came to the array while it served.
    pub(crate) fn note_come(&self, drive: usize, said: Option<Superblock>) {
        self.come.borrow_mut().insert(drive, said);
    }

    /// Of the drives that came those which say something else now.
    pub(crate) fn changed(&self, says: impl Fn(usize) -> Option<Superblock>) -> Vec<usize> {
        let come = self.come.borrow();
        let is_changed = |(drive, said): &(&usize, &Option<Superblock>)| says(**drive) != **said;
        come.iter().filter(is_changed).map(|(drive, _)| *drive).collect()
    }

    /// The drive of a member, or the last one it had; none if that was never given.
    pub(crate) fn drive_of(&self, array: &Array<SimDisk>, member: usize) -> Option<usize> {
        let status = array.status().expect("an array with superblocks");
        // A member that is just being added is not on record yet.
        let own = status.members.get(member)?.uuid;
        let uuids = self.uuids.borrow();
        // A drive that came back may have kept its uuid.
        let found = uuids.iter().rev().find(|(uuid, _)| *uuid == own);
        found.map(|(_, drive)| *drive)
    }

    /// Members of a group that are lost, being rebuilt, or may fail.
    pub(crate) fn exposed(&self, array: &Array<SimDisk>, group: GroupIndex) -> usize {
        let successors = self.successors.borrow();
        let is_exposed = |member: &usize| {
            let successor = successors.get(member).copied();
            let drives = [self.drive_of(array, *member), successor];
            !array.is_online(MemberIndex(*member))
                || drives.into_iter().flatten().any(|drive| self.is_harmed(drive))
        };
        array.geometry().members_of(group).filter(|member| is_exposed(&member.0)).count()
    }

    /// Members in this state.
    pub(crate) fn members(array: &Array<SimDisk>, state: MemberState) -> Vec<usize> {
        let status = array.status().expect("an array with superblocks");
        let members = status.members.iter().enumerate();
        members.filter(|(_, own)| own.state == state).map(|(member, _)| member).collect()
    }
}
