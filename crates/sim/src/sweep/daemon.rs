//! The part of a fixture that every daemon has, whatever the daemon serves: a world, a registry, a model,
//! clients.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use voltier_block::{BlockDevice, Nanos, Prng, SectorRange};
use voltier_control::engine::Engine;
use voltier_control::protocol::{JobState, Request, Response};
use voltier_control::{ControlError, ControlResult, Identity, Registry, RegistryStore, Service};
use voltier_ring::{Executor, NoFiles};

use super::clients::Clients;
use crate::disk::SimDisk;
use crate::ledger::Ledger;
use crate::medium::Cut;
use crate::model::Model;
use crate::workload::DeviceUnderTest;
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

/// Everything that a crash leaves beside drives: the model, and the registry, which is replaced whole.
#[derive(Clone)]
pub(super) struct DaemonLeft {
    pub(super) model: Model,
    pub(super) registry: Option<Vec<u8>>,
    /// How many identities daemons have drawn.
    drawn: u64,
}

impl DaemonLeft {
    /// Nothing ever happened on a volume of so many sectors.
    pub(super) fn nothing(sectors: u64) -> Self {
        Self { model: Model::new(sectors), registry: None, drawn: 0 }
    }

    /// Daemons of another machine draw other identities.
    pub(super) fn is_of_another_machine(&mut self) {
        self.drawn = 1 << 32;
    }

    pub(super) fn registry(&self) -> Registry {
        registry(SimStore(Arc::new(Mutex::new(self.registry.clone()))))
    }

    /// Makes the registry one of drives that have no marks to know them by.
    pub(super) fn forget_identities(&mut self) {
        let store = SimStore(Arc::new(Mutex::new(self.registry.take())));
        let mut registry = registry(store.clone());
        for mut record in registry.volumes().to_vec() {
            record.origin_identity = None;
            record.cache.iter_mut().for_each(|cache| cache.identity = None);
            registry.put(record).expect("a simulated registry takes everything");
        }
        self.registry = store.bytes();
    }
}

fn registry(store: SimStore) -> Registry {
    Registry::load_from(Box::new(store)).expect("a registry is never half there")
}

/// One world with one daemon in it.
pub(super) struct DaemonFixture {
    executor: RefCell<Executor>,
    pub(super) world: World,
    pub(super) model: Rc<RefCell<Model>>,
    store: SimStore,
    pub(super) clients: RefCell<Option<Clients>>,
    /// Clients that come when there is something for them to use.
    pub(super) client_count: Cell<u64>,
    prng: RefCell<Prng>,
    drawn: Cell<u64>,
    /// Drives that are not there, by their numbers.
    absent: RefCell<BTreeSet<usize>>,
}

impl DaemonFixture {
    /// The world after a crash; nothing runs yet.
    pub(super) fn new(left: DaemonLeft, seed: u64, ledger: &Rc<Ledger>) -> Self {
        let executor = Executor::in_virtual_time(NoFiles);
        let world = World::in_ledger(&executor.handle(), seed, ledger);
        Self {
            executor: RefCell::new(executor),
            prng: RefCell::new(world.prng()),
            world,
            model: Rc::new(RefCell::new(left.model)),
            store: SimStore(Arc::new(Mutex::new(left.registry))),
            clients: RefCell::default(),
            client_count: Cell::new(0),
            drawn: Cell::new(left.drawn),
            absent: RefCell::default(),
        }
    }

    /// Takes these drives away; all others are there.
    pub(super) fn unplug(&self, drives: &[usize]) {
        self.absent.replace(drives.iter().copied().collect());
    }

    pub(super) fn is_there(&self, drive: usize) -> bool {
        !self.absent.borrow().contains(&drive)
    }

    /// The registry as it is recorded now.
    pub(super) fn registry(&self) -> Registry {
        registry(self.store.clone())
    }

    /// An identity that no daemon of this fixture has drawn. Runs of a seed draw the same ones.
    pub(super) fn draw_identity(&self) -> Identity {
        self.drawn.set(self.drawn.get() + 1);
        Identity((u128::from(self.drawn.get()) << 64 | 0xd4a3).to_le_bytes())
    }

    /// Everything that is there while nothing is under way.
    pub(super) fn left(&self) -> DaemonLeft {
        let (registry, drawn) = (self.store.bytes(), self.drawn.get());
        DaemonLeft { model: self.model.borrow().clone(), registry, drawn }
    }

    /// Everything that a crash at this moment leaves.
    pub(super) fn left_by(&self, cut: Cut) -> DaemonLeft {
        let mut left = self.left();
        left.model.crash(cut);
        left
    }

    pub(super) fn run<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> T {
        self.executor.borrow_mut().block_on(task)
    }

    /// Lets some time pass: whatever runs goes on.
    pub(super) fn pass(&self, time_ns: Nanos) {
        let handle = self.world.handle().clone();
        self.run(async move { handle.sleep(time_ns).await });
    }

    /// A step of the control plane begins or ends. A step takes time of its own, in which clients go
    /// on. A crash may fall between any two steps, also when no drive is at work.
    pub(super) fn step(&self) {
        self.world.event(Event::Completed, 0, "command", SectorRange::default());
        if self.clients.borrow().is_some() {
            let time_ns = self.prng.borrow_mut().below(900_000);
            self.pass(time_ns);
        }
    }

    /// A device of this world beside the model.
    pub(super) fn dut<D: BlockDevice>(
        &self,
        device: D,
        windows: Vec<SectorRange>,
    ) -> DeviceUnderTest<D> {
        DeviceUnderTest { world: self.world.clone(), model: self.model.clone(), device, windows }
    }

    /// Holds everything that clients use of a device to the model.
    pub(super) fn check<D: BlockDevice + 'static>(
        &self,
        dut: DeviceUnderTest<D>,
        when: &'static str,
    ) {
        self.run(async move { dut.check_all(when).await });
    }

    /// Sends the clients in.
    pub(super) fn start_clients<D: BlockDevice + 'static>(
        &self,
        dut: DeviceUnderTest<D>,
        count: u64,
    ) {
        self.clients.replace(Some(Clients::start(&Rc::new(dut), count)));
    }

    /// Lets the clients end what they are doing, and sends them home.
    pub(super) fn stop_clients(&self) {
        if let Some(clients) = self.clients.take() {
            self.run(clients.stop());
        }
    }

    /// Nothing may be left of a daemon that has stopped: no task, no request, once what nobody waits for
    /// has had this time to end.
    pub(super) fn check_for_leaks<'a>(
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

impl Drop for DaemonFixture {
    fn drop(&mut self) {
        self.world.close();
    }
}

/// Asks for something that must work, and waits until it is done.
pub(super) fn ask<E: Engine>(fixture: &DaemonFixture, service: &mut Service<E>, request: Request) {
    let shown = format!("{request:?}");
    match service.handle(request) {
        Response::Error { error } => panic!("{shown}: {error}"),
        Response::Job { job } => {
            finish_jobs(service);
            if let Response::Job { job } = service.handle(Request::Job { id: job.id }) {
                assert_eq!(job.state, JobState::Done, "{shown}");
            }
        }
        _ => {}
    }
    fixture.step();
}

/// Waits for work that takes long.
pub(super) fn finish_jobs<E: Engine>(service: &mut Service<E>) {
    while service.step_jobs() {}
}
