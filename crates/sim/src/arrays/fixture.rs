//! An array on simulated drives, and what is known of what it must hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, AssembleReport, Geometry, MemberState, MemberStatus, Stripe,
};
use voltier_block::{BlockDevice, Buf, Lba, Limits, Nanos, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::bit_rot::Rot;
use crate::arrays::journal::JournalFate;
use crate::arrays::left::{Known, Left, has, last_ones, mask, superblock_on};
use crate::arrays::members::MemberMap;
use crate::arrays::parity;
use crate::arrays::setup::Setup;
use crate::arrays::uncovered::Uncovered;
use crate::disk::SimDisk;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium, Snapshot};
use crate::model::{Model, Since};
use crate::world::World;

const SECTOR: usize = SECTOR_BYTES as usize;
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
    pub(crate) rot: RefCell<Option<Rot>>,
    pub(crate) members: MemberMap,
    /// Runs of stripes that are used; see [`Self::windows`].
    pub(super) runs: Vec<SectorRange>,
    stripes: Vec<Stripe>,
    life: u64,
    lives: RefCell<Vec<u64>>,
    /// While a start is looking at what it was given: that, and the changes of all drives until then.
    looking: Cell<Option<(u64, u64)>>,
    /// The members that a start which is under way has.
    pub(crate) starting: Cell<u64>,
    is_made: Cell<bool>,
    is_stopped: Cell<bool>,
    /// The shape when this life began.
    geometry: RefCell<Geometry>,
    pub(crate) journal: Cell<JournalFate>,
    /// The members when this life began.
    at_first: RefCell<Vec<MemberStatus>>,
    /// A stripe that clients keep out of.
    pub(crate) closed: Cell<Option<Stripe>>,
    /// Whether something else is in it than was written.
    pub(crate) is_rotten: Cell<bool>,
    /// Whether something was put on a member in this life that a scrub is to find.
    pub(crate) was_rotten: Cell<bool>,
    /// What clients have under way.
    pub(crate) under_way: RefCell<Vec<SectorRange>>,
    /// The end of what requests that were answered were for.
    pub(crate) used_end: Cell<Lba>,
    /// Whether a member for room is on its way.
    pub(crate) is_room_asked: Cell<bool>,
}

/// Runs of neighbouring stripes, as sectors of the volume.
fn windows(setup: &Setup, stripes: &[Stripe]) -> Vec<SectorRange> {
    let runs = stripes.chunk_by(|one, next| one.0 + 1 == next.0);
    let window = |run: &[Stripe]| {
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
            rot: RefCell::new(left.rot),
            members: MemberMap::new(left.drives_named),
            runs: windows(setup, &stripes),
            stripes,
            life: left.life + 1,
            lives: RefCell::new(left.lives),
            looking: Cell::new(None),
            starting: Cell::new(0),
            is_made: Cell::new(left.is_made),
            is_stopped: Cell::new(left.is_stopped),
            geometry: RefCell::new(left.geometry),
            journal: Cell::new(left.journal),
            at_first: RefCell::default(),
            closed: Cell::new(None),
            is_rotten: Cell::new(false),
            was_rotten: Cell::new(false),
            under_way: RefCell::default(),
            used_end: Cell::new(left.used_end),
            is_room_asked: Cell::new(false),
        })
    }

    /// What `cut` leaves at this moment.
    pub(crate) fn left_by(&self, cut: Cut, prng: &mut Prng, ledger: &Ledger) -> Left {
        let media = self.disks.iter().map(|disk| disk.after(cut, prng)).collect();
        self.left_with(cut, media, ledger)
    }

    /// What a kill leaves at this moment when the drives end what they were at.
    pub(crate) fn left_by_kill(&self, ledger: &Ledger) -> Left {
        self.left_with(Cut::Kill, self.disks.iter().map(SimDisk::after_its_work).collect(), ledger)
    }

    fn left_with(&self, cut: Cut, media: Vec<Medium>, ledger: &Ledger) -> Left {
        self.look_again();
        let mut lives = self.lives();
        self.note_come(&mut lives, |drive| media[drive].snapshot());
        let mut model = self.model.borrow().clone();
        let is_moving = u64::from(self.is_moving());
        ledger.count(|counts| {
            counts.crash_points += 1;
            counts.reshape_points += is_moving;
        });
        match cut {
            Cut::Power => model.power_cut(),
            Cut::Kill => model.kill(),
        }
        let kind = if cut == Cut::Power { FaultKind::PowerCut } else { FaultKind::DaemonKill };
        ledger.fault(kind);
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
            rot: self.rot.borrow().clone(),
            drives_named: self.members.named.get(),
            used_end: self.used_end.get(),
        }
    }

    /// Members in service since this life began, or that a start has which is under way.
    fn still_in_service(&self) -> u64 {
        let array = self.array.borrow();
        let Some(array) = &*array else {
            // Until it changes anything it relies on nothing: what a kill left in the drives' caches, and
            // the start has found there, may go with the power, and the record is what it was before.
            let relies = self.looking.get().is_none();
            return if relies { self.starting.get() } else { 0 };
        };
        let at_first = self.at_first.borrow();
        let now = members_of(array);
        let is_same = |member: &usize| {
            let is_as_at_first = |first: &MemberStatus| {
                first.state == MemberState::InService
                    && now[*member].uuid == first.uuid
                    && now[*member].since_event == first.since_event
            };
            array.is_online(*member) && at_first.get(*member).is_some_and(is_as_at_first)
        };
        mask((0..now.len()).filter(is_same))
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
        self.looking.set(Some((mask(order.iter().copied()), changes)));
        let disks = order.iter().map(|drive| self.disks[*drive].clone()).collect();
        let assembled = Array::assemble(self.world.handle(), disks, options).await;
        self.look_again();
        match assembled {
            Ok((array, report)) => {
                let known = self.known();
                let journals = known.journals();
                for drive in order.iter().filter(|drive| !has(journals, **drive)) {
                    let own = known.0[*drive].as_ref().expect("only members are given");
                    self.members.give(*drive, own.array.members[own.member].uuid);
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

    /// What a start was given is part of this life as soon as it changes anything.
    fn look_again(&self) {
        if let Some((given, changes)) = self.looking.get()
            && changes != self.changes()
        {
            self.looking.set(None);
            self.is_stopped.set(false);
            for (drive, life) in self.lives.borrow_mut().iter_mut().enumerate() {
                if has(given, drive) {
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
    pub(crate) fn part_of_older_lives(&self, given: u64) -> u64 {
        given & !last_ones(&self.lives.borrow(), given)
    }

    /// Whether the making of the array was acknowledged.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.get()
    }

    /// Whether a start may be refused because nobody knows what fits.
    pub(crate) fn may_be_in_doubt(&self) -> bool {
        let may_be = !self.setup.has_journal() || self.journal.get().is_content_lost;
        may_be && !self.is_stopped.get()
    }

    /// Keeps clients out of what is not as it was written.
    pub(crate) fn close_what_is_rotten(&self) {
        if let Some(rot) = &*self.rot.borrow() {
            self.closed.set(Some(rot.stripe));
            self.is_rotten.set(true);
            self.was_rotten.set(true);
        }
    }

    /// What the superblocks say now.
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
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.array().status().is_some_and(|status| status.regions_in_doubt > 0)
    }

    /// Waits until something holds.
    ///
    /// # Panics
    /// When it never does.
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
        // What is still in doubt keeps it from being clean.
        self.is_stopped.set(!self.is_in_doubt());
        if !self.is_in_doubt() {
            self.journal.set(JournalFate { is_content_lost: false, ..self.journal.get() });
        }
        self.model.borrow_mut().end_flush(flush);
        self.uncovered.borrow_mut().end_flush(open, !self.is_in_doubt());
        self.rot.replace(None);
        self.closed.set(None);
    }

    /// Ends the life in memory: nothing of the array is left but its tasks.
    pub(crate) fn drop_array(&self) {
        self.geometry.replace(self.geometry());
        self.starting.set(0);
        self.note_come(&mut self.lives.borrow_mut(), |drive| self.disks[drive].snapshot());
        self.array.replace(None);
    }

    /// The sector of a member's device with this one of its chunks.
    pub(crate) fn on_device(&self, at: Lba) -> Lba {
        self.setup.layout().data.start.plus(at.0)
    }

    /// Reads all that is used of the volume and holds it to the model, then every stripe to parity.
    /// Nothing may be under way.
    ///
    /// # Panics
    /// When something is not as it must be.
    pub(crate) async fn check_all(&self, when: &str) {
        if self.setup.gains_room() {
            return self.check_with_room(when).await;
        }
        let stripe_bytes = self.setup.geometry.stripe_sectors() as usize * SECTOR;
        let mut contents = Vec::new();
        for window in self.windows() {
            contents.push(self.read(window, when).await);
        }
        if self.is_in_doubt() {
            return;
        }
        let (geometry, stored) = (self.geometry(), self.stored_chunks());
        let volume = contents.iter().flat_map(|content| content.chunks_exact(stripe_bytes));
        for (stripe, content) in self.stripes.iter().zip(volume) {
            let is_written = self.written.borrow().contains(&self.setup.region_of(*stripe));
            if !is_written || self.rotten() == Some(*stripe) {
                continue;
            }
            parity::check(&geometry, *stripe, content, when, &stored);
        }
    }

    /// Reads a part of the volume and holds it to the model.
    pub(crate) async fn read(&self, range: SectorRange, when: &str) -> Buf {
        let read = self.model.borrow_mut().begin_read();
        let into = Buf::new(range.bytes() as usize);
        let content = match self.array().read(range.start, into).await {
            Ok(content) => content,
            Err(error) => panic!("reading {range} fails {when}: {error}"),
        };
        self.note_use(range);
        self.check_read(read, range, &content, when);
        content
    }

    /// What members in service have on their drives now: the chunk at a sector of a member's data area.
    pub(crate) fn stored_chunks(&self) -> impl Fn(usize, u64) -> Option<Vec<u8>> {
        let array = self.array();
        let members = 0..array.geometry().member_count();
        let drives: Vec<Option<usize>> =
            members.map(|member| self.members.drive_of(&array, member)).collect();
        let chunk_bytes = array.geometry().chunk_sectors() as usize * SECTOR;
        let data_start = self.on_device(Lba(0));
        move |member, at| {
            let drive = drives[member].filter(|_| array.is_online(member))?;
            let mut chunk = vec![0; chunk_bytes];
            self.disks[drive].peek(data_start.plus(at), &mut chunk);
            Some(chunk)
        }
    }

    /// Whether every member is in service.
    pub(crate) fn is_all_online(&self) -> bool {
        let array = self.array();
        (0..array.geometry().member_count()).all(|member| array.is_online(member))
    }

    fn rotten(&self) -> Option<Stripe> {
        self.closed.get().filter(|_| self.is_rotten.get())
    }

    /// Holds what was read to the model; of a stripe that somebody did harm to nothing is asked.
    pub(crate) fn check_read(&self, read: Since, range: SectorRange, content: &[u8], when: &str) {
        let closed = self.rotten().map(|stripe| self.setup.sectors_of(stripe));
        let Some(closed) = closed.filter(|closed| closed.overlaps(range)) else {
            let seen = self.model.borrow_mut().end_read(read, range.start, content);
            return seen.unwrap_or_else(|violation| panic!("{violation}, reading {range} {when}"));
        };
        let mut model = self.model.borrow_mut();
        let before = closed.start.0.saturating_sub(range.start.0) as usize * SECTOR;
        let behind = closed.end().0.min(range.end().0);
        let rest = (behind - range.start.0) as usize * SECTOR;
        let again = model.begin_read();
        let seen = model.end_read(read, range.start, &content[..before]);
        let seen = seen.and_then(|()| model.end_read(again, Lba(behind), &content[rest..]));
        seen.unwrap_or_else(|violation| panic!("{violation}, reading {range} {when}"));
    }

    /// Whether exactly these members are in service.
    pub(crate) fn check_members(&self, expected: u64) {
        let array = self.array();
        for member in 0..self.geometry().member_count() {
            let (is, must) = (array.is_online(member), has(expected, member));
            assert!(is == must, "member {member} is in service: {is}; it should be: {must}");
        }
    }
}
