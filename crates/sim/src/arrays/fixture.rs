//! An array on simulated drives, and what is known of what it must hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, AssembleReport, Geometry, JournalLabel, JournalState,
    MemberIndex, MemberState, MemberStatus, StripeNumber,
};
use voltier_block::{BlockDevice, Lba, Limits, MIB, Nanos, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::bit_rot::BitRotState;
use crate::arrays::hang;
use crate::arrays::known::{Known, last_ones, superblock_on};
use crate::arrays::left::{JournalFate, Left};
use crate::arrays::members::MemberMap;
use crate::arrays::reuse::check_labels;
use crate::arrays::sets::{DriveSet, MemberSet};
use crate::arrays::setup::Setup;
use crate::arrays::uncovered::Uncovered;
use crate::disk::SimDisk;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium, Snapshot};
use crate::model::Model;
use crate::world::World;

/// Longest request of a check.
const REQUEST_BYTES: u64 = MIB;
/// How often somebody looks whether the array has come so far.
const LOOK_NS: Nanos = 2_000_000;
/// After so many looks it never will.
const LOOKS_MAX: u32 = 100_000;

/// Drives, an array over some of them, and a model of its content.
pub(crate) struct ArrayFixture {
    pub(crate) world: World,
    pub(crate) setup: Rc<Setup>,
    pub(crate) disks: Vec<SimDisk>,
    array: RefCell<Option<Array<SimDisk>>>,
    pub(crate) model: RefCell<Model>,
    pub(crate) uncovered: RefCell<Uncovered>,
    pub(crate) written: RefCell<BTreeSet<u64>>,
    pub(crate) bit_rot: BitRotState,
    pub(crate) members: MemberMap,
    /// Runs of stripes that are used; see [`Self::windows`].
    runs: Vec<SectorRange>,
    pub(crate) stripes: Vec<StripeNumber>,
    life: u64,
    lives: RefCell<Vec<u64>>,
    /// While a start is looking at what it was given: that, and the changes of all drives until then.
    looking: Cell<Option<(DriveSet, u64)>>,
    /// The members that a start which is under way has.
    pub(crate) starting: Cell<MemberSet>,
    is_made: Cell<bool>,
    is_stopped: Cell<bool>,
    /// The shape when this life began.
    geometry: RefCell<Geometry>,
    pub(crate) journal: Cell<JournalFate>,
    /// The members when this life began.
    at_first: RefCell<Vec<MemberStatus>>,
    /// The ranges of requests that clients have under way.
    pub(crate) under_way: RefCell<Vec<SectorRange>>,
    /// The end of what requests that were answered were for.
    pub(crate) used_end: Cell<Lba>,
    /// Whether a capacity expansion is on its way.
    pub(crate) is_expanding: Cell<bool>,
}

/// Runs of neighbouring stripes, as sectors of the volume.
fn windows(setup: &Setup, stripes: &[StripeNumber]) -> Vec<SectorRange> {
    let runs = stripes.chunk_by(|one, next| one.0 + 1 == next.0);
    let window = |run: &[StripeNumber]| {
        let first = setup.sectors_of(run[0]);
        SectorRange::new(first.start, first.count * run.len() as u64)
    };
    runs.map(window).collect()
}

fn members_of(array: &Array<SimDisk>) -> Vec<MemberStatus> {
    array.status().expect("an array with superblocks").members
}

impl ArrayFixture {
    /// Drives in a world, with what is left on them.
    pub(crate) fn new(world: &World, setup: &Rc<Setup>, left: Left) -> Rc<Self> {
        let disk = |(number, medium)| SimDisk::new(world, &setup.disk(number), medium);
        let stripes = setup.stripes();
        Rc::new(Self {
            world: world.clone(),
            setup: setup.clone(),
            disks: left.media.into_iter().enumerate().map(disk).collect(),
            array: RefCell::default(),
            model: RefCell::new(left.model),
            uncovered: RefCell::new(left.uncovered),
            written: RefCell::new(left.written),
            bit_rot: BitRotState::new(left.bit_rot),
            members: MemberMap::new(left.drives_named),
            runs: windows(setup, &stripes),
            stripes,
            life: left.life + 1,
            lives: RefCell::new(left.lives),
            looking: Cell::new(None),
            starting: Cell::new(MemberSet::EMPTY),
            is_made: Cell::new(left.is_made),
            is_stopped: Cell::new(left.is_stopped),
            geometry: RefCell::new(left.geometry),
            journal: Cell::new(left.journal),
            at_first: RefCell::default(),
            under_way: RefCell::default(),
            used_end: Cell::new(left.used_end),
            is_expanding: Cell::new(false),
        })
    }

    /// Everything that `cut` leaves at this moment.
    pub(crate) fn left_by(&self, cut: Cut, prng: &mut Prng, ledger: &Ledger) -> Left {
        let media = self.disks.iter().map(|disk| disk.after(cut, prng)).collect();
        self.left_with(cut, media, ledger)
    }

    /// Everything that a kill leaves at this moment when the drives end what they were at.
    pub(crate) fn left_by_kill(&self, ledger: &Ledger) -> Left {
        self.left_with(Cut::Kill, self.disks.iter().map(SimDisk::after_its_work).collect(), ledger)
    }

    fn left_with(&self, cut: Cut, media: Vec<Medium>, ledger: &Ledger) -> Left {
        self.look_again();
        let mut lives = self.lives();
        self.note_come(&mut lives, |drive| media[drive].snapshot());
        let mut model = self.model.borrow().clone();
        let is_moving = u64::from(self.is_reshaping());
        ledger.count(|counts| counts.reshape_points += is_moving);
        model.crash(cut);
        ledger.count_crash(cut);
        let mut uncovered = self.uncovered.borrow().clone();
        uncovered.cut();
        Left {
            media,
            model,
            life: self.life,
            is_cached: cut == Cut::Kill,
            lives,
            is_made: self.is_made.get(),
            is_stopped: self.is_stopped.get(),
            online: self.still_in_service(),
            geometry: self.geometry(),
            journal: JournalFate { is_moving: false, ..self.journal.get() },
            uncovered,
            written: self.written.borrow().clone(),
            bit_rot: self.bit_rot.block.borrow().clone(),
            drives_named: self.members.named.get(),
            used_end: self.used_end.get(),
        }
    }

    /// Members in service since this life began, or that a start has which is under way.
    fn still_in_service(&self) -> MemberSet {
        let array = self.array.borrow();
        let Some(array) = &*array else {
            // Until the start changes anything it relies on nothing. Content that a kill left in the
            // drives' caches, and that the start has found there, may go with the power. Then the
            // record is what it was before.
            let relies = self.looking.get().is_none();
            return if relies { self.starting.get() } else { MemberSet::EMPTY };
        };
        let at_first = self.at_first.borrow();
        let now = members_of(array);
        let is_same = |member: &usize| {
            let is_as_at_first = |first: &MemberStatus| {
                first.state == MemberState::InService
                    && now[*member].uuid == first.uuid
                    && now[*member].since_event == first.since_event
            };
            array.is_online(MemberIndex(*member))
                && at_first.get(*member).is_some_and(is_as_at_first)
        };
        (0..now.len()).filter(is_same).collect()
    }

    /// The shape of the array now, or when it was last seen.
    pub(crate) fn geometry(&self) -> Geometry {
        match &*self.array.borrow() {
            Some(array) => array.geometry().clone(),
            None => self.geometry.borrow().clone(),
        }
    }

    fn serve(&self, array: Array<SimDisk>) {
        self.geometry.replace(array.geometry().clone());
        self.at_first.replace(members_of(&array));
        array.set_merge_policy(self.setup.merge);
        if self.setup.hangs {
            array.set_health_policy(hang::policy());
        }
        self.is_made.set(true);
        self.is_stopped.set(false);
        self.array.replace(Some(array));
    }

    /// Makes the array over the first drives.
    pub(crate) async fn create(&self) -> Result<(), ArrayError> {
        let members = self.setup.geometry.member_count();
        let options = self.setup.options();
        for (drive, uuid) in options.member_uuids.iter().enumerate() {
            self.lives.borrow_mut()[drive] = self.life;
            self.members.give(drive, *uuid);
        }
        let disks = self.disks[..members].to_vec();
        let journal = self
            .setup
            .has_journal_device
            .then(|| (self.disks[self.setup.member_drives()].clone(), self.members.name()));
        let handle = self.world.handle();
        let array = Array::create_with_journal(handle, &options, disks, journal).await?;
        assert_eq!(array.geometry(), &self.setup.geometry, "the shape is another");
        self.serve(array);
        (0..members).for_each(|drive| check_labels(self, drive));
        Ok(())
    }

    /// Puts the array in service from these drives, in this order. Nothing is written if it is refused.
    pub(crate) async fn assemble(
        &self,
        order: &[usize],
        options: AssembleOptions,
    ) -> Result<AssembleReport, ArrayError> {
        self.world.tell(|| format!("start: drives {order:?} of lives {:?}", self.lives()));
        self.world.tell(|| format!("start: on record{}", self.known()));
        let changes = self.changes();
        self.looking.set(Some((order.iter().copied().collect(), changes)));
        let disks = order.iter().map(|drive| self.disks[*drive].clone()).collect();
        let deadline_ns = if self.setup.hangs { hang::policy().deadline_ns } else { 0 };
        let handle = self.world.handle();
        let assembled = Array::assemble_within(handle, disks, options, deadline_ns).await;
        self.look_again();
        match assembled {
            Ok((array, report)) => {
                let known = self.known();
                let journals = known.journals();
                for drive in order.iter().filter(|drive| !journals.has(**drive)) {
                    let own = known.0[*drive].as_ref().expect("only members are given");
                    self.members.give(*drive, own.array[own.member].uuid);
                }
                for left_out in &report.left_out {
                    self.members.note_former(left_out.member, order[left_out.device]);
                }
                self.serve(array);
                Ok(report)
            }
            Err(error) => {
                let is_refused = matches!(error, ArrayError::Metadata(_));
                let is_written = self.changes() != changes;
                assert!(!is_refused || !is_written, "refused ({error}), and yet written");
                Err(error)
            }
        }
    }

    fn changes(&self) -> u64 {
        self.disks.iter().map(SimDisk::changes).sum()
    }

    /// The drives that a start was given are part of this life as soon as the start changes anything.
    fn look_again(&self) {
        if let Some((given, changes)) = self.looking.get()
            && changes != self.changes()
        {
            self.looking.set(None);
            self.is_stopped.set(false);
            for (drive, life) in self.lives.borrow_mut().iter_mut().enumerate() {
                if given.has(drive) {
                    *life = self.life;
                }
            }
        }
    }

    /// For each drive the last life that it was part of.
    pub(crate) fn lives(&self) -> Vec<u64> {
        self.lives.borrow().clone()
    }

    /// A drive is about to come to the array while it serves; its uuid.
    pub(crate) fn come(&self, drive: usize) -> [u8; 16] {
        let uuid = self.members.name();
        self.members.give(drive, uuid);
        let medium = self.disks[drive].snapshot();
        self.members.note_come(drive, superblock_on(medium, self.setup.drives[drive].bytes));
        uuid
    }

    /// Drives that came are part of this life as soon as they say so.
    fn note_come(&self, lives: &mut [u64], medium: impl Fn(usize) -> Snapshot) {
        let says = |drive| superblock_on(medium(drive), self.setup.drives[drive].bytes);
        for drive in self.members.changed(says) {
            lives[drive] = self.life;
        }
    }

    /// Of some drives those that were left out of the last life.
    pub(crate) fn part_of_older_lives(&self, given: DriveSet) -> DriveSet {
        given - last_ones(&self.lives.borrow(), given)
    }

    /// Whether the making of the array was acknowledged.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.get()
    }

    /// Whether the stop of the array was acknowledged, and nothing was changed since.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    /// Whether a start may be refused because nobody knows what fits.
    pub(crate) fn may_need_resync(&self) -> bool {
        let may_be = !self.setup.has_journal() || self.journal.get().is_content_lost;
        may_be && !self.is_stopped.get()
    }

    /// The superblocks as they are now.
    pub(crate) fn known(&self) -> Known {
        Known::of(&self.setup, self.disks.iter().map(SimDisk::snapshot))
    }

    /// The array, which has begun.
    pub(crate) fn array(&self) -> Array<SimDisk> {
        self.array.borrow().clone().expect("it has begun")
    }

    /// The array, if it has begun.
    pub(crate) fn serving(&self) -> Option<Array<SimDisk>> {
        self.array.borrow().clone()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.array().limits().clone()
    }

    /// Whether regions may not match.
    pub(crate) fn needs_resync(&self) -> bool {
        self.array().status().is_some_and(|status| status.regions_to_resync > 0)
    }

    /// Waits until something holds.
    ///
    /// # Panics
    /// When the condition never holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..LOOKS_MAX {
            if holds(self) {
                return;
            }
            self.world.handle().sleep(LOOK_NS).await;
        }
        panic!("{what} never: it stands still");
    }

    /// Stops the array in order: nothing is under way.
    pub(crate) async fn stop(&self) {
        let flush = self.model.borrow_mut().begin_flush();
        let open = self.uncovered.borrow_mut().begin_flush();
        if let Err(error) = self.array().stop().await {
            panic!("the array does not stop: {error}");
        }
        // Regions that need a resync keep the array from being clean.
        self.is_stopped.set(!self.needs_resync());
        if !self.needs_resync() {
            self.journal.set(JournalFate { is_content_lost: false, ..self.journal.get() });
        }
        self.model.borrow_mut().end_flush(flush);
        self.uncovered.borrow_mut().end_flush(open, !self.needs_resync());
        self.bit_rot.forget();
    }

    /// Stops the array after a write that failed. The stop need not be a clean one: data and parity may not
    /// fit.
    pub(crate) async fn stop_after_failure(&self) {
        let stopped = self.array().stop().await;
        // A journal has what failed, and the next start redoes it.
        let may_fail = self.setup.has_journal();
        assert!(stopped.is_ok() || may_fail, "the array does not stop: {stopped:?}");
        self.is_stopped.set(false);
    }

    /// Ends the life in memory: nothing of the array is left but its tasks.
    pub(crate) fn drop_array(&self) {
        self.geometry.replace(self.geometry());
        self.starting.set(MemberSet::EMPTY);
        self.note_come(&mut self.lives.borrow_mut(), |drive| self.disks[drive].snapshot());
        self.array.replace(None);
    }

    /// The sector of a member's device with this one of its chunks.
    pub(crate) fn on_device(&self, at: Lba) -> Lba {
        self.setup.layout().data.start.plus(at.0)
    }

    /// Whether every member is in service.
    pub(crate) fn is_all_online(&self) -> bool {
        let array = self.array();
        (0..array.geometry().member_count()).all(|member| array.is_online(MemberIndex(member)))
    }

    /// The used ranges of the volume, as the volume is now.
    pub(crate) fn windows(&self) -> Vec<SectorRange> {
        if self.setup.expands() {
            return vec![SectorRange::new(Lba(0), self.limits().sectors)];
        }
        self.runs.clone()
    }

    /// The same in requests that are not too long.
    pub(crate) fn whole(&self) -> Vec<SectorRange> {
        if !self.setup.expands() {
            return self.windows();
        }
        let cut = |window: SectorRange| {
            let pieces = window.split_at_multiples(REQUEST_BYTES / SECTOR_BYTES);
            pieces.collect::<Vec<_>>()
        };
        self.windows().into_iter().flat_map(cut).collect()
    }

    /// Whether the array that serves has two shapes.
    pub(crate) fn is_reshaping(&self) -> bool {
        self.serving().is_some_and(|array| array.reshape_status().is_some())
    }

    /// A request was answered.
    pub(crate) fn note_use(&self, range: SectorRange) {
        self.used_end.set(self.used_end.get().max(range.end()));
    }

    /// How many members were added for capacity.
    pub(crate) fn members_added(&self) -> usize {
        self.array().geometry().data_chunks() - self.setup.geometry.data_chunks()
    }

    /// How often the journal was moved, if its device is known to be lost now. While the journal is moved
    /// nothing is known: what is told lost may be on record elsewhere already.
    pub(crate) fn journal_before(&self) -> Option<u64> {
        if !self.setup.has_journal_device || self.journal.get().is_moving {
            return None;
        }
        let status = self.array().status().expect("an array with superblocks");
        let is_lost = status.journal_device.is_some_and(|it| it.state == JournalState::Lost);
        is_lost.then(|| self.journal.get().moves)
    }

    /// A write that was begun then is acknowledged: the loss is on record.
    pub(crate) fn note_journal(&self, before: Option<u64>) {
        let fate = self.journal.get();
        if before == Some(fate.moves) {
            self.journal.set(JournalFate { is_out: true, ..fate });
        }
    }

    /// The drive that has the journal.
    pub(crate) fn journal_drive(&self) -> Option<usize> {
        let status = self.array().status().expect("an array with superblocks");
        let in_service = status.journal_device.filter(|it| it.state == JournalState::InService)?;
        let is_it = |label: &Option<JournalLabel>| {
            label.as_ref().is_some_and(|label| label.uuid == in_service.uuid)
        };
        self.known().1.iter().position(is_it)
    }
}
