//! A pair of drives and what is known beside them: what survives the process, and what a crash
//! leaves of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{DriveControl, KIB, Lba, Prng, SectorRange};
use voltier_cache::{Health, Label, Mode, OpenError};

use crate::disk::SimDisk;
use crate::disk_spec::DiskSpec;
use crate::fault::FaultKind;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::remote::Network;
use crate::workload::{DeviceUnderTest, Profile, SimCache, UUID, open_passed};
use crate::world::World;

/// Longest time until the loss of an SSD is on record.
const RECORD_NS: u64 = 20_000_000;

/// The first bytes of an SSD, with both copies of its label.
const LABEL_BYTES: usize = 128 * KIB as usize;

/// Faults of an SSD whose data can be read all the same.
const REFUSE_WRITES: [FaultKind; 4] = [
    FaultKind::WriteErrorOnce,
    FaultKind::WriteErrorRange,
    FaultKind::WriteErrorForEver,
    FaultKind::LatencySpike,
];

/// The cut of each drive in a crash: the process dies with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    pub(crate) ssd: Cut,
    pub(crate) origin: Cut,
}

impl Crash {
    /// The power goes for all, or for none.
    pub(crate) fn of(cut: Cut) -> Self {
        Self { ssd: cut, origin: cut }
    }

    pub(crate) fn draw(prng: &mut Prng) -> Self {
        Self::of(Cut::draw(prng))
    }

    /// A power cut, if one of the drives loses its power.
    pub(crate) fn cut(self) -> Cut {
        let is_power_cut = self.ssd == Cut::Power || self.origin == Cut::Power;
        if is_power_cut { Cut::Power } else { Cut::Kill }
    }
}

/// Everything that a crash leaves.
#[derive(Clone)]
pub(crate) struct Left {
    pub(crate) ssd: Medium,
    pub(crate) origin: Medium,
    /// The bytes by which the origin has grown since the cache was made.
    pub(crate) origin_grown_bytes: u64,
    pub(crate) model: Model,
    /// The last generation that a start has told its caller.
    pub(crate) generation: u64,
    /// Names the cache; a new SSD has another one.
    pub(crate) uuid: [u8; 16],
    /// Everything was written back, and the label is being erased.
    pub(crate) dissolving: bool,
    /// The loss of the SSD is on record: it is not trusted any more.
    pub(crate) lost: bool,
    /// Ranges on record in which clients have passed an SSD that was being evacuated.
    pub(crate) passed: Vec<SectorRange>,
    /// The SSD does not hold what was written to it.
    pub(crate) ssd_damaged: bool,
    /// The same for the origin, whose sectors in question the model leaves out.
    pub(crate) origin_damaged: bool,
    /// A life ended with damage of the SSD that nothing proves: the log may end before records that an
    /// evacuation had begun to write to the origin.
    pub(crate) ssd_hides_records: bool,
    /// The SSD was gone when the process died.
    pub(crate) ssd_was_gone: bool,
    /// The same for the origin.
    pub(crate) origin_was_gone: bool,
}

impl Left {
    /// New drives, with a new cache on them.
    pub(crate) fn new(profile: &Profile) -> Self {
        let (ssd, origin) = profile.format();
        Self {
            ssd,
            origin,
            origin_grown_bytes: 0,
            model: profile.model(),
            generation: 0,
            uuid: UUID,
            dissolving: false,
            lost: false,
            passed: Vec::new(),
            ssd_damaged: false,
            origin_damaged: false,
            ssd_hides_records: false,
            ssd_was_gone: false,
            origin_was_gone: false,
        }
    }

    /// The origin becomes larger, while nothing uses it.
    pub(crate) fn grow_origin(&mut self, profile: &Profile, by_bytes: u64) {
        self.origin_grown_bytes += by_bytes;
        self.origin.grow(profile.origin.bytes + self.origin_grown_bytes);
    }

    /// The cache was given up: a new SSD before the same origin.
    pub(crate) fn with_new_ssd(self, profile: &Profile) -> Self {
        let mut uuid = self.uuid;
        uuid[15] = uuid[15].wrapping_add(1);
        let (ssd, origin) = profile.format_as(uuid, self.origin.clone());
        let (generation, dissolving, lost) = (0, false, false);
        let (ssd_damaged, ssd_hides_records, ssd_was_gone) = (false, false, false);
        Self {
            ssd,
            origin,
            generation,
            uuid,
            dissolving,
            lost,
            passed: Vec::new(),
            ssd_damaged,
            ssd_hides_records,
            ssd_was_gone,
            ..self
        }
    }
}

/// The drives in use.
pub(crate) struct CacheFixture {
    pub(crate) drives: RefCell<(SimDisk, SimDisk)>,
    pub(crate) origin_grown_bytes: u64,
    pub(crate) model: Rc<RefCell<Model>>,
    pub(crate) generation: Cell<u64>,
    pub(crate) dissolving: Cell<bool>,
    pub(crate) lost: Cell<bool>,
    passed: RefCell<Vec<SectorRange>>,
    pub(crate) ssd_damaged: Rc<Cell<bool>>,
    pub(crate) origin_damaged: Rc<Cell<bool>>,
    ssd_hides_records: bool,
    /// The SSD refuses writes or hangs at worst: what is on it can be read.
    only_refuses_writes: Cell<bool>,
    stopped: Cell<bool>,
    pub(crate) uuid: [u8; 16],
    /// The cache that serves now; processes are counted, so that a dead one records nothing.
    serving: RefCell<Option<SimCache>>,
    process: Cell<u64>,
}

/// The origin of a profile, which may have grown since.
pub(crate) fn origin_disk(
    world: &World,
    profile: &Profile,
    medium: Medium,
    grown_bytes: u64,
) -> SimDisk {
    let bytes = profile.origin.bytes + grown_bytes;
    SimDisk::new(world, &DiskSpec { bytes, ..profile.origin.clone() }, medium)
}

impl CacheFixture {
    pub(crate) fn new(world: &World, profile: &Profile, left: Left) -> Rc<Self> {
        let ssd = SimDisk::new(world, &profile.ssd, left.ssd);
        let origin = origin_disk(world, profile, left.origin, left.origin_grown_bytes);
        if left.ssd_was_gone || left.origin_was_gone {
            world.fault(FaultKind::DriveReturn);
        }
        world.excuse(left.ssd_damaged);
        world.set_patience(profile.settings.deadline_ns);
        Rc::new(Self {
            drives: RefCell::new((ssd, origin)),
            origin_grown_bytes: left.origin_grown_bytes,
            model: Rc::new(RefCell::new(left.model)),
            generation: Cell::new(left.generation),
            dissolving: Cell::new(left.dissolving),
            lost: Cell::new(left.lost),
            passed: RefCell::new(left.passed),
            ssd_damaged: Rc::new(Cell::new(left.ssd_damaged)),
            origin_damaged: Rc::new(Cell::new(left.origin_damaged)),
            ssd_hides_records: left.ssd_hides_records,
            only_refuses_writes: Cell::new(!left.ssd_damaged),
            stopped: Cell::new(false),
            uuid: left.uuid,
            serving: RefCell::new(None),
            process: Cell::new(0),
        })
    }

    /// Has the drives fail as the profile says.
    pub(crate) fn inject(&self, world: &World, profile: &Profile) {
        if let Some(network) = Network::of(world) {
            network.go_wrong();
        }
        let (ssd, origin) = self.drives.borrow().clone();
        let damaged = self.ssd_damaged.clone();
        let refuses = |rate: &(FaultKind, u64)| REFUSE_WRITES.contains(&rate.0);
        let is_whole = !self.ssd_damaged.get();
        self.only_refuses_writes.set(is_whole && profile.ssd_faults.rates.iter().all(refuses));
        // Bit rot that strikes the log's end between a crash and the replay looks like the crash: bits
        // turn over once the cache is open.
        let mut opening = profile.ssd_faults.clone();
        opening.without(&[FaultKind::BitRot]);
        ssd.inject(&opening, move |_| damaged.set(true));
        let model = self.model.clone();
        origin.on_flush_loss(Rc::new(move |range| model.borrow_mut().undo(range)));
        let (model, damaged) = (self.model.clone(), self.origin_damaged.clone());
        // The origin carries no checksums: no layer can know.
        origin.inject(&profile.origin_faults, move |range| {
            damaged.set(true);
            model.borrow_mut().give_up(range);
        });
    }

    /// The cache is open: all that the profile says may happen.
    pub(crate) fn inject_all(&self, profile: &Profile) {
        self.drives.borrow().0.change_mix(&profile.ssd_faults);
    }

    /// The drives work again, but those that are gone.
    pub(crate) fn mend(&self, world: &World) {
        if let Some(network) = Network::of(world) {
            network.mend();
        }
        let (ssd, origin) = self.drives.borrow().clone();
        ssd.mend();
        origin.mend();
    }

    /// Whether the volume can be whole again without another start.
    pub(crate) fn can_be_mended(&self) -> bool {
        let (ssd, origin) = self.drives.borrow().clone();
        !origin.is_gone() && (!ssd.is_gone() || self.lost.get())
    }

    /// Whether damage of the SSD would look like what a crash takes (see `inject.rs`).
    pub(crate) fn has_unproved_damage(&self) -> bool {
        !self.stopped.get() && self.drives.borrow().0.has_fresh_damage()
    }

    /// Stops the cache in order, if the drives let it.
    pub(crate) async fn stop(&self, dut: &DeviceUnderTest<SimCache>) {
        match dut.device.stop().await {
            Ok(()) => self.check_stopped(dut),
            Err(error) => dut.forgive(error, "at the end", || "a stop".to_owned()),
        }
    }

    /// Checks that a stop has left its drives alone: whoever is below stops next.
    fn check_stopped(&self, dut: &DeviceUnderTest<SimCache>) {
        let (ssd, origin) = self.drives.borrow().clone();
        let status = dut.device.status();
        let was_silent = status.ssd_silent_ns.is_some() || status.origin_silent_ns.is_some();
        let under_way = (ssd.under_way().count(), origin.under_way().count());
        assert!(was_silent || under_way == (0, 0), "a stop leaves requests: {under_way:?}");
        let mut head = vec![0; LABEL_BYTES];
        ssd.peek(Lba(0), &mut head);
        // Where the map was being loaded the log ends as in a crash.
        let label = Label::in_head(&head).expect("its own format");
        self.stopped.set(label.is_some_and(|label| label.clean));
    }

    /// Copies of what a crash at this moment leaves. Everything goes on.
    pub(crate) fn left_by(&self, mut crash: Crash, prng: &mut Prng) -> Left {
        let (ssd, origin) = self.drives.borrow().clone();
        // A server has died: what was to be made again there is lost with the process.
        if Network::of(origin.world()).is_some_and(|network| network.has_lost(&origin)) {
            crash.origin = Cut::Power;
        }
        // A drive that is gone has lost its power.
        if ssd.is_gone() {
            crash.ssd = Cut::Power;
        }
        if origin.is_gone() {
            crash.origin = Cut::Power;
        }
        let mut model = self.model.borrow().clone();
        match (crash.ssd, crash.origin) {
            (Cut::Kill, Cut::Kill) => model.kill(),
            (Cut::Power, Cut::Power) => model.power_cut(),
            _ => model.power_cut_in_part(),
        }
        let hides_records = self.has_unproved_damage();
        if hides_records {
            // Damage that is not proved yet cannot be told from what the crash took.
            model.give_up_touched();
        }
        Left {
            ssd: ssd.after(crash.ssd, prng),
            origin: origin.after(crash.origin, prng),
            origin_grown_bytes: self.origin_grown_bytes,
            model,
            generation: self.generation.get(),
            uuid: self.uuid,
            dissolving: self.dissolving.get(),
            lost: self.lost.get(),
            passed: self.passed(),
            ssd_damaged: self.ssd_damaged.get(),
            origin_damaged: self.origin_damaged.get(),
            ssd_hides_records: self.ssd_hides_records || hides_records,
            ssd_was_gone: ssd.is_gone(),
            origin_was_gone: origin.is_gone(),
        }
    }

    /// Kills the process that serves from the drives: they get another life.
    pub(crate) fn kill(&self, world: &World, profile: &Profile) {
        let left = self.left_by(Crash::of(Cut::Kill), &mut world.prng());
        self.end_process();
        let ssd = SimDisk::new(world, &profile.ssd, left.ssd);
        let origin = origin_disk(world, profile, left.origin, left.origin_grown_bytes);
        self.drives.replace((ssd, origin));
        self.model.replace(left.model);
    }

    /// Nothing that the process still does has an effect.
    pub(crate) fn end_process(&self) {
        self.process.set(self.process.get() + 1);
        if let Some(cache) = self.serving.borrow_mut().take() {
            cache.kill();
        }
    }

    pub(crate) async fn open(
        self: &Rc<Self>,
        world: &World,
        profile: &Profile,
        mode: Mode,
    ) -> Result<Rc<DeviceUnderTest<SimCache>>, OpenError> {
        let drives = self.drives.borrow().clone();
        let (settings, least) = (profile.settings(mode), self.generation.get());
        let passed = self.passed();
        let opened = open_passed(self.uuid, world, &drives, settings, least, passed);
        let (device, opened) = opened.await?;
        self.passed.take();
        assert!(opened.differing_lines == 0 || self.may_differ(), "not so: {opened:?}");
        let generation = opened.generation;
        self.generation.set(generation);
        self.process.set(self.process.get() + 1);
        self.stopped.set(false);
        self.serving.replace(Some(device.clone()));
        self.record_losses(world, &device);
        self.record_passing(world, &device);
        world.tell(|| format!("the cache is open, {mode:?}, generation {generation}"));
        Ok(Rc::new(DeviceUnderTest {
            world: world.clone(),
            model: self.model.clone(),
            device,
            windows: profile.windows().into(),
        }))
    }

    /// Whether the origin may have other content than the clean lines of the SSD say. Behind a head that
    /// rotted, a replay misses the record of a line that an evacuation has written to the origin, maybe in
    /// part, and takes the older copy for clean (`docs/guarantees.md`, the known gaps).
    fn may_differ(&self) -> bool {
        self.origin_damaged.get() || self.ssd_hides_records
    }

    /// As the registry does: when the SSD is given up, that is on record before anything changes.
    fn record_losses(self: &Rc<Self>, world: &World, device: &SimCache) {
        let (fixture, world, process) = (Rc::downgrade(self), world.clone(), self.process.get());
        let record = move || -> Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(async move {
                world.pass(1 + world.below(RECORD_NS)).await;
                match fixture.upgrade() {
                    Some(fixture) if fixture.process.get() == process => {
                        fixture.record_loss(&world)
                    }
                    // The process died before it could tell anybody.
                    _ => world.wait_for_ever().await,
                }
            })
        };
        device.on_failure(record, || {});
    }

    /// Ranges on record in which clients have passed the SSD.
    pub(crate) fn passed(&self) -> Vec<SectorRange> {
        self.passed.borrow().clone()
    }

    /// As the registry does: ranges that clients are to change past the SSD are on record before.
    fn record_passing(self: &Rc<Self>, world: &World, device: &SimCache) {
        let (fixture, world, process) = (Rc::downgrade(self), world.clone(), self.process.get());
        let record = move |ranges: Vec<SectorRange>| -> Pin<Box<dyn Future<Output = bool>>> {
            let (fixture, world) = (fixture.clone(), world.clone());
            Box::pin(async move {
                world.pass(1 + world.below(RECORD_NS)).await;
                match fixture.upgrade() {
                    Some(fixture) if fixture.process.get() == process => {
                        world.tell(|| format!("the SSD is passed in {ranges:?}"));
                        world.ledger().count(|counts| counts.passed += 1);
                        fixture.passed.replace(ranges);
                    }
                    // The process died before it could tell anybody.
                    _ => world.wait_for_ever().await,
                }
                true
            })
        };
        device.on_passing(record);
    }

    fn record_loss(&self, world: &World) {
        let serving = self.serving.borrow();
        let cache = serving.as_ref().expect("a live process serves");
        let lost = cache.lost_ranges(usize::MAX);
        world.tell(|| format!("the SSD is given up; lost: {} ranges", lost.len()));
        if self.only_refuses_writes.get() {
            assert_eq!(lost, [], "lost with an SSD that can be read");
        }
        for range in lost {
            self.model.borrow_mut().give_up(range);
        }
        self.lost.set(true);
        world.ledger().count(|counts| counts.given_up += 1);
    }

    /// Whether an error at the start is one that faults explain; else it is a broken promise.
    pub(crate) fn may_refuse(&self, world: &World, error: &OpenError) -> bool {
        match error {
            OpenError::NotACache if self.dissolving.get() => true,
            // Bit rot between the stop and the start, or put elsewhere: it is noticed, as promised.
            OpenError::OriginChanged { .. } | OpenError::ForeignOrigin { .. } => self.may_differ(),
            OpenError::Layout(_) => self.ssd_damaged.get(),
            // A drive that is slow for a moment is silent where the deadline is short.
            OpenError::Silent { .. } => true,
            _ => world.is_excused() || self.ssd_damaged.get(),
        }
    }

    /// The cache is damaged, and its owner gives it up: what was dirty in it is lost.
    pub(crate) fn give_up_cache(&self) {
        self.model.borrow_mut().give_up_touched();
        self.lost.set(true);
    }

    /// Holds what the origin of an ordered cache lacks at this moment to what the cache says of it: a loss of the
    /// SSD would take no more. Writes past the log and discards have no order: of them this says nothing.
    pub(crate) fn check_loss(&self, profile: &Profile) {
        let Some(cache) = self.serving.borrow().clone() else { return };
        let is_in_doubt = self.lost.get() || self.dissolving.get() || self.ssd_damaged.get();
        // Writes past the SSD that the origin has lost are none of the SSD's.
        let origin_fails = profile.remote || !profile.origin_faults.rates.is_empty();
        let status = cache.status();
        let is_in_order = profile.ordered && profile.modes.iter().all(|mode| mode.writes_back());
        if is_in_doubt || origin_fails || !is_in_order || status.health != Health::Online {
            return;
        }
        // The windows of clients overlap: each sector counts once.
        let newer: BTreeSet<u64> = self.newer_than_origin(profile).into_iter().collect();
        let newer = newer.into_iter().filter(|it| !self.model.borrow().is_changing(*it));
        let (lacks, told) = (newer.count() as u64 * 512, status.unshipped);
        assert!(lacks <= told.bytes, "the origin lacks {lacks} bytes, and the cache says {told:?}");
    }

    /// Sectors in use that the origin has otherwise than they must read.
    pub(crate) fn newer_than_origin(&self, profile: &Profile) -> Vec<u64> {
        let origin = self.drives.borrow().1.clone();
        let model = self.model.borrow();
        let differs = |sector: &u64| {
            let mut found = [0; 512];
            origin.peek(Lba(*sector), &mut found);
            model.differs(*sector, &found)
        };
        let sectors = profile.windows().into_iter().flat_map(|it| it.start.0..it.end().0);
        sectors.filter(differs).collect()
    }
}
