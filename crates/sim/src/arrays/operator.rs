//! The operator of an array does things to members while clients go on. Members are taken out, replaced,
//! copied and harmed, spares are added, paces change. Never more than the level can lose.

use std::rc::Rc;

use voltier_array::{
    ArrayError, BackgroundTask, MAP_START_BYTES, MemberIndex, MemberLayout, MemberState, Pace,
    Priority, ReplaceError, ScrubRepair,
};
use voltier_block::{Lba, Nanos, Prng, SectorRange};
use voltier_ring::JoinHandle;

use crate::arrays::checks::check_refused;
use crate::arrays::expansion::{add_member, finish_reshape};
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::growth::grow;
use crate::arrays::hanging::hang;
use crate::arrays::journal::handle_journal;
use crate::arrays::members::MemberMap;
use crate::arrays::reuse::check_labels;
use crate::arrays::scrubbing::scrub_for_bit_rot;
use crate::arrays::setup::Care;

const SECOND_NS: Nanos = 1_000_000_000;

/// A harm that happens to a drive while the drive serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Every request fails.
    Gone,
    /// Writes to some sectors of its chunks fail.
    DataWrites,
    /// Writes to some sectors of its ring fail.
    RingWrites,
    /// A copy of its superblock cannot be written.
    SuperblockWrites,
    /// The region map cannot be written.
    MapWrites,
    /// Flushes fail.
    Flushes,
    /// Reads of some sectors of its chunks fail.
    Reads,
}

const HARMS: [Harm; 7] = [
    Harm::Gone,
    Harm::DataWrites,
    Harm::RingWrites,
    Harm::SuperblockWrites,
    Harm::MapWrites,
    Harm::Flushes,
    Harm::Reads,
];

/// Mixed into the seed: seeds that do not draw this are as they were before it was drawn.
const SPARES: u64 = 0x7370_6172_6562_61d3;
/// One seed in so many.
const SPARES_ONE_IN: u64 = 4;

/// The dice of the seed for spares that come and go, if the seed draws that.
pub(crate) fn spare_dice(seed: u64) -> Option<Prng> {
    let mut dice = Prng::new(seed ^ SPARES);
    dice.one_in(SPARES_ONE_IN).then_some(dice)
}

/// Does what the care of a life is.
pub(crate) async fn take_care(
    fixture: Rc<ArrayFixture>,
    care: Care,
    acts: u64,
    spare_dice: Option<Prng>,
) {
    let dice = fixture.world.prng();
    let mut operator = Operator { dice, spare_dice, fixture, under_way: Vec::new() };
    match care {
        Care::Rest => {}
        Care::Scrub => scrub_for_bit_rot(&operator.fixture, &mut operator.dice).await,
        Care::Members => {
            // Regions that need a resync go with any member that is lost.
            operator
                .fixture
                .until("nothing needs a resync", |fixture| !fixture.needs_resync())
                .await;
            if operator.fixture.setup.has_checksums() {
                operator.harm_pages();
            }
            for act in 0..acts {
                let latency_ns = operator.fixture.setup.latency_ns;
                let pause_ns = operator.dice.below(20) * latency_ns;
                operator.fixture.world.handle().sleep(pause_ns).await;
                let (grows, has_journal) = {
                    let setup = &operator.fixture.setup;
                    (setup.grows, setup.has_journal_device)
                };
                if operator.fixture.setup.expands() && (act == 0 || operator.dice.one_in(4)) {
                    let task = add_member(&operator.fixture, &mut operator.dice).await;
                    operator.keep(task).await;
                } else if grows && (act == 0 || operator.dice.one_in(6)) {
                    let task = grow(&operator.fixture, &mut operator.dice);
                    operator.keep(task).await;
                } else if operator.fixture.setup.hangs && operator.dice.one_in(3) {
                    operator.hang().await;
                } else if has_journal && operator.dice.one_in(3) {
                    handle_journal(&operator.fixture, &mut operator.dice).await;
                } else {
                    operator.act().await;
                }
                operator.handle_spares();
            }
        }
    }
    for replacing in operator.under_way {
        replacing.await;
    }
}

/// Lets everything come to its end: what can be rebuilt is.
pub(crate) async fn finish(fixture: &Rc<ArrayFixture>) {
    let array = fixture.array();
    let fast = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
    array.set_pace(BackgroundTask::Rebuild, fast);
    array.set_pace(BackgroundTask::Scrub, fast);
    if fixture.members.is_whole() {
        let is_done = |fixture: &ArrayFixture| {
            let array = fixture.array();
            // A rebuild that was cancelled is told to go on.
            let is_ended = !array.rebuild_status().progress.is_running;
            let is_left = is_ended && array.rebuild().is_ok();
            let status = array.status().expect("an array with superblocks");
            let is_place = status.members.iter().any(|it| it.state == MemberState::Lost);
            is_ended && !is_left && !(is_place && status.spares > 0)
        };
        fixture.until("the rebuild ends", is_done).await;
        assert!(
            MemberMap::members(&array, MemberState::Rebuilding).is_empty(),
            "a member is rebuilt for ever"
        );
    } else {
        array.ended(BackgroundTask::Rebuild).await;
    }
    finish_reshape(fixture).await;
    array.ended(BackgroundTask::Scrub).await;
    if !fixture.bit_rot.was_there.get() {
        assert_eq!(array.scrub_status().counts.mismatched_blocks, 0, "the scrub finds what is not");
    }
}

struct Operator {
    fixture: Rc<ArrayFixture>,
    dice: Prng,
    /// The dice of spares that come and go, if the seed draws that.
    spare_dice: Option<Prng>,
    /// Drives that are coming.
    under_way: Vec<JoinHandle<()>>,
}

impl Operator {
    async fn act(&mut self) {
        let fixture = self.fixture.clone();
        let array = fixture.array();
        match self.dice.below(16) {
            0..3 => self.fail(),
            3..6 => self.harm(),
            6..10 => self.replace(MemberState::Lost).await,
            10 | 11 => self.replace(MemberState::InService).await,
            12 => {
                if let Some(drive) = self.pick_free() {
                    self.add_spare(drive);
                }
            }
            13 => {
                let task = *self.dice.pick(&[BackgroundTask::Rebuild, BackgroundTask::Scrub]);
                fixture.world.tell(|| format!("care: {task:?} is cancelled"));
                array.cancel(task);
            }
            14 => {
                // Nothing is wrong: it must say so, whatever happens meanwhile.
                let _ = array.scrub(ScrubRepair::Located);
            }
            _ => {
                let priority = *self.dice.pick(&Priority::ALL);
                let floor_bytes_per_second = *self.dice.pick(&[0, 1 << 16, 100 << 20]);
                let pace = Pace { priority, floor_bytes_per_second };
                array.set_pace(BackgroundTask::Rebuild, pace);
                let rest_ns = *self.dice.pick(&[1, SECOND_NS / 100, 6 * SECOND_NS]);
                fixture.world.handle().sleep(rest_ns).await;
            }
        }
    }

    fn add_spare(&self, drive: usize) {
        let fixture = &self.fixture;
        let uuid = fixture.come(drive);
        fixture.world.tell(|| format!("care: drive {drive} is a spare"));
        let added = fixture.array().add_spare(fixture.disks[drive].clone(), uuid);
        added.unwrap_or_else(|error| check_refused(fixture, drive, &error));
    }

    /// Adds a spare, or takes one back: one that waits, is on its way, has a place, or was never one.
    fn handle_spares(&mut self) {
        let (fixture, array) = (self.fixture.clone(), self.fixture.array());
        let Some(dice) = &mut self.spare_dice else { return };
        let (free, given) = (fixture.members.free(&fixture.setup), fixture.members.given_last());
        if !free.is_empty() && dice.one_in(2) {
            let drive = *dice.pick(&free);
            return self.add_spare(drive);
        }
        if given.is_empty() {
            return;
        }
        let (uuid, drive) = *dice.pick(&given);
        let before = array.spare_count();
        let removed = array.remove_spare(uuid);
        fixture.world.tell(|| format!("care: drive {drive} is wanted back: {removed:?}"));
        match removed {
            Ok(waited) => {
                assert_eq!(before - array.spare_count(), usize::from(waited), "spares that wait");
                if waited {
                    fixture.members.take_back(drive, uuid);
                }
            }
            Err(ArrayError::Replace(ReplaceError::SpareTaken { .. })) => {}
            Err(error) => panic!("drive {drive} cannot be taken back: {error}"),
        }
    }

    fn pick_free(&mut self) -> Option<usize> {
        let free = self.fixture.members.free(&self.fixture.setup);
        (!free.is_empty()).then(|| *self.dice.pick(&free))
    }

    fn pick_in(&mut self, state: MemberState) -> Option<usize> {
        let members = MemberMap::members(&self.fixture.array(), state);
        (!members.is_empty()).then(|| *self.dice.pick(&members))
    }

    /// Whether a member may be lost, or is counted as such already.
    fn may_lose(&self, member: usize) -> bool {
        let (fixture, array) = (&self.fixture, self.fixture.array());
        let geometry = array.geometry();
        let group = geometry.group_of_member(MemberIndex(member));
        let is_counted = !array.is_online(MemberIndex(member))
            || fixture
                .members
                .drive_of(&array, member)
                .is_some_and(|drive| fixture.members.is_harmed(drive));
        let exposed = fixture.members.exposed(&array, group) + usize::from(!is_counted);
        exposed <= geometry.parity_chunks()
    }

    fn pick_to_lose(&mut self) -> Option<usize> {
        let members = self.fixture.geometry().member_count() as u64;
        let member = self.dice.below(members) as usize;
        self.may_lose(member).then_some(member)
    }

    /// Takes a member out of service.
    fn fail(&mut self) {
        let Some(member) = self.pick_to_lose() else { return };
        let (fixture, array) = (&self.fixture, self.fixture.array());
        fixture.world.tell(|| format!("care: member {member} is taken out"));
        if let Some(drive) = fixture.members.drive_of(&array, member) {
            fixture.members.note_former(member, drive);
        }
        array.fail(MemberIndex(member)).expect("as many as can be lost");
    }

    /// Has the drive of a member hang; at the end it is well again.
    async fn hang(&mut self) {
        let Some(member) = self.pick_to_lose() else { return };
        let fixture = self.fixture.clone();
        let Some(drive) = fixture.members.drive_of(&fixture.array(), member) else { return };
        if fixture.members.is_harmed(drive) || fixture.disks[drive].is_hung() {
            return;
        }
        // From here on, not from when the task begins: what is drawn next must know of it.
        fixture.members.note_harm(drive);
        let dice = fixture.world.prng();
        let task = fixture.world.handle().spawn(hang(fixture.clone(), member, drive, dice));
        self.keep(Some(task)).await;
    }

    fn harm(&mut self) {
        let Some(member) = self.pick_to_lose() else { return };
        let harm = *self.dice.pick(&HARMS);
        let fixture = self.fixture.clone();
        let Some(drive) = fixture.members.drive_of(&fixture.array(), member) else { return };
        let disk = &fixture.disks[drive];
        let layout = fixture.setup.layout();
        let stripes = fixture.setup.stripes();
        let chunk = fixture.setup.geometry.member_lba(*self.dice.pick(&stripes), 0);
        let chunks = fixture.on_device(chunk);
        let some = SectorRange::new(chunks.plus(self.dice.below(4) * 8 % 8), 8);
        fixture.world.tell(|| format!("care: harm to member {member}, drive {drive}: {harm:?}"));
        fixture.members.note_harm(drive);
        match harm {
            Harm::Gone => disk.lose(),
            Harm::DataWrites => disk.fail_writes(some),
            Harm::RingWrites => {
                let blocks = (layout.journal.count / 8).max(1);
                let at = layout.journal.start.plus(self.dice.below(blocks.min(80)) * 8);
                disk.fail_writes(SectorRange::new(at, 8));
            }
            Harm::SuperblockWrites => {
                let bytes = fixture.setup.drives[drive].bytes;
                let copies = MemberLayout::superblock_lbas(bytes / 512);
                disk.fail_writes(SectorRange::new(*self.dice.pick(&copies), 8));
            }
            Harm::MapWrites => {
                disk.fail_writes(SectorRange::new(Lba::from_bytes(MAP_START_BYTES), 8));
            }
            Harm::Flushes => disk.fail_flushes(),
            Harm::Reads => disk.fail_reads(some),
        }
    }

    /// Copies of the first page of checksums of some members cannot be written, or read. Such copies cost
    /// checksums, and no member.
    fn harm_pages(&mut self) {
        let fixture = self.fixture.clone();
        let first = fixture.setup.layout().checksums.start.plus(16);
        for member in 0..fixture.setup.geometry.member_count() {
            let Some(drive) = fixture.members.drive_of(&fixture.array(), member) else { continue };
            let (copy, disk) = (first.plus(self.dice.below(2) * 8), &fixture.disks[drive]);
            match self.dice.below(6) {
                0 => disk.fail_writes(SectorRange::new(first, 16)),
                1 => disk.fail_writes(SectorRange::new(copy, 8)),
                2 => disk.fail_reads(SectorRange::new(copy, 8)),
                _ => {}
            }
        }
    }

    /// Puts another drive in the place of a member that is lost, or beside one in service.
    async fn replace(&mut self, state: MemberState) {
        let Some(member) = self.pick_in(state) else { return };
        let fixture = self.fixture.clone();
        let is_copy = state == MemberState::InService;
        let is_back = !is_copy && self.dice.one_in(2);
        let former = if is_back { fixture.members.take_former(member) } else { None };
        let Some(drive) = former.or_else(|| self.pick_free()) else { return };
        let uuid = fixture.come(drive);
        if is_copy {
            fixture.members.note_successor(member, drive);
        }
        fixture.world.tell(|| format!("care: drive {drive} for member {member}, {state:?}"));
        let replacing = fixture.clone();
        let replaced = fixture.world.handle().spawn(async move {
            let array = replacing.array();
            let disk = replacing.disks[drive].clone();
            let replaced = array.replace(MemberIndex(member), disk, uuid).await;
            replacing.world.tell(|| format!("care: drive {drive} came: {replaced:?}"));
            match replaced {
                Ok(_) => check_labels(&replacing, drive),
                // The drive was taken out just now, and has not ended its requests.
                Err(ArrayError::Replace(ReplaceError::Undrained { .. })) => {
                    replacing.members.note_former(member, drive);
                }
                // A spare was faster, or it was lost on the way.
                Err(ArrayError::Replace(ReplaceError::Busy { .. } | ReplaceError::Device(_))) => {}
                Err(error) => check_refused(&replacing, drive, &error),
            }
        });
        self.keep(Some(replaced)).await;
    }

    /// Waits for a task now, or at the end.
    async fn keep(&mut self, task: Option<JoinHandle<()>>) {
        let Some(task) = task else { return };
        if self.dice.one_in(2) {
            task.await;
        } else {
            self.under_way.push(task);
        }
    }
}
