//! A cache over arrays: its origin an array with parity, its SSD a mirror. Whole stripes are destaged,
//! members go while it serves, the power does at any event; then both arrays are assembled, without
//! members that they can lose, the cache is opened on them, and everything is held to the model. In the
//! end the origin has it all alone, and a scrub finds nothing wrong with either array.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{
    Array, AssembleOptions, BackgroundTask, Consistency, CreateOptions, Layout, Level, MergePolicy,
    Pace, Priority, ScrubRepair,
};
use voltier_block::{BlockDevice, KIB, MIB, Nanos, Prng};
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenError, OpenOptions};
use voltier_ring::{Executor, NoFiles};

use crate::arrays::merge::merge_of;
use crate::arrays::setup::uuid;
use crate::budget;
use crate::disk::{DiskSpec, SimDisk};
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::origin::FittedDevice;
use crate::rest;
use crate::workload::{Bench, Profile, UUID, run_clients};
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
    /// What a seed draws, if it is one of these.
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

/// What is left of a life.
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
struct Tower {
    world: World,
    stack: Rc<Stack>,
    disks: [Vec<SimDisk>; 2],
    arrays: [RefCell<Option<Array<SimDisk>>>; 2],
    cache: RefCell<Option<StackedCache>>,
    model: Rc<RefCell<Model>>,
    generation: Cell<u64>,
    is_dissolving: Cell<bool>,
    /// Members that are given to the next start.
    given: [u64; 2],
}

const SIDES: [Side; 2] = [Side::Origin, Side::Ssd];

impl Tower {
    fn new(world: &World, stack: &Rc<Stack>, left: Left, given: [u64; 2]) -> Rc<Self> {
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
        let kind = match cut {
            Cut::Power => {
                model.power_cut();
                FaultKind::PowerCut
            }
            Cut::Kill => {
                model.kill();
                FaultKind::DaemonKill
            }
        };
        self.world.ledger().fault(kind);
        self.world.ledger().count(|counts| counts.crash_points += 1);
        let was_whole = SIDES.map(|side| {
            let members = self.stack.shape(side).members;
            let array = self.arrays[side as usize].borrow();
            array.as_ref().is_some_and(|it| (0..members).all(|member| it.is_online(member)))
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
            let given = (0..self.disks[own].len()).filter(|at| self.given[own] >> at & 1 == 1);
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
    async fn open(&self) -> Option<Rc<Bench<StackedCache>>> {
        let profile = &self.stack.profile;
        let options = OpenOptions {
            uuid: Some(UUID),
            generation_min: self.generation.get(),
            settings: profile.settings(profile.modes[0]),
            seed: 1,
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
        Some(Rc::new(Bench { world, model, device, windows: self.windows().into() }))
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
        let is_online = |other: &usize| array.is_online(*other) && !disks[*other].is_gone();
        let group = |other: &usize| shape.group_of(*other) == shape.group_of(member);
        let lost = (0..shape.members).filter(group).filter(|it| !is_online(it)).count();
        let is_settled = array.status().is_some_and(|status| status.regions_in_doubt == 0);
        // Without a journal what is being written goes with any member.
        let has_journal = shape.consistency == Consistency::Journal;
        if lost >= shape.parities || !is_online(&member) || !is_settled || !has_journal {
            return;
        }
        self.world.tell(|| format!("care: member {member} of the {side:?} goes"));
        if dice.one_in(2) {
            let excused = self.world.is_excused();
            disks[member].lose();
            // Nobody may see an error of it.
            self.world.excuse(excused);
        } else {
            array.fail(member).expect("one may go");
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
    let tower = Tower::new(&world, &stack, left, [u64::MAX; 2]);
    executor.block_on(record(tower.clone(), seed, only));
    finish(world, executor, tower);
}

fn finish(world: World, mut executor: Executor, tower: Rc<Tower>) {
    world.unwatch();
    tower.end();
    world.close();
    rest::check_tasks(&world, &mut executor);
}

async fn record(tower: Rc<Tower>, seed: u64, only: Option<u64>) {
    tower.make().await;
    let bench = tower.open().await.expect("a new cache opens");
    let profile = &tower.stack.profile;
    run_clients(&bench, profile, profile.steps / 2).await;
    watch(&tower, seed, only);
    serve(&tower, &bench, &mut tower.world.prng()).await;
    bench.check_all("at the end of the recorded life").await;
    tower.world.unwatch();
    take_apart(&tower, &bench).await;
}

/// Clients at work while members go.
async fn serve(tower: &Rc<Tower>, bench: &Rc<Bench<StackedCache>>, dice: &mut Prng) {
    let (handle, profile) = (tower.world.handle(), &tower.stack.profile);
    let (beside, mut own_dice) = (tower.clone(), Prng::new(dice.next_u64()));
    let operator = handle.spawn(async move {
        for _ in 0..own_dice.below(3) {
            beside.world.handle().sleep(own_dice.below(30_000_000)).await;
            beside.lose_one(&mut own_dice);
        }
    });
    run_clients(bench, profile, profile.steps).await;
    operator.await;
}

/// Sets the crash points of the recorded life.
fn watch(tower: &Rc<Tower>, seed: u64, only: Option<u64>) {
    let (weak, ledger) = (Rc::downgrade(tower), tower.world.ledger().clone());
    tower.world.watch(move |event| {
        let Some(tower) = weak.upgrade() else { return };
        let mut prng = Prng::new(seed.wrapping_mul(0x1_0000_01b3) ^ event);
        if !prng.one_in(tower.stack.one_in) || only.is_some_and(|only| only != event) {
            return;
        }
        let cut = if prng.one_in(4) { Cut::Kill } else { Cut::Power };
        let contents = tower.model.borrow().contents();
        ledger.at(format!("seed {seed}, event {event}, {cut:?}"), Some(event));
        ledger.count(|counts| counts.array_points += 1);
        let left = tower.left_by(cut, &mut prng);
        verify(&tower.stack, left, prng, &ledger, 0);
        tower.model.borrow().forget_contents_since(contents);
        ledger.at(format!("seed {seed}, recording"), None);
    });
}

/// The members of each array that a start is given: some stay away where all were there.
fn pick_members(stack: &Stack, left: &Left, prng: &mut Prng) -> [u64; 2] {
    SIDES.map(|side| {
        let shape = stack.shape(side);
        // What is in doubt goes with any member, where there is no journal.
        let may_lose = left.was_whole[side as usize] && shape.consistency == Consistency::Journal;
        let mut given = (1 << shape.members) - 1;
        if may_lose && prng.one_in(2) {
            given &= !(1 << prng.below(shape.members as u64));
        }
        if may_lose && shape.parities > 1 && prng.one_in(2) {
            given &= !(1 << prng.below(shape.members as u64));
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
    let tower = Tower::new(&world, stack, left, given);
    let next: Rc<RefCell<Option<Left>>> = Rc::default();
    if depth < DEPTH_MAX && prng.one_in(2) {
        let (weak, next) = (Rc::downgrade(&tower), next.clone());
        let dice = RefCell::new(Prng::new(prng.next_u64()));
        let cut_at = prng.below(NEXT_CUT_EVENTS);
        world.watch(move |event| {
            let Some(tower) = weak.upgrade().filter(|_| event == cut_at) else { return };
            let mut dice = dice.borrow_mut();
            let cut = if dice.one_in(4) { Cut::Kill } else { Cut::Power };
            next.replace(Some(tower.left_by(cut, &mut dice)));
        });
    }
    executor.block_on(recover(tower.clone(), Prng::new(prng.next_u64())));
    finish(world, executor, tower);
    if let Some(left) = next.take() {
        verify(stack, left, prng, ledger, depth + 1);
    }
}

/// The life after a cut.
async fn recover(tower: Rc<Tower>, mut dice: Prng) {
    tower.assemble().await;
    let Some(bench) = tower.open().await else { return check_origin(&tower).await };
    bench.check_all("after the crash").await;
    if dice.one_in(2) {
        serve(&tower, &bench, &mut dice).await;
        bench.check_all("later").await;
    }
    rest::check_checksums(&tower.world, &bench.device);
    if dice.one_in(2) {
        take_apart(&tower, &bench).await;
    }
}

/// Everything goes to the origin, and the cache goes away.
async fn take_apart(tower: &Rc<Tower>, bench: &Rc<Bench<StackedCache>>) {
    let settings = voltier_cache::Settings { mode: Mode::PassThrough, ..bench.device.settings() };
    bench.device.configure(settings).expect("a mode switch works");
    bench.device.drain().await.expect("a drain works");
    assert_eq!(bench.device.status().lines_dirty, 0, "dirty lines after a drain");
    tower.is_dissolving.set(true);
    bench.device.dissolve().await.expect("a dissolve works");
    rest::check_cache(&tower.world, &bench.device).await;
    tower.cache.take();
    check_origin(tower).await;
}

/// The origin has everything alone, and neither array has anything wrong.
async fn check_origin(tower: &Rc<Tower>) {
    let (world, model) = (tower.world.clone(), tower.model.clone());
    let device = StackedOrigin::any_sector(tower.array(Side::Origin));
    let plain = Bench { world, model, device, windows: tower.windows().into() };
    plain.check_all("the plain origin").await;
    for side in SIDES {
        let array = tower.array(side);
        let fast = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
        array.set_pace(BackgroundTask::Scrub, fast);
        while array.status().is_some_and(|status| status.regions_in_doubt > 0) {
            tower.world.handle().sleep(2_000_000).await;
        }
        array.scrub(ScrubRepair::Nothing).expect("none is running");
        array.ended(BackgroundTask::Scrub).await;
        let found = array.scrub_status().mismatched_blocks;
        assert_eq!(found, 0, "the scrub of the {side:?} finds what does not match");
        array.stop().await.expect("a stop works");
    }
}
