//! A host takes a volume over from another one, which goes on for a while.
//!
//! ```text
//!   clients ──> volume A ──┬─> SSD of A                          host A (a world of its own)
//!                          └─> tie of epoch n ───┐
//!                                                ├──> image      the cluster (a world of its own)
//!                          ┌─> tie of epoch n+1 ─┘
//!   clients ──> volume B ──┴─> SSD of B, empty                   host B (a world of its own)
//! ```
//!
//! Host A serves a volume over an image of a cluster, and may have crashed before. At some event it is cut off from
//! the cluster, or its SSD hangs, or nothing is wrong with it at all. Host B breaks the lock: of what A had under way
//! each request is done in part or not at all, and nothing of A is taken any more. A does not know: it serves what it
//! has, acknowledges what fits in its log, and publishes what its disk lacks. Meanwhile B serves the image, crashes and
//! starts again. Then A gets to know, crashes, and comes back.
//!
//! - The image at the break of the lock is what the promises allow: a prefix of what A acknowledged in ordered mode,
//!   cut at a flush; all of it in modes that do not write back. The loss is no larger than all that A published, before
//!   and after, and than its bound.
//! - Nothing of A changes the image afterwards: what B reads and what nobody touched is as it was, or B's own.
//! - A serves nothing once it knows that its lock is gone, and is refused when it comes back.
//! - On A's SSD, before a copy of the image as it was, all that A acknowledged is there (what it flushed, if the power
//!   went).

mod checks;
mod fence;
mod history;
mod plan;
mod process;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{Lba, Nanos, Prng};
use voltier_ring::{Executor, JoinHandle, NoFiles, Signal, race};

use self::checks::Fallen;
use self::fence::{Image, Tied};
use self::history::History;
pub use self::plan::Plan;
use self::plan::TAKEOVER;
use self::process::{Owner, Process};
use crate::budget;
use crate::disk::SimDisk;
use crate::fault::FaultKind;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::workload::{Profile, UUID};
use crate::world::World;

/// Names the cache of the host that takes over.
const OTHER_UUID: [u8; 16] = *b"another's cache!";
/// Longest time until a host crashes that is to crash.
const LIFE_NS: [Nanos; 3] = [20_000_000, 500_000_000, 10_000_000_000];
/// Requests of each client of a host that knows that it has lost its lock.
const STEPS_OF_LOST: u64 = 6;
/// How often somebody looks whether clients have ended.
const LOOK_NS: Nanos = 100_000_000;

/// Runs a takeover.
///
/// # Panics
/// When a promise is broken.
pub(crate) fn run(plan: &Plan, profile: &Profile, ledger: &Rc<Ledger>) {
    budget::note_world();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let mut dice = Prng::new(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ TAKEOVER);
    let mut world = || World::in_ledger(&executor.handle(), dice.next_u64(), ledger);
    let (cluster, first, other) = (world(), world(), world());
    ledger.at("a takeover".to_owned(), None);
    let stage = Rc::new(Stage::new(plan, profile, (cluster, first, other), dice));
    executor.block_on(stage.clone().play());
    for world in [&stage.cluster, &stage.first, &stage.other] {
        world.unwatch();
        ledger.close(world.trace_hash(), 0);
    }
    let now = stage.cluster.handle().now();
    ledger.count(|counts| counts.virtual_ns += now);
}

/// All that there is.
struct Stage {
    plan: Plan,
    profile: Profile,
    cluster: World,
    first: World,
    other: World,
    image: Rc<Image>,
    ssd: Medium,
    dice: RefCell<Prng>,
    has_begun: Cell<bool>,
    begun: Signal,
    fallen: RefCell<Option<Fallen>>,
}

/// Waits for all of them; says when.
fn ended(world: &World, clients: Vec<JoinHandle<()>>) -> Rc<Cell<bool>> {
    let is_over: Rc<Cell<bool>> = Rc::default();
    let told = is_over.clone();
    drop(world.handle().spawn(async move {
        for client in clients {
            client.await;
        }
        told.set(true);
    }));
    is_over
}

async fn until_ended(world: &World, is_over: Rc<Cell<bool>>) {
    world
        .within("what clients do", async {
            while !is_over.get() {
                world.pass(LOOK_NS).await;
            }
        })
        .await;
}

impl Stage {
    fn new(
        plan: &Plan,
        profile: &Profile,
        (cluster, first, other): (World, World, World),
        dice: Prng,
    ) -> Self {
        let (ssd, origin) = profile.format();
        let image = Image::new(SimDisk::new(&cluster, &profile.origin, origin));
        Self {
            plan: plan.clone(),
            profile: profile.clone(),
            cluster,
            first,
            other,
            image,
            ssd,
            dice: RefCell::new(dice),
            has_begun: Cell::new(false),
            begun: Signal::new(),
            fallen: RefCell::default(),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.dice.borrow_mut().below(bound)
    }

    fn owner(&self, world: &World, uuid: [u8; 16], model: Model) -> Owner {
        Owner {
            world: world.clone(),
            profile: self.profile.clone(),
            mode: *self.dice.borrow_mut().pick(&self.profile.modes),
            uuid,
            model: Rc::new(RefCell::new(model)),
            history: Rc::new(RefCell::new(History::new())),
        }
    }

    async fn play(self: Rc<Self>) {
        let owner = self.owner(&self.first, UUID, self.profile.model());
        let ssd = SimDisk::new(&self.first, &self.profile.ssd, self.ssd.clone());
        let mut process = self.open(&owner, &ssd, Some(0)).await;
        for _ in 0..self.plan.crashes.0 {
            process = self.live_and_crash(&process, self.profile.steps / 2).await;
        }
        let clients = self.clients_until_takeover(&process).await;
        let fallen = self.fallen.take().expect("the lock is broken");
        checks::at_the_break(&self.plan, &process, &fallen, self.plan.crashes.0 > 0);
        let later = ended(&self.first, process.clients(4 + self.profile.steps / 4));
        let other = self.first.handle().spawn(self.clone().serve_elsewhere(fallen.image.clone()));
        let tie = process.tie.clone().expect("a tie");
        self.first.within("news of the lock", tie.until_lost()).await;
        self.first.tell(|| "the first host knows".to_owned());
        until_ended(&self.first, clients).await;
        until_ended(&self.first, later).await;
        let lost = ended(&self.first, process.clients(STEPS_OF_LOST));
        until_ended(&self.first, lost).await;
        checks::at_the_end(&self.plan, &process, &fallen);
        self.come_back(&process, &fallen).await;
        self.first.within("the other host", other).await;
    }

    async fn open(&self, owner: &Owner, ssd: &SimDisk, generation: Option<u64>) -> Rc<Process> {
        let tie = self.image.tie(owner.world.handle());
        let opened = owner.open(ssd, Tied::image(&tie), Some(tie), generation).await;
        opened.unwrap_or_else(|error| panic!("a cache does not open: {error}"))
    }

    /// Has a host serve, crash, and start again.
    async fn live_and_crash(&self, process: &Rc<Process>, steps: u64) -> Rc<Process> {
        let world = &process.owner.world;
        let clients = ended(world, process.clients(steps));
        let life_ns = *self.dice.borrow_mut().pick(&LIFE_NS);
        let life_ns = self.below(life_ns);
        let _ = race(world.pass(life_ns), until_ended(world, clients)).await;
        let cut = Cut::draw(&mut self.dice.borrow_mut());
        let (ssd, owner) = self.crash(process, cut);
        self.image.break_lock(self.plan.image_cut, &mut self.dice.borrow_mut());
        let ssd = SimDisk::new(world, &self.profile.ssd, ssd);
        let process = self.open(&owner, &ssd, Some(process.generation)).await;
        process.check_all("after a crash").await;
        process
    }

    /// Ends a process; what is on its SSD, and what the volume may be.
    fn crash(&self, process: &Process, cut: Cut) -> (Medium, Owner) {
        let Process { owner, ssd, .. } = process;
        owner.world.ledger().count_crash(cut);
        owner.world.tell(|| format!("the host crashes: {cut:?}"));
        process.kill();
        let ssd = ssd.after(cut, &mut self.dice.borrow_mut());
        let mut model = owner.model.borrow().clone();
        match (cut, self.plan.image_cut) {
            (Cut::Kill, Cut::Kill) => model.kill(),
            (Cut::Power, Cut::Power) => model.power_cut(),
            _ => model.power_cut_in_part(),
        }
        owner.history.borrow_mut().cut(cut == Cut::Power);
        (ssd, Owner { model: Rc::new(RefCell::new(model)), ..owner.clone() })
    }

    /// Clients work until the lock is broken, and go on.
    async fn clients_until_takeover(self: &Rc<Self>, process: &Rc<Process>) -> Rc<Cell<bool>> {
        let (stage, of) = (Rc::downgrade(self), Rc::downgrade(process));
        let watched = if self.plan.is_event_of_ssd { &self.first } else { &self.cluster };
        let due = watched.events() + self.plan.event;
        watched.watch(move |event| {
            let (Some(stage), Some(process)) = (stage.upgrade(), of.upgrade()) else { return };
            if event >= due && !stage.has_begun.get() {
                stage.begin(&process);
            }
        });
        let clients = ended(&self.first, process.clients(self.profile.steps));
        let begun = self.begun.until(|| self.has_begun.get());
        let _ = race(begun, until_ended(&self.first, clients.clone())).await;
        watched.unwatch();
        if !self.has_begun.get() {
            self.begin(process);
        }
        if self.fallen.borrow().is_none() {
            self.first.pass(self.plan.cut_off_ns).await;
            self.break_lock(process);
        }
        clients
    }

    /// The first host is cut off or hangs; if neither, its lock is broken at once.
    fn begin(&self, process: &Process) {
        let Plan { cut_off_ns, stays_cut_off_ns, hang_ns, .. } = self.plan;
        process.excuse();
        self.has_begun.set(true);
        self.begun.notify();
        if hang_ns > 0 {
            process.ssd.hang(hang_ns);
        }
        let cut_off_ns_all = cut_off_ns + stays_cut_off_ns;
        if cut_off_ns_all > 0 {
            self.cluster.fault(FaultKind::CutOff);
            self.first.tell(|| format!("fault: cut off for {} ms", cut_off_ns_all / 1_000_000));
            process.tie.as_ref().expect("a tie").cut_off(cut_off_ns_all);
        }
        if cut_off_ns == 0 {
            self.break_lock(process);
        }
    }

    fn break_lock(&self, process: &Process) {
        let (at_ns, unshipped) = (self.first.handle().now(), process.unshipped());
        let image = self.image.break_lock(self.plan.image_cut, &mut self.dice.borrow_mut());
        self.cluster.fault(FaultKind::Takeover);
        self.first.tell(|| format!("fault: the lock is broken; published: {unshipped:?}"));
        self.fallen.replace(Some(Fallen { image, at_ns, unshipped }));
    }

    /// The other host serves the image.
    async fn serve_elsewhere(self: Rc<Self>, image: Medium) {
        let model = checks::model_of(&self.profile, &image);
        let owner = self.owner(&self.other, OTHER_UUID, model);
        let ssd = Medium::zeroed(self.profile.ssd.bytes);
        let ssd = SimDisk::new(&self.other, &self.profile.ssd, ssd);
        let mut process = self.open(&owner, &ssd, None).await;
        process.check_all("on the other host").await;
        for _ in 0..self.plan.crashes.1 {
            process = self.live_and_crash(&process, self.profile.steps / 2).await;
        }
        let clients = ended(&self.other, process.clients(4 + self.profile.steps / 2));
        until_ended(&self.other, clients).await;
        process.check_all("on the other host").await;
        let drained = self.other.within("a drain", process.volume.drain()).await;
        drained.unwrap_or_else(|error| panic!("the other host does not write back: {error}"));
        let now = self.image.disk.medium();
        checks::other_wrote_all(&process, &now);
        checks::untouched_is_as_it_was(&process, &image, &now);
        process.kill();
    }

    /// The first host crashes, and starts again: before the image, and before a copy of it as it was.
    async fn come_back(&self, process: &Process, fallen: &Fallen) {
        let (ssd, owner) = self.crash(process, self.plan.ssd_cut);
        let disk = || SimDisk::new(&self.first, &self.profile.ssd, ssd.clone());
        let generation = Some(process.generation);
        self.start_without_lock(process, &owner, &disk()).await;
        let copy = SimDisk::new(&self.first, &self.profile.origin, fallen.image.clone());
        let opened = owner.open(&disk(), Tied::own(copy.clone()), None, generation).await;
        let back = opened.unwrap_or_else(|error| panic!("the SSD does not come back: {error}"));
        back.check_all("on the SSD of the first host").await;
        let drained = self.first.within("a drain", back.volume.drain()).await;
        drained.unwrap_or_else(|error| panic!("the first host does not write back: {error}"));
        let medium = copy.medium();
        let lacks = owner.history.borrow().lacks(&|at: Lba| checks::head_at(&medium, at));
        let may_lack = !owner.mode.writes_back() && self.plan.image_cut == Cut::Power;
        let found = lacks.oldest();
        assert!(may_lack || found.is_none(), "acknowledged, and not on the SSD: {found:?}");
        back.kill();
    }

    /// A start with the drive that has lost its lock is refused, or serves nothing.
    async fn start_without_lock(&self, process: &Process, owner: &Owner, ssd: &SimDisk) {
        let tie = process.tie.as_ref().expect("a tie").again();
        let owner = owner.apart();
        let opened =
            owner.open(ssd, Tied::image(&tie), Some(tie.clone()), Some(process.generation));
        let Ok(lost) = self.first.within("a start without the lock", opened).await else {
            return self.first.ledger().count(|counts| counts.refused += 1);
        };
        lost.excuse();
        let early = ended(&self.first, lost.clients(STEPS_OF_LOST));
        self.first.within("news of the lock", tie.until_lost()).await;
        until_ended(&self.first, early).await;
        let late = ended(&self.first, lost.clients(STEPS_OF_LOST));
        until_ended(&self.first, late).await;
        lost.kill();
    }
}
