//! A cache over arrays: its origin an array with parity, its SSD a mirror. The cache destages whole
//! stripes, members go while the cache serves, and the power goes at any event. Then both arrays are
//! assembled, without members that they can lose, the cache is opened on them, and the model checks
//! everything. In the end the origin alone has everything, and a scrub finds nothing wrong with either
//! array.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{
    Array, AssembleOptions, BackgroundTask, Consistency, CreateOptions, Integrity, Layout, Level,
    MemberIndex, MergePolicy, Pace, Priority, ScrubRepair,
};
use voltier_block::{BlockDevice, KIB, MIB, Nanos, Prng};
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenError, OpenOptions};
use voltier_ring::{Executor, NoFiles};

use crate::arrays::merge::merge_of;
use crate::arrays::sets::MemberSet;
use crate::arrays::setup::uuid;
use crate::budget;
use crate::crash_points::CrashPoints;
use crate::disk::SimDisk;
use crate::disk_spec::DiskSpec;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::origin::FittedDevice;
use crate::rest;
use crate::workload::{DeviceUnderTest, Profile, UUID, run_clients};
use crate::world::World;

type StackedOrigin = FittedDevice<Array<SimDisk>>;
type StackedCache = Cache<Array<SimDisk>, StackedOrigin>;

/// One seed of arrays in so many is one of these.
const ONE_IN: u64 = 12;
/// Mixed into the seed: none of the kept seeds is one.
const DICE: u64 = 0x7374_6163_6b01;
/// Cuts of what follows a cut, one in the other.
const DEPTH_MAX: u32 = 2;
/// Events of a life after a cut among which the next one falls.
const NEXT_CUT_EVENTS: u64 = 900;
/// Superblocks, map and ring in front of the chunks, and the superblock behind them.
const OVERHEAD_BYTES: u64 = 2 * MIB + 4 * KIB;

/// The two arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Origin,
    Ssd,
}

/// An array of a world.
#[derive(Clone, Debug)]
struct Shape {
    level: Level,
    members: usize,
    /// How many of them may be lost.
    parities: usize,
    chunk_bytes: u64,
    consistency: Consistency,
    member: DiskSpec,
}

/// A cache, its arrays, and what is done with them.
#[derive(Clone, Debug)]
pub struct Stack {
    origin: Shape,
    ssd: Shape,
    profile: Profile,
    /// How the arrays merge small writes.
    merge: MergePolicy,
    /// One event in so many is a crash point.
    one_in: u64,
}

impl Stack {
    /// Draws a stack, if the seed is one of these.
    pub fn draw(seed: u64, clients: Option<u64>, steps: Option<u64>) -> Option<Self> {
        let mut prng = Prng::new(seed ^ DICE);
        if !prng.one_in(ONE_IN) {
            return None;
        }
        let shapes = [
            (Level::Raid5, 3, 1),
            (Level::Raid5, 5, 1),
            (Level::Raid6, 4, 2),
            (Level::Raid6, 6, 2),
            (Level::Raid50 { group: 3 }, 6, 1),
            (Level::Raid10, 4, 1),
        ];
        let (level, members, parities) = *prng.pick(&shapes);
        let mut shape = |level, members, parities, first: u64, latency_ns: Nanos| Shape {
            level,
            members,
            parities,
            chunk_bytes: *prng.pick(&[4 * KIB, 16 * KIB, 32 * KIB]),
            consistency: if prng.one_in(4) { Consistency::Bitmap } else { Consistency::Journal },
            member: DiskSpec {
                number: first,
                bytes: 0,
                block_bytes: if prng.one_in(3) { 4096 } else { 512 },
                latency_ns,
                model: None,
                lies: false,
                zeroing_discards: prng.one_in(2),
                stripe: None,
            },
        };
        let mut origin = shape(level, members, parities, 3, 100_000);
        let mut ssd = shape(Level::Raid1, 2, 1, 3 + members as u64, 20_000);
        let line_bytes = *prng.pick(&[4 * KIB, 4 * KIB, 8 * KIB, 32 * KIB]);
        let data_members = match level {
            Level::Raid50 { .. } => 4,
            Level::Raid10 => 2,
            _ => members - parities,
        };
        origin.member.bytes = OVERHEAD_BYTES + (17 * MIB).div_ceil(data_members as u64);
        ssd.member.bytes = OVERHEAD_BYTES + 2 * MIB + 20 * (256 * KIB).max(16 * line_bytes);
        let mut profile = Profile::small(&[Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough]);
        profile.line_bytes = line_bytes;
        profile.window_bytes = *prng.pick(&[128 * KIB, 256 * KIB]);
        profile.sectors_max = *prng.pick(&[16, 64, 128]);
        profile.ordered = prng.one_in(4);
        profile.clients = (1 + prng.below(3)).min(clients.unwrap_or(u64::MAX)).max(1);
        profile.steps = (6 + prng.below(30)).min(steps.unwrap_or(u64::MAX));
        profile.settings.dirty_high_percent = 10 + prng.below(81) as u8;
        profile.settings.dirty_low_percent = 0;
        Some(Self { origin, ssd, profile, merge: merge_of(seed), one_in: 150 })
    }

    fn shape(&self, side: Side) -> &Shape {
        match side {
            Side::Origin => &self.origin,
            Side::Ssd => &self.ssd,
        }
    }
}

impl Shape {
    fn disk(&self, member: usize) -> DiskSpec {
        DiskSpec { number: self.member.number + member as u64, ..self.member.clone() }
    }

    fn options(&self, name: &str) -> CreateOptions {
        let first = self.member.number;
        CreateOptions {
            name: name.to_owned(),
            level: self.level,
            layout: Layout::LeftSymmetric,
            chunk_bytes: self.chunk_bytes,
            consistency: self.consistency,
            integrity: Integrity::None,
            uuid: [first as u8; 16],
            member_uuids: (0..self.members as u64).map(|member| uuid(first + member)).collect(),
        }
    }

    fn group_of(&self, member: usize) -> usize {
        match self.level {
            Level::Raid50 { group } => member / group,
            Level::Raid10 => member / 2,
            _ => 0,
        }
    }
}

/// Everything that is left of a life.
#[derive(Clone)]
struct Left {
    origin: Vec<Medium>,
    ssd: Vec<Medium>,
    model: Model,
    /// The last generation of the cache that a start has told its caller.
    generation: u64,
    /// Whether both arrays had all their members, and so whether some may stay away now.
    was_whole: [bool; 2],
    /// Whether the cache was being taken away, with everything on the origin.
    is_dissolving: bool,
}

/// Drives, arrays, a cache.
struct StackFixture {
    world: World,
    stack: Rc<Stack>,
    disks: [Vec<SimDisk>; 2],
    arrays: [RefCell<Option<Array<SimDisk>>>; 2],
    cache: RefCell<Option<StackedCache>>,
    model: Rc<RefCell<Model>>,
    generation: Cell<u64>,
    is_dissolving: Cell<bool>,
    /// Members that are given to the next start.
    given: [MemberSet; 2],
}

const SIDES: [Side; 2] = [Side::Origin, Side::Ssd];

impl StackFixture {
    fn new(world: &World, stack: &Rc<Stack>, left: Left, given: [MemberSet; 2]) -> Rc<Self> {
        let disks = |side: Side, media: Vec<Medium>| {
            let shape = stack.shape(side);
            let disk = |(member, medium)| SimDisk::new(world, &shape.disk(member), medium);
            media.into_iter().enumerate().map(disk).collect()
        };
        Rc::new(Self {
            world: world.clone(),
            stack: stack.clone(),
            disks: [disks(Side::Origin, left.origin), disks(Side::Ssd, left.ssd)],
            arrays: Default::default(),
            cache: RefCell::default(),
            model: Rc::new(RefCell::new(left.model)),
            generation: Cell::new(left.generation),
            is_dissolving: Cell::new(left.is_dissolving),
            given,
        })
    }

    fn array(&self, side: Side) -> Array<SimDisk> {
        self.arrays[side as usize].borrow().clone().expect("it is assembled")
    }

    fn left_by(&self, cut: Cut, prng: &mut Prng) -> Left {
        let mut media = |side: Side| -> Vec<Medium> {
            self.disks[side as usize].iter().map(|disk| disk.after(cut, prng)).collect()
        };
        let (origin, ssd) = (media(Side::Origin), media(Side::Ssd));
        let mut model = self.model.borrow().clone();
        model.crash(cut);
        self.world.ledger().count_crash(cut);
        let was_whole = SIDES.map(|side| {
            let members = self.stack.shape(side).members;
            let array = self.arrays[side as usize].borrow();
            array
                .as_ref()
                .is_some_and(|it| (0..members).all(|member| it.is_online(MemberIndex(member))))
        });
        let (generation, is_dissolving) = (self.generation.get(), self.is_dissolving.get());
        Left { origin, ssd, model, generation, was_whole, is_dissolving }
    }

    async fn make(&self) {
        for side in SIDES {
            let options = self.stack.shape(side).options(&format!("{side:?}").to_lowercase());
            let disks = self.disks[side as usize].clone();
            let made = Array::create(self.world.handle(), &options, disks).await;
            let array = made.expect("a new array begins");
            array.set_merge_policy(self.stack.merge);
            self.arrays[side as usize].replace(Some(array));
        }
        let format = FormatOptions {
            line_size: LineSize::new(self.stack.profile.line_bytes).expect("a line size"),
            policy: self.stack.profile.policy,
            uuid: UUID,
        };
        let (ssd, origin) =
            (self.array(Side::Ssd), StackedOrigin::any_sector(self.array(Side::Origin)));
        StackedCache::format(&ssd, &origin, &format).await.expect("the mirror takes a cache");
        ssd.flush().await.expect("a flush works");
    }

    async fn assemble(&self) {
        for side in SIDES {
            let own = side as usize;
            let given = (0..self.disks[own].len()).filter(|at| self.given[own].has(*at));
            let disks = given.rev().map(|member| self.disks[own][member].clone()).collect();
            let options = AssembleOptions { degraded: true, force: false };
            let assembled = Array::assemble(self.world.handle(), disks, options).await;
            let (array, report) = assembled.unwrap_or_else(|error| {
                panic!("the array of the {side:?} does not come back: {error}")
            });
            assert!(report.journal.damaged.is_empty(), "a ring is damaged: {:?}", report.journal);
            array.set_merge_policy(self.stack.merge);
            self.arrays[own].replace(Some(array));
        }
    }

    /// Opens the cache; none if it was being taken away.
    async fn open(&self) -> Option<Rc<DeviceUnderTest<StackedCache>>> {
        let profile = &self.stack.profile;
        let options = OpenOptions {
            uuid: Some(UUID),
            generation_min: self.generation.get(),
            ..OpenOptions::with(profile.settings(profile.modes[0]))
        };
        let (ssd, origin) =
            (self.array(Side::Ssd), StackedOrigin::any_sector(self.array(Side::Origin)));
        let opened = Cache::open(self.world.handle(), ssd, origin, options).await;
        let (device, opened) = match opened {
            Ok(opened) => opened,
            Err(OpenError::NotACache) if self.is_dissolving.get() => return None,
            Err(error) => panic!("the cache does not come back: {error}"),
        };
        self.is_dissolving.set(false);
        self.generation.set(opened.generation);
        self.cache.replace(Some(device.clone()));
        let (world, model) = (self.world.clone(), self.model.clone());
        Some(Rc::new(DeviceUnderTest { world, model, device, windows: self.windows().into() }))
    }

    /// As of a profile whose origin is the array.
    fn windows(&self) -> [voltier_block::SectorRange; 3] {
        let mut profile = self.stack.profile.clone();
        profile.origin.bytes = self.array(Side::Origin).limits().bytes();
        profile.windows()
    }

    /// Takes a member out of an array, or its drive away.
    fn lose_one(&self, dice: &mut Prng) {
        let side = *dice.pick(&SIDES);
        let shape = self.stack.shape(side);
        let (array, member) = (self.array(side), dice.below(shape.members as u64) as usize);
        let disks = &self.disks[side as usize];
        let is_online =
            |other: &usize| array.is_online(MemberIndex(*other)) && !disks[*other].is_gone();
        let group = |other: &usize| shape.group_of(*other) == shape.group_of(member);
        let lost = (0..shape.members).filter(group).filter(|it| !is_online(it)).count();
        let is_resynced = array.status().is_some_and(|status| status.regions_to_resync == 0);
        // Without a journal what is being written goes with any member.
        let has_journal = shape.consistency == Consistency::Journal;
        if lost >= shape.parities || !is_online(&member) || !is_resynced || !has_journal {
            return;
        }
        self.world.tell(|| format!("care: member {member} of the {side:?} goes"));
        if dice.one_in(2) {
            let excused = self.world.is_excused();
            disks[member].lose();
            // No client may see an error of the loss.
            self.world.excuse(excused);
        } else {
            array.fail(MemberIndex(member)).expect("one may go");
        }
    }

    /// Ends the life in memory.
    fn end(&self) {
        if let Some(cache) = self.cache.take() {
            cache.kill();
        }
        self.arrays.iter().for_each(|array| drop(array.take()));
    }
}

/// Runs a seed; panics when a promise is broken.
pub fn run(seed: u64, stack: Stack, only: Option<u64>, ledger: &Rc<Ledger>) {
    budget::note_world();
    ledger.count(|counts| counts.array_seeds += 1);
    ledger.at(format!("seed {seed}, recording"), None);
    let stack = Rc::new(stack);
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), seed, ledger);
    let media = |side: Side| {
        let shape = stack.shape(side);
        (0..shape.members).map(|_| Medium::zeroed(shape.member.bytes)).collect()
    };
    let left = Left {
        origin: media(Side::Origin),
        ssd: media(Side::Ssd),
        // As large as all members together: more than the volume.
        model: Model::new(stack.origin.member.bytes / 512 * stack.origin.members as u64),
        generation: 0,
        was_whole: [true; 2],
        is_dissolving: false,
    };
    let fixture = StackFixture::new(&world, &stack, left, [MemberSet::ALL; 2]);
    executor.block_on(record(fixture.clone(), seed, only));
    finish(world, executor, fixture);
}

fn finish(world: World, mut executor: Executor, fixture: Rc<StackFixture>) {
    world.unwatch();
    fixture.end();
    world.close();
    rest::check_tasks(&world, &mut executor);
}

async fn record(fixture: Rc<StackFixture>, seed: u64, only: Option<u64>) {
    fixture.make().await;
    let dut = fixture.open().await.expect("a new cache opens");
    let profile = &fixture.stack.profile;
    run_clients(&dut, profile, profile.steps / 2).await;
    watch(&fixture, seed, only);
    serve(&fixture, &dut, &mut fixture.world.prng()).await;
    dut.check_all("at the end of the recorded life").await;
    fixture.world.unwatch();
    take_apart(&fixture, &dut).await;
}

/// Clients at work while members go.
async fn serve(
    fixture: &Rc<StackFixture>,
    dut: &Rc<DeviceUnderTest<StackedCache>>,
    dice: &mut Prng,
) {
    let (handle, profile) = (fixture.world.handle(), &fixture.stack.profile);
    let (beside, mut own_dice) = (fixture.clone(), Prng::new(dice.next_u64()));
    let operator = handle.spawn(async move {
        for _ in 0..own_dice.below(3) {
            beside.world.handle().sleep(own_dice.below(30_000_000)).await;
            beside.lose_one(&mut own_dice);
        }
    });
    run_clients(dut, profile, profile.steps).await;
    operator.await;
}

/// Sets the crash points of the recorded life.
fn watch(fixture: &Rc<StackFixture>, seed: u64, only: Option<u64>) {
    let points = CrashPoints { seed, one_in: fixture.stack.one_in, only };
    let (weak, ledger) = (Rc::downgrade(fixture), fixture.world.ledger().clone());
    fixture.world.watch(move |event| {
        let Some(fixture) = weak.upgrade() else { return };
        let Some(mut prng) = points.dice_at(event) else { return };
        let cut = Cut::draw(&mut prng);
        let contents = fixture.model.borrow().contents();
        ledger.at(format!("seed {seed}, event {event}, {cut:?}"), Some(event));
        ledger.count(|counts| counts.array_points += 1);
        let left = fixture.left_by(cut, &mut prng);
        verify(&fixture.stack, left, prng, &ledger, 0);
        fixture.model.borrow().forget_contents_since(contents);
        ledger.at(format!("seed {seed}, recording"), None);
    });
}

/// The members of each array that a start is given: some stay away where all were there.
fn pick_members(stack: &Stack, left: &Left, prng: &mut Prng) -> [MemberSet; 2] {
    SIDES.map(|side| {
        let shape = stack.shape(side);
        // Without a journal, regions that need a resync go with any member.
        let may_lose = left.was_whole[side as usize] && shape.consistency == Consistency::Journal;
        let mut given: MemberSet = (0..shape.members).collect();
        if may_lose && prng.one_in(2) {
            given = given - MemberSet::one(prng.below(shape.members as u64) as usize);
        }
        if may_lose && shape.parities > 1 && prng.one_in(2) {
            given = given - MemberSet::one(prng.below(shape.members as u64) as usize);
        }
        given
    })
}

/// Assembles and opens what a cut left, and checks it.
fn verify(stack: &Rc<Stack>, left: Left, mut prng: Prng, ledger: &Rc<Ledger>, depth: u32) {
    budget::note_world();
    let given = pick_members(stack, &left, &mut prng);
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::in_ledger(&executor.handle(), prng.next_u64(), ledger);
    let fixture = StackFixture::new(&world, stack, left, given);
    let next: Rc<RefCell<Option<Left>>> = Rc::default();
    if depth < DEPTH_MAX && prng.one_in(2) {
        let (weak, next) = (Rc::downgrade(&fixture), next.clone());
        let dice = RefCell::new(Prng::new(prng.next_u64()));
        let cut_at = prng.below(NEXT_CUT_EVENTS);
        world.watch(move |event| {
            let Some(fixture) = weak.upgrade().filter(|_| event == cut_at) else { return };
            let mut dice = dice.borrow_mut();
            let cut = Cut::draw(&mut dice);
            next.replace(Some(fixture.left_by(cut, &mut dice)));
        });
    }
    executor.block_on(recover(fixture.clone(), Prng::new(prng.next_u64())));
    finish(world, executor, fixture);
    if let Some(left) = next.take() {
        verify(stack, left, prng, ledger, depth + 1);
    }
}

/// The life after a cut.
async fn recover(fixture: Rc<StackFixture>, mut dice: Prng) {
    fixture.assemble().await;
    let Some(dut) = fixture.open().await else { return check_origin(&fixture).await };
    dut.check_all("after the crash").await;
    if dice.one_in(2) {
        serve(&fixture, &dut, &mut dice).await;
        dut.check_all("later").await;
    }
    rest::check_checksums(&fixture.world, &dut.device);
    if dice.one_in(2) {
        take_apart(&fixture, &dut).await;
    }
}

/// Everything goes to the origin, and the cache goes away.
async fn take_apart(fixture: &Rc<StackFixture>, dut: &Rc<DeviceUnderTest<StackedCache>>) {
    let settings = voltier_cache::Settings { mode: Mode::PassThrough, ..dut.device.settings() };
    dut.device.configure(settings).expect("a mode switch works");
    dut.device.drain().await.expect("a drain works");
    assert_eq!(dut.device.status().lines.dirty, 0, "dirty lines after a drain");
    fixture.is_dissolving.set(true);
    dut.device.dissolve().await.expect("a dissolve works");
    rest::check_cache(&fixture.world, &dut.device).await;
    fixture.cache.take();
    check_origin(fixture).await;
}

/// The origin has everything alone, and neither array has anything wrong.
async fn check_origin(fixture: &Rc<StackFixture>) {
    let (world, model) = (fixture.world.clone(), fixture.model.clone());
    let device = StackedOrigin::any_sector(fixture.array(Side::Origin));
    let plain = DeviceUnderTest { world, model, device, windows: fixture.windows().into() };
    plain.check_all("the plain origin").await;
    for side in SIDES {
        let array = fixture.array(side);
        let fast = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
        array.set_pace(BackgroundTask::Scrub, fast);
        while array.status().is_some_and(|status| status.regions_to_resync > 0) {
            fixture.world.handle().sleep(2_000_000).await;
        }
        array.scrub(ScrubRepair::Nothing).expect("none is running");
        array.ended(BackgroundTask::Scrub).await;
        let found = array.scrub_status().counts.mismatched_blocks;
        assert_eq!(found, 0, "the scrub of the {side:?} finds what does not match");
        array.stop().await.expect("a stop works");
    }
}
