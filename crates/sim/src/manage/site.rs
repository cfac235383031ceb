//! What every life of a daemon in a walk has, whatever it serves: a world, a registry, a model, clients.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use voltier_block::{BlockDevice, Nanos, Prng, SectorRange};
use voltier_control::{ControlError, ControlResult, Registry, RegistryStore};
use voltier_ring::{Executor, NoFiles};

use super::clients::Crew;
use crate::disk::SimDisk;
use crate::ledger::Ledger;
use crate::medium::Cut;
use crate::model::Model;
use crate::workload::Bench;
use crate::world::{Event, World};

/// The bytes of a registry; a change is whole or not there.
#[derive(Clone, Debug)]
struct SimStore(Arc<Mutex<Option<Vec<u8>>>>);

impl SimStore {
    fn bytes(&self) -> Option<Vec<u8>> {
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

/// What a crash leaves beside drives: what they may hold, and the registry, which is replaced whole.
#[derive(Clone)]
pub(crate) struct SiteLeft {
    pub(crate) model: Model,
    pub(crate) registry: Option<Vec<u8>>,
}

impl SiteLeft {
    /// Nothing ever happened on a volume of so many sectors.
    pub(crate) fn nothing(sectors: u64) -> Self {
        Self { model: Model::new(sectors), registry: None }
    }

    pub(crate) fn registry(&self) -> Registry {
        registry(SimStore(Arc::new(Mutex::new(self.registry.clone()))))
    }
}

fn registry(store: SimStore) -> Registry {
    Registry::load_from(Box::new(store)).expect("a registry is never half there")
}

/// One world with one daemon in it.
pub(crate) struct Site {
    executor: RefCell<Executor>,
    pub(crate) world: World,
    pub(crate) model: Rc<RefCell<Model>>,
    store: SimStore,
    pub(crate) crew: RefCell<Option<Crew>>,
    /// Clients that come when there is something for them to use.
    pub(crate) crew_size: Cell<u64>,
    prng: RefCell<Prng>,
}

impl Site {
    /// The world after a crash; nothing runs yet.
    pub(crate) fn new(left: SiteLeft, seed: u64, ledger: &Rc<Ledger>) -> Self {
        let executor = Executor::in_virtual_time(NoFiles);
        let world = World::in_ledger(&executor.handle(), seed, ledger);
        Self {
            executor: RefCell::new(executor),
            prng: RefCell::new(world.prng()),
            world,
            model: Rc::new(RefCell::new(left.model)),
            store: SimStore(Arc::new(Mutex::new(left.registry))),
            crew: RefCell::default(),
            crew_size: Cell::new(0),
        }
    }

    /// The registry as it is recorded now.
    pub(crate) fn registry(&self) -> Registry {
        registry(self.store.clone())
    }

    /// What is there while nothing is under way.
    pub(crate) fn left(&self) -> SiteLeft {
        SiteLeft { model: self.model.borrow().clone(), registry: self.store.bytes() }
    }

    /// What a crash at this moment leaves.
    pub(crate) fn left_by(&self, cut: Cut) -> SiteLeft {
        let mut left = self.left();
        match cut {
            Cut::Power => left.model.power_cut(),
            Cut::Kill => left.model.kill(),
        }
        left
    }

    pub(crate) fn run<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> T {
        self.executor.borrow_mut().block_on(task)
    }

    /// Lets some time pass: whatever runs goes on.
    pub(crate) fn pass(&self, time_ns: Nanos) {
        let handle = self.world.handle().clone();
        self.run(async move { handle.sleep(time_ns).await });
    }

    /// A step of the control plane begins or ends: it takes time of its own, in which clients go
    /// on, and a crash may fall between any two, also when no drive is at work.
    pub(crate) fn step(&self) {
        self.world.event(Event::Completed, 0, "command", SectorRange::default());
        if self.crew.borrow().is_some() {
            let time_ns = self.prng.borrow_mut().below(900_000);
            self.pass(time_ns);
        }
    }

    /// A device of this world beside the model.
    pub(crate) fn bench<D: BlockDevice>(&self, device: D, windows: Vec<SectorRange>) -> Bench<D> {
        Bench { world: self.world.clone(), model: self.model.clone(), device, windows }
    }

    /// Holds everything that clients use of a device to the model.
    pub(crate) fn check<D: BlockDevice + 'static>(&self, bench: Bench<D>, when: &'static str) {
        self.run(async move { bench.check_all(when).await });
    }

    /// Sends the clients in.
    pub(crate) fn start_crew<D: BlockDevice + 'static>(&self, bench: Bench<D>, count: u64) {
        self.crew.replace(Some(Crew::start(&Rc::new(bench), count)));
    }

    /// Lets the clients end what they are doing, and sends them home.
    pub(crate) fn stop_crew(&self) {
        if let Some(crew) = self.crew.take() {
            self.run(crew.stop());
        }
    }

    /// Nothing may be left of a daemon that has stopped: no task, no request, once what nobody waits for
    /// has had this time to end.
    pub(crate) fn check_for_leaks<'a>(
        &self,
        last_ns: Nanos,
        disks: impl IntoIterator<Item = &'a SimDisk>,
    ) {
        self.pass(last_ns);
        assert_eq!(self.executor.borrow().task_count(), 0, "tasks left behind");
        let under_way: usize = disks.into_iter().map(SimDisk::writes_under_way).sum();
        assert_eq!(under_way, 0, "writes left behind");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.world.close();
    }
}
