//! One life of a daemon in a world of its own: two drives, a registry, the service over both.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use voltier_block::{BlockDevice, KIB, MIB, Nanos, Prng, SectorRange};
use voltier_control::engine::Drain;
use voltier_control::safety::Machine;
use voltier_control::{ControlError, ControlResult, Registry, RegistryStore, Service};
use voltier_ring::{Executor, NoFiles};
use voltier_volume::Volume;

use super::clients::Crew;
use super::engine::SimEngine;
use crate::disk::{DiskSpec, SimDisk};
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::origin::SimDrive;
use crate::workload::Bench;
use crate::world::{Event, World};

/// Longest single check, in sectors.
const CHECK_SECTORS: u64 = 512;

/// Longer than any request of a drive takes.
const LAST_FLUSH_NS: Nanos = 50_000_000;

/// What the two drives are.
#[derive(Clone, Debug)]
pub struct Drives {
    /// The origin.
    pub hdd: DiskSpec,
    /// The cache's.
    pub ssd: DiskSpec,
}

impl Drives {
    /// The smallest cache before an origin with two regions of intent marks, with blocks of the
    /// given bytes.
    pub fn small(hdd_block_bytes: u32, ssd_block_bytes: u32) -> Self {
        // An odd end, where the blocks allow one.
        let tail = if hdd_block_bytes == 512 { 7 * 512 } else { 0 };
        let spec = |number, bytes, block_bytes, latency_ns| DiskSpec {
            number,
            bytes,
            block_bytes,
            latency_ns,
            model: None,
            lies: false,
            zeroing_discards: false,
            stripe: None,
        };
        Self {
            hdd: spec(2, 17 * MIB + tail, hdd_block_bytes, 100_000),
            ssd: spec(1, MIB + (4 + 20) * 256 * KIB, ssd_block_bytes, 20_000),
        }
    }

    /// A seed's: four in a row have all pairs of block sizes, and one in three drives of one size,
    /// so that one can be taken for the other.
    pub fn of_seed(seed: u64) -> Self {
        let block_bytes = |bit: u64| if seed & bit == 0 { 512 } else { 4096 };
        let drives = Self::small(block_bytes(1), block_bytes(2));
        if seed % 3 == 2 { drives.alike() } else { drives }
    }

    /// The same with an SSD as large as the origin: the two can be taken for each other.
    pub fn alike(self) -> Self {
        let bytes = self.hdd.bytes / 4096 * 4096;
        Self { hdd: DiskSpec { bytes, ..self.hdd }, ssd: DiskSpec { bytes, ..self.ssd } }
    }

    /// The stretches that clients use: the begin, both sides of the boundary of two regions of
    /// intent marks, and the end.
    pub(super) fn windows(&self) -> [SectorRange; 3] {
        [0, 16 * MIB - 128 * KIB, self.hdd.bytes - 256 * KIB]
            .map(|at| SectorRange::from_bytes(at, 256 * KIB))
    }
}

/// What a crash leaves: the drives, what they may hold, and the registry, which is replaced whole.
#[derive(Clone)]
pub(super) struct Left {
    pub(super) hdd: Medium,
    pub(super) ssd: Medium,
    pub(super) model: Model,
    pub(super) registry: Option<Vec<u8>>,
}

impl Left {
    /// A machine on which nothing ever happened.
    pub(super) fn nothing(drives: &Drives) -> Self {
        Self {
            hdd: Medium::zeroed(drives.hdd.bytes),
            ssd: Medium::zeroed(drives.ssd.bytes),
            model: Model::new(drives.hdd.bytes / 512),
            registry: None,
        }
    }

    pub(super) fn registry(&self) -> Registry {
        let store = SimStore::of(self.registry.clone());
        Registry::load_from(Box::new(store)).expect("a registry is never half there")
    }
}

/// The bytes of a registry; a change is whole or not there.
#[derive(Clone, Debug)]
pub(crate) struct SimStore(Arc<Mutex<Option<Vec<u8>>>>);

impl SimStore {
    pub(crate) fn of(bytes: Option<Vec<u8>>) -> Self {
        Self(Arc::new(Mutex::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RegistryStore for SimStore {
    fn read(&self) -> ControlResult<Option<Vec<u8>>> {
        Ok(self.bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> ControlResult<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes.to_vec());
        Ok(())
    }

    fn refusal(&self, reason: &str) -> ControlError {
        ControlError::failed(format!("refusing the registry: {reason}"))
    }
}

/// One world with one daemon in it.
pub(super) struct Bay {
    executor: RefCell<Executor>,
    pub(super) world: World,
    pub(super) drives: Drives,
    pub(super) hdd: SimDisk,
    pub(super) ssd: SimDisk,
    /// Each drive is where the other one was.
    pub(super) swapped: Cell<bool>,
    pub(super) model: Rc<RefCell<Model>>,
    store: SimStore,
    pub(super) volume: RefCell<Option<Volume<SimDrive>>>,
    pub(super) drain: Rc<RefCell<Drain>>,
    pub(super) crew: RefCell<Option<Crew>>,
    /// Clients that come when a door opens.
    pub(super) crew_size: Cell<u64>,
    prng: RefCell<Prng>,
}

impl Bay {
    /// The world after a crash; nothing runs yet.
    pub(super) fn new(drives: &Drives, left: Left, seed: u64, ledger: &Rc<Ledger>) -> Rc<Self> {
        let executor = Executor::in_virtual_time(NoFiles);
        let world = World::in_ledger(&executor.handle(), seed, ledger);
        let prng = world.prng();
        Rc::new(Self {
            executor: RefCell::new(executor),
            hdd: SimDisk::new(&world, &drives.hdd, left.hdd),
            ssd: SimDisk::new(&world, &drives.ssd, left.ssd),
            swapped: Cell::new(false),
            world,
            drives: drives.clone(),
            model: Rc::new(RefCell::new(left.model)),
            store: SimStore::of(left.registry),
            volume: RefCell::new(None),
            drain: Rc::new(RefCell::new(Drain::Done)),
            crew: RefCell::new(None),
            crew_size: Cell::new(0),
            prng: RefCell::new(prng),
        })
    }

    /// A daemon on this world's registry and drives; nothing is open until it is started.
    pub(super) fn service(self: &Rc<Self>) -> Service<SimEngine> {
        Service::new(SimEngine(self.clone()), self.registry(), Machine::real())
    }

    /// The registry as it is recorded now.
    pub(super) fn registry(&self) -> Registry {
        Registry::load_from(Box::new(self.store.clone())).expect("a registry is never half there")
    }

    /// What a crash at this moment leaves.
    pub(super) fn left_by(&self, cut: Cut, prng: &mut Prng) -> Left {
        let mut model = self.model.borrow().clone();
        match cut {
            Cut::Power => model.power_cut(),
            Cut::Kill => model.kill(),
        }
        let (ssd, hdd) = (self.ssd.after(cut, prng), self.hdd.after(cut, prng));
        Left { hdd, ssd, model, registry: self.store.bytes() }
    }

    /// What is there while nothing is under way.
    pub(super) fn left(&self) -> Left {
        let model = self.model.borrow().clone();
        let (hdd, ssd) = (self.hdd.medium(), self.ssd.medium());
        Left { hdd, ssd, model, registry: self.store.bytes() }
    }

    pub(super) fn run<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> T {
        self.executor.borrow_mut().block_on(task)
    }

    /// Lets some time pass: whatever runs goes on.
    pub(super) fn pass(&self, time_ns: Nanos) {
        let handle = self.world.handle().clone();
        self.run(async move { handle.sleep(time_ns).await });
    }

    /// A step of the control plane begins or ends: it takes time of its own, in which clients go
    /// on, and a crash may fall between any two, also when no drive is at work.
    pub(super) fn step(&self) {
        self.world.event(Event::Completed, 0, "command", SectorRange::default());
        if self.crew.borrow().is_some() {
            let time_ns = self.prng.borrow_mut().below(900_000);
            self.pass(time_ns);
        }
    }

    /// The open volume beside its model.
    pub(super) fn bench(&self) -> Bench<Volume<SimDrive>> {
        let volume = self.volume.borrow().clone().expect("the volume is open");
        self.bench_of(volume)
    }

    fn bench_of<D: BlockDevice>(&self, device: D) -> Bench<D> {
        let (world, model) = (self.world.clone(), self.model.clone());
        Bench { world, model, device, windows: self.drives.windows() }
    }

    /// Holds everything that clients use to the model: through the volume, or, when there is none,
    /// on the plain origin.
    pub(super) fn check_all(&self, when: &'static str) {
        if self.volume.borrow().is_some() {
            let bench = self.bench();
            self.run(async move { check_windows(&bench, when).await });
        } else {
            let bench = self.bench_of(SimDrive::any_sector(self.hdd.clone()));
            self.run(async move { check_windows(&bench, when).await });
        }
    }

    /// Sends the clients in.
    pub(super) fn start_crew(&self, count: u64) {
        let crew = Crew::start(&Rc::new(self.bench()), count);
        self.crew.replace(Some(crew));
    }

    /// Lets the clients end what they are doing, and sends them home.
    pub(super) fn stop_crew(&self) {
        if let Some(crew) = self.crew.take() {
            self.run(crew.stop());
        }
    }

    /// Nothing may be left of a daemon that has stopped: no task, no request.
    pub(super) fn check_for_leaks(&self) {
        assert!(self.volume.borrow().is_none(), "a volume is still open");
        // A flush that nobody waits for may be on its way: it is given the time to end.
        self.pass(LAST_FLUSH_NS);
        assert_eq!(self.executor.borrow().task_count(), 0, "tasks left behind");
        let under_way = self.hdd.writes_under_way() + self.ssd.writes_under_way();
        assert_eq!(under_way, 0, "writes left behind");
    }
}

impl Drop for Bay {
    fn drop(&mut self) {
        self.world.close();
    }
}

async fn check_windows<D: BlockDevice>(bench: &Bench<D>, when: &str) {
    for window in bench.windows {
        for piece in window.split_at_multiples(CHECK_SECTORS) {
            bench.check(piece, when).await;
        }
    }
}
