//! What is left of a life, and what can be said of it without the array's help: who is who by the
//! superblocks on the media, who belongs to a start, and whether it must succeed.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use voltier_array::{
    AREA_ALIGN_BYTES, Array, ArrayRecord, DeviceError, Geometry, JournalLabel, MemberRecord,
    MemberState, Superblock,
};
use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Lba, Limits, Payload, Prng, SectorRange,
};

use crate::arrays::bit_rot::Rot;
use crate::arrays::journal::JournalFate;
use crate::arrays::setup::Setup;
use crate::arrays::uncovered::Uncovered;
use crate::medium::{Medium, Snapshot};
use crate::model::Model;

/// What is left of a life: the drives, and what they may hold.
#[derive(Clone)]
pub(crate) struct Left {
    pub(crate) media: Vec<Medium>,
    pub(crate) model: Model,
    /// The number of the life that ended.
    pub(crate) life: u64,
    /// For each drive the last life that it was part of.
    pub(crate) lives: Vec<u64>,
    /// Whether the drives kept what they had in their caches.
    pub(crate) is_cached: bool,
    /// Whether the making of the array was acknowledged.
    pub(crate) is_made: bool,
    /// Whether the stop was.
    pub(crate) is_stopped: bool,
    /// Members that were in service and never missed anything.
    pub(crate) online: u64,
    /// The shape that the array had in memory.
    pub(crate) geometry: Geometry,
    /// What is known of a journal on a device of its own.
    pub(crate) journal: JournalFate,
    /// Writes whose stripes may not match.
    pub(crate) uncovered: Uncovered,
    /// Regions in which a write was acknowledged.
    pub(crate) written: BTreeSet<u64>,
    /// What a drive returns otherwise than it was written.
    pub(crate) rot: Option<Rot>,
    /// For uuids.
    pub(crate) drives_named: u64,
    /// The end of what requests that were answered were for.
    pub(crate) used_end: Lba,
}

impl Left {
    /// Drives that nothing was done with.
    pub(crate) fn new(setup: &Setup, seed: u64) -> Self {
        let mut dice = Prng::new(seed ^ 0x6a75_6e6b);
        let count = setup.drives.len();
        Self {
            media: (0..count).map(|number| new_medium(setup, number, &mut dice)).collect(),
            model: Model::new(setup.most_sectors()),
            life: 0,
            is_cached: false,
            lives: vec![0; count],
            is_made: false,
            is_stopped: false,
            online: 0,
            geometry: setup.geometry.clone(),
            journal: JournalFate::default(),
            uncovered: Uncovered::default(),
            written: BTreeSet::new(),
            rot: None,
            drives_named: setup.geometry.member_count() as u64,
            used_end: Lba(0),
        }
    }

    /// What the superblocks say.
    pub(crate) fn known(&self, setup: &Setup) -> Known {
        Known::of(setup, self.media.iter().map(Medium::snapshot))
    }
}

/// Of some drives those that were part of the last life that any of them was part of.
pub(crate) fn last_ones(lives: &[u64], given: u64) -> u64 {
    let some = || (0..lives.len()).filter(|drive| has(given, *drive));
    let last = some().map(|drive| lives[drive]).max();
    mask(some().filter(|drive| Some(lives[*drive]) == last))
}

/// A drive, with something in the place of the chunks.
fn new_medium(setup: &Setup, number: usize, dice: &mut Prng) -> Medium {
    let mut medium = Medium::zeroed(setup.drives[number].bytes);
    if setup.has_junk && number >= setup.member_drives() {
        let mut junk = vec![0; 8192];
        dice.fill(&mut junk);
        medium.overwrite(AREA_ALIGN_BYTES, &junk);
    } else if setup.has_junk {
        let chunk_bytes = (setup.geometry.chunk_sectors() * 512) as usize;
        let start = setup.layout().data.start;
        for stripe in setup.stripes() {
            let mut junk = vec![0; chunk_bytes];
            dice.fill(&mut junk);
            medium.overwrite(start.plus(setup.geometry.member_lba(stripe, 0).0).bytes(), &junk);
        }
    }
    medium
}

pub(crate) fn mask(numbers: impl Iterator<Item = usize>) -> u64 {
    numbers.fold(0, |mask, number| mask | 1 << number)
}

pub(crate) fn has(mask: u64, number: usize) -> bool {
    mask >> number & 1 == 1
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
            let (member, event) = (own.member, own.array.event);
            write!(out, " {drive}: member {member} event {event} {states},")?;
        }
        Ok(())
    }
}

impl Known {
    /// What these drives say.
    pub(crate) fn of(setup: &Setup, media: impl Iterator<Item = Snapshot>) -> Self {
        let (mut superblocks, mut labels) = (Vec::new(), Vec::new());
        for ((number, drive), medium) in setup.drives.iter().enumerate().zip(media) {
            let still = Still(medium, Limits::plain(drive.bytes));
            let is_member = number < setup.member_drives();
            superblocks.push(if is_member { found(Array::examine(&still)) } else { None });
            labels.push(if is_member { None } else { found(Array::examine_journal(&still)) });
        }
        Self(superblocks, labels)
    }

    /// Drives with the label of a journal.
    pub(crate) fn journals(&self) -> u64 {
        mask((0..self.1.len()).filter(|drive| self.1[*drive].is_some()))
    }

    /// Drives with a superblock.
    pub(crate) fn labelled(&self) -> u64 {
        mask((0..self.0.len()).filter(|drive| self.0[*drive].is_some()))
    }

    fn given(&self, given: u64) -> impl Iterator<Item = (usize, &Superblock)> {
        let all = self.0.iter().enumerate().filter(move |(drive, _)| has(given, *drive));
        all.filter_map(|(drive, superblock)| Some((drive, superblock.as_ref()?)))
    }

    /// The highest event of some drives.
    pub(crate) fn highest_event(&self, given: u64) -> u64 {
        self.given(given).map(|(_, own)| own.array.event).max().unwrap_or(0)
    }

    /// What counts when these drives are given.
    pub(crate) fn newest(&self, given: u64) -> Option<&ArrayRecord> {
        // A row that was being added and never was does not make the shape.
        let newness = |array: &&ArrayRecord| (array.event, Reverse(array.members.len()));
        self.given(given).map(|(_, own)| &own.array).max_by_key(newness)
    }

    /// For each member the drive that is it, of those given.
    pub(crate) fn drives_of(&self, given: u64) -> Vec<Option<usize>> {
        let Some(newest) = self.newest(given) else { return Vec::new() };
        let is_it = |member: usize, own: &Superblock| {
            own.member == member && own.array.members[member].uuid == newest.members[member].uuid
        };
        let drive = |member| {
            let found = self.given(given).find(|(_, own)| is_it(member, own));
            found.map(|(drive, _)| drive)
        };
        (0..newest.members.len()).map(drive).collect()
    }

    /// Members in this state that a start from these drives can use: at most one event behind.
    pub(crate) fn current(&self, given: u64, state: MemberState) -> u64 {
        let Some(newest) = self.newest(given) else { return 0 };
        let is_current = |(member, drive): &(usize, Option<usize>)| {
            let own = drive.and_then(|drive| self.0[drive].as_ref());
            let own_event = own.map_or(0, |own| own.array.event);
            // One that made place for its copy was told so.
            let is_out =
                own.is_some_and(|own| own.array.members[*member].state == MemberState::Lost);
            newest.members[*member].state == state && own_event + 1 >= newest.event && !is_out
        };
        let members = self.drives_of(given).into_iter().enumerate();
        mask(members.filter(is_current).map(|(member, _)| member))
    }
}

/// What is on a medium, without a drive around it: requests take no time.
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

/// The superblock on a medium, if there is one that can be believed.
pub(crate) fn superblock_on(medium: Snapshot, bytes: u64) -> Option<Superblock> {
    found(Array::examine(&Still(medium, Limits::plain(bytes))))
}

fn found<T>(examined: impl Future<Output = Result<Option<T>, DeviceError>>) -> Option<T> {
    match pin!(examined).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(found) => found.ok().flatten(),
        Poll::Pending => unreachable!("nothing of it takes time"),
    }
}
