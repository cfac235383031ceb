//! What somebody does to members while clients go on: takes them out, replaces and copies them, adds
//! spares, changes paces, does them harm. Never more than the level can lose.

use std::rc::Rc;

use voltier_array::{
    ArrayError, BackgroundTask, MAP_START_BYTES, MemberLayout, MemberState, Pace, Priority,
    ReplaceError, ScrubRepair,
};
use voltier_block::{BlockDevice, Lba, Nanos, Prng, SectorRange};
use voltier_ring::JoinHandle;

use crate::arrays::bay::Bay;
use crate::arrays::rig::Rig;
use crate::arrays::room::end_move;
use crate::arrays::rot::scrub_for_rot;
use crate::arrays::setup::Care;

const SECOND_NS: Nanos = 1_000_000_000;

/// What happens to a drive while it serves.
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
    /// Its region map cannot be written.
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

/// Does what the care of a life is.
pub(crate) async fn take_care(rig: Rc<Rig>, care: Care, acts: u64) {
    let mut operator = Operator { dice: rig.world.prng(), rig, under_way: Vec::new() };
    match care {
        Care::Rest => {}
        Care::Scrub => scrub_for_rot(&operator.rig, &mut operator.dice).await,
        Care::Members => {
            // What is in doubt goes with any member that is lost.
            operator.rig.until("nothing is in doubt", |rig| !rig.is_in_doubt()).await;
            for act in 0..acts {
                let latency_ns = operator.rig.setup.latency_ns;
                let pause_ns = operator.dice.below(20) * latency_ns;
                operator.rig.world.handle().sleep(pause_ns).await;
                let (grows, has_journal) = {
                    let setup = &operator.rig.setup;
                    (setup.grows, setup.has_journal_device)
                };
                if operator.rig.setup.gains_room() && (act == 0 || operator.dice.one_in(4)) {
                    operator.add_room().await;
                } else if grows && (act == 0 || operator.dice.one_in(6)) {
                    operator.grow().await;
                } else if has_journal && operator.dice.one_in(3) {
                    operator.handle_journal().await;
                } else {
                    operator.act().await;
                }
            }
        }
    }
    for replacing in operator.under_way {
        replacing.await;
    }
}

/// Lets everything come to its end: what can be rebuilt is.
pub(crate) async fn finish(rig: &Rc<Rig>) {
    let array = rig.array();
    let fast = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
    array.set_pace(BackgroundTask::Rebuild, fast);
    array.set_pace(BackgroundTask::Scrub, fast);
    if rig.bay.is_whole() {
        let is_done = |rig: &Rig| {
            let array = rig.array();
            // One that was cancelled is told to go on.
            let is_ended = !array.rebuild_status().progress.is_running;
            let is_left = is_ended && array.rebuild().is_ok();
            let status = array.status().expect("an array with superblocks");
            let is_place = status.members.iter().any(|it| it.state == MemberState::Lost);
            is_ended && !is_left && !(is_place && status.spares > 0)
        };
        rig.until("the rebuild ends", is_done).await;
        assert!(
            Bay::members(&array, MemberState::Rebuilding).is_empty(),
            "a member is rebuilt for ever"
        );
    } else {
        array.ended(BackgroundTask::Rebuild).await;
    }
    end_move(rig).await;
    array.ended(BackgroundTask::Scrub).await;
    if !rig.was_rotten.get() {
        assert_eq!(array.scrub_status().mismatched_blocks, 0, "the scrub finds what is not");
    }
}

impl Rig {
    /// A drive is refused: its blocks must be larger than those of the members that are there.
    pub(crate) fn check_refused(&self, drive: usize, error: &ArrayError) {
        let is_refused = matches!(error, ArrayError::Replace(ReplaceError::Blocks { .. }));
        let block_bytes = self.disks[drive].limits().block_bytes;
        let has_larger = block_bytes > self.limits().block_bytes;
        assert!(is_refused && has_larger, "drive {drive} does not come: {error}");
    }
}

pub(crate) struct Operator {
    pub(crate) rig: Rc<Rig>,
    pub(crate) dice: Prng,
    /// Drives that are coming.
    pub(crate) under_way: Vec<JoinHandle<()>>,
}

impl Operator {
    async fn act(&mut self) {
        let rig = self.rig.clone();
        let array = rig.array();
        match self.dice.below(16) {
            0..3 => self.fail(),
            3..6 => self.harm(),
            6..10 => self.replace(MemberState::Lost).await,
            10 | 11 => self.replace(MemberState::InService).await,
            12 => {
                if let Some(drive) = self.pick_free() {
                    let uuid = rig.come(drive);
                    rig.world.tell(|| format!("care: drive {drive} is a spare"));
                    let added = array.add_spare(rig.disks[drive].clone(), uuid);
                    added.unwrap_or_else(|error| rig.check_refused(drive, &error));
                }
            }
            13 => {
                let task = *self.dice.pick(&[BackgroundTask::Rebuild, BackgroundTask::Scrub]);
                rig.world.tell(|| format!("care: {task:?} is cancelled"));
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
                rig.world.handle().sleep(rest_ns).await;
            }
        }
    }

    fn pick_free(&mut self) -> Option<usize> {
        let free = self.rig.bay.free(&self.rig.setup);
        (!free.is_empty()).then(|| *self.dice.pick(&free))
    }

    fn pick_in(&mut self, state: MemberState) -> Option<usize> {
        let members = Bay::members(&self.rig.array(), state);
        (!members.is_empty()).then(|| *self.dice.pick(&members))
    }

    /// Whether a member may be lost, or is counted as such already.
    fn may_lose(&self, member: usize) -> bool {
        let (rig, array) = (&self.rig, self.rig.array());
        let geometry = array.geometry();
        let group = geometry.group_of_member(member);
        let is_counted = !array.is_online(member)
            || rig.bay.drive_of(&array, member).is_some_and(|drive| rig.bay.is_harmed(drive));
        let exposed = rig.bay.exposed(&array, group) + usize::from(!is_counted);
        exposed <= geometry.parity_chunks()
    }

    fn pick_to_lose(&mut self) -> Option<usize> {
        let members = self.rig.geometry().member_count() as u64;
        let member = self.dice.below(members) as usize;
        self.may_lose(member).then_some(member)
    }

    /// Somebody takes a member out of service.
    fn fail(&mut self) {
        let Some(member) = self.pick_to_lose() else { return };
        let (rig, array) = (&self.rig, self.rig.array());
        rig.world.tell(|| format!("care: member {member} is taken out"));
        if let Some(drive) = rig.bay.drive_of(&array, member) {
            rig.bay.note_former(member, drive);
        }
        array.fail(member).expect("as many as can be lost");
    }

    fn harm(&mut self) {
        let Some(member) = self.pick_to_lose() else { return };
        let harm = *self.dice.pick(&HARMS);
        let rig = self.rig.clone();
        let Some(drive) = rig.bay.drive_of(&rig.array(), member) else { return };
        let disk = &rig.disks[drive];
        let layout = rig.setup.layout();
        let stripes = rig.setup.stripes();
        let chunk = rig.setup.geometry.member_lba(*self.dice.pick(&stripes), 0);
        let chunks = rig.on_device(chunk);
        let some = SectorRange::new(chunks.plus(self.dice.below(4) * 8 % 8), 8);
        rig.world.tell(|| format!("care: harm to member {member}, drive {drive}: {harm:?}"));
        rig.bay.note_harm(drive);
        match harm {
            Harm::Gone => disk.lose(),
            Harm::DataWrites => disk.fail_writes(some),
            Harm::RingWrites => {
                let blocks = (layout.journal.count / 8).max(1);
                let at = layout.journal.start.plus(self.dice.below(blocks.min(80)) * 8);
                disk.fail_writes(SectorRange::new(at, 8));
            }
            Harm::SuperblockWrites => {
                let bytes = rig.setup.drives[drive].bytes;
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

    /// Puts another drive in the place of a member that is lost, or beside one in service.
    async fn replace(&mut self, state: MemberState) {
        let Some(member) = self.pick_in(state) else { return };
        let rig = self.rig.clone();
        let is_copy = state == MemberState::InService;
        let is_back = !is_copy && self.dice.one_in(2);
        let former = if is_back { rig.bay.take_former(member) } else { None };
        let Some(drive) = former.or_else(|| self.pick_free()) else { return };
        let uuid = rig.come(drive);
        if is_copy {
            rig.bay.note_successor(member, drive);
        }
        rig.world.tell(|| format!("care: drive {drive} for member {member}, {state:?}"));
        let replacing = rig.clone();
        let replaced = rig.world.handle().spawn(async move {
            let array = replacing.array();
            let disk = replacing.disks[drive].clone();
            let replaced = array.replace(member, disk, uuid).await;
            replacing.world.tell(|| format!("care: drive {drive} came: {replaced:?}"));
            match replaced {
                Ok(_) => {}
                // A spare was faster, or it was lost on the way.
                Err(ArrayError::Replace(ReplaceError::Busy { .. } | ReplaceError::Device(_))) => {}
                Err(error) => replacing.check_refused(drive, &error),
            }
        });
        if self.dice.one_in(2) {
            replaced.await;
        } else {
            self.under_way.push(replaced);
        }
    }
}
