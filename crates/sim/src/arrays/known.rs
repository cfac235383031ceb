//! Members by the superblocks on the media, read without the array's engine.

use std::cmp::Reverse;
use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use voltier_array::{
    Array, ArrayRecord, DeviceError, JournalLabel, JournalState, MemberRecord, MemberState,
    Superblock, Usage,
};
use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoError, IoResult, Lba, Limits, Payload, SectorRange,
};

use crate::arrays::sets::{DriveSet, MemberSet};
use crate::arrays::setup::{ARRAY_UUID, Setup};
use crate::medium::Snapshot;

/// How a part of the array is called in errors, by the name of the array.
const OF_ARRAY: &str = "of the array sim (";

/// Of some drives those that were part of the last life that any of them was part of.
pub(crate) fn last_ones(lives: &[u64], given: DriveSet) -> DriveSet {
    let some = || (0..lives.len()).filter(|drive| given.has(*drive));
    let last = some().map(|drive| lives[drive]).max();
    some().filter(|drive| Some(lives[*drive]) == last).collect()
}

/// Whether the members say that their journal is on a device.
fn is_on_device(array: &ArrayRecord) -> bool {
    array.journal_device.is_some_and(|journal| journal.state == JournalState::InService)
}

/// The superblock of each drive that has one, and the label of each that has a journal.
pub(crate) struct Known(pub(crate) Vec<Option<Superblock>>, pub(crate) Vec<Option<JournalLabel>>);

impl fmt::Display for Known {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (drive, superblock) in self.0.iter().enumerate() {
            let Some(own) = superblock else { continue };
            let letter = |member: &MemberRecord| match member.state {
                MemberState::InService => 's',
                MemberState::Lost => 'l',
                MemberState::Rebuilding => 'r',
                MemberState::Absent => 'a',
            };
            let states: String = own.array.members.iter().map(letter).collect();
            let (member, event) = (own.member.0, own.array.event);
            write!(out, " {drive}: member {member} event {event} {states},")?;
        }
        Ok(())
    }
}

impl Known {
    /// Reads these drives.
    pub(crate) fn of(setup: &Setup, media: impl Iterator<Item = Snapshot>) -> Self {
        let (mut superblocks, mut labels) = (Vec::new(), Vec::new());
        for ((number, drive), medium) in setup.drives.iter().enumerate().zip(media) {
            let still = Still(medium, Limits::plain(drive.bytes));
            let is_member = number < setup.member_drives();
            superblocks.push(if is_member { member_on(&still) } else { None });
            labels.push(if is_member { None } else { journal_on(&still) });
        }
        Self(superblocks, labels)
    }

    /// Drives with the label of a journal.
    pub(crate) fn journals(&self) -> DriveSet {
        (0..self.1.len()).filter(|drive| self.1[*drive].is_some()).collect()
    }

    /// Drives with a superblock.
    pub(crate) fn labelled(&self) -> DriveSet {
        (0..self.0.len()).filter(|drive| self.0[*drive].is_some()).collect()
    }

    fn given(&self, given: DriveSet) -> impl Iterator<Item = (usize, &Superblock)> {
        let all = self.0.iter().enumerate().filter(move |(drive, _)| given.has(*drive));
        all.filter_map(|(drive, superblock)| Some((drive, superblock.as_ref()?)))
    }

    /// The highest event of some drives.
    pub(crate) fn highest_event(&self, given: DriveSet) -> u64 {
        self.given(given).map(|(_, own)| own.array.event).max().unwrap_or(0)
    }

    /// The record that counts when these drives are given.
    pub(crate) fn newest(&self, given: DriveSet) -> Option<&ArrayRecord> {
        // A parity row that was being added and never was does not make the shape.
        let newness = |array: &&ArrayRecord| (array.event, Reverse(array.members.len()));
        self.given(given).map(|(_, own)| &own.array).max_by_key(newness)
    }

    /// For each member the drive that is it, of those given.
    pub(crate) fn drives_of(&self, given: DriveSet) -> Vec<Option<usize>> {
        let Some(newest) = self.newest(given) else { return Vec::new() };
        let is_it = |member: usize, own: &Superblock| {
            own.member.0 == member && own.array.members[member].uuid == newest.members[member].uuid
        };
        let drive = |member| {
            let found = self.given(given).find(|(_, own)| is_it(member, own));
            found.map(|(drive, _)| drive)
        };
        (0..newest.members.len()).map(drive).collect()
    }

    /// Members in this state that a start from these drives can use: at most one event behind.
    pub(crate) fn current(&self, given: DriveSet, state: MemberState) -> MemberSet {
        let Some(newest) = self.newest(given) else { return MemberSet::EMPTY };
        let is_current = |(member, drive): &(usize, Option<usize>)| {
            let own = drive.and_then(|drive| self.0[drive].as_ref());
            let own_event = own.map_or(0, |own| own.array.event);
            // A member that made place for its copy was told so.
            let is_out =
                own.is_some_and(|own| own.array.members[*member].state == MemberState::Lost);
            newest.members[*member].state == state && own_event + 1 >= newest.event && !is_out
        };
        let members = self.drives_of(given).into_iter().enumerate();
        members.filter(is_current).map(|(member, _)| member).collect()
    }

    /// Whether the journal is on a device by those of these drives that are newest.
    pub(crate) fn has_journal_on_device(&self, given: DriveSet) -> bool {
        self.newest(given).is_some_and(is_on_device)
    }

    /// Whether the journal is on a device that is not among these drives as the device was left.
    pub(crate) fn lacks_journal(&self, given: DriveSet) -> bool {
        let Some(newest) = self.newest(given).filter(|newest| is_on_device(newest)) else {
            return false;
        };
        let uuid = newest.journal_device.map(|journal| journal.uuid);
        let labels = self.1.iter().enumerate().filter(|(drive, _)| given.has(*drive));
        let is_it = |label: &voltier_array::JournalLabel| {
            Some(label.uuid) == uuid && label.event.abs_diff(newest.event) <= 1
        };
        !labels.filter_map(|(_, label)| label.as_ref()).any(is_it)
    }

    /// Whether something on it may be needed.
    pub(crate) fn needs_journal(&self, given: DriveSet) -> bool {
        self.lacks_journal(given)
            && self.newest(given).is_some_and(|newest| newest.usage != Usage::Clean)
    }
}

/// Holds what drives say at one end to what they say at the other. A start refuses a drive of the array that
/// begins as something and ends as something else.
///
/// # Panics
/// When nobody but the array wrote to a drive, and it is one of these.
pub(crate) fn check_both_ends(setup: &Setup, media: impl Iterator<Item = Snapshot>) {
    for ((number, drive), medium) in setup.drives.iter().enumerate().zip(media) {
        let still = Still(medium, Limits::plain(drive.bytes));
        let error = if number < setup.member_drives() {
            examined_now(Array::examine(&still)).err()
        } else {
            examined_now(Array::examine_journal(&still)).err()
        };
        if let Some(DeviceError::Disagree { begins, ends, .. }) = error {
            let is_of_array = [&begins, &ends].iter().any(|words| words.contains(OF_ARRAY));
            assert!(!is_of_array, "drive {number} begins {begins} and ends {ends}");
        }
    }
}

/// A medium without a drive around it: requests take no time.
struct Still(Snapshot, Limits);

impl BlockDevice for Still {
    fn limits(&self) -> &Limits {
        &self.1
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        self.0.peek(at, &mut into);
        Ok(into)
    }

    async fn write(&self, _: Lba, _: Payload, _: Durability) -> IoResult<()> {
        Err(IoError::ReadOnly)
    }

    async fn flush(&self) -> IoResult<()> {
        Err(IoError::ReadOnly)
    }

    async fn discard(&self, _: SectorRange) -> IoResult<()> {
        Err(IoError::ReadOnly)
    }

    async fn write_zeroes(&self, _: SectorRange, _: Durability) -> IoResult<()> {
        Err(IoError::ReadOnly)
    }
}

impl InMemory for Still {}

/// The superblock on a medium, if there is one of the array that can be believed.
pub(crate) fn superblock_on(medium: Snapshot, bytes: u64) -> Option<Superblock> {
    member_on(&Still(medium, Limits::plain(bytes)))
}

fn member_on(device: &Still) -> Option<Superblock> {
    found(Array::examine(device)).filter(|own| own.array.uuid == ARRAY_UUID)
}

fn journal_on(device: &Still) -> Option<JournalLabel> {
    found(Array::examine_journal(device)).filter(|label| label.array == ARRAY_UUID)
}

fn found<T>(examined: impl Future<Output = Result<Option<T>, DeviceError>>) -> Option<T> {
    examined_now(examined).ok().flatten()
}

fn examined_now<T>(examined: impl Future<Output = T>) -> T {
    match pin!(examined).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(found) => found,
        Poll::Pending => unreachable!("nothing of it takes time"),
    }
}
