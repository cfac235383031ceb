//! The cores, and what is open on them.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use voltier_block::Nanos;
use voltier_control::engine::Waker;
use voltier_control::safety::{Machine, Promises, Room};
use voltier_control::{ArrayName, ControlError, ControlResult, DeviceSpec, Memory, VolumeName};
use voltier_export::nbd::{Budget, NbdLimits};
use voltier_ring::{Core, Domain, Handle};

use crate::call::Way;
use crate::exports::keeping::Keeping;
use crate::fault::{self, CORE_THREAD, Fault};
use crate::homes::Homes;
use crate::table::{self, OpenArray};
use crate::volumes::{DeviceNames, Resident, resident};

/// For how long a core looks for requests before it sleeps, in microseconds, if nothing else is asked for: longer
/// than a client takes from an answer to its next request, wake-ups in a virtual machine included.
pub const BUSY_POLL_US: u16 = 100;

/// The cores of this process, and the volumes and arrays on them.
pub struct CoreEngine {
    pub(crate) homes: Homes,
    /// The home of the next volume or array: they are dealt out in turn.
    pub(crate) next_core: AtomicUsize,
    pub(crate) waker: OnceLock<Waker>,
    /// The memory and connections that all NBD clients share.
    pub(crate) budget: Arc<Budget>,
    /// The memory that volumes and arrays were promised.
    pub(crate) promises: Arc<Promises>,
    /// The ways to the cores, by number.
    pub(crate) ways: Vec<Way>,
    pub(crate) cores: Vec<Core>,
    pub(crate) machine: Machine,
    /// What lets files outlive the daemon.
    pub(crate) keeping: OnceLock<Arc<Keeping>>,
}

impl CoreEngine {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the kernel has no io_uring or no threads for us.
    pub fn start(cores: usize) -> ControlResult<Self> {
        fault::end_with_a_core();
        let cores = (0..cores.max(1))
            .map(|number| {
                Core::start(&format!("{CORE_THREAD}{number}")).map_err(|error| {
                    ControlError::failed(format!(
                        "starting core {number}: {error}; Voltier needs io_uring: \
                         see `sysctl kernel.io_uring_disabled` and `ulimit -l`"
                    ))
                })
            })
            .collect::<ControlResult<Vec<Core>>>()?;
        // In units of as many bytes; a kernel that does not say gets the smallest pool.
        let memory = rustix::system::sysinfo();
        let memory_bytes = memory.totalram as u64 * u64::from(memory.mem_unit);
        let budget = Budget::new(NbdLimits::for_machine(memory_bytes));
        let ways = cores.iter().map(|core| Way::to(core.remote())).collect();
        let (homes, next_core, waker) = (Homes::new(), AtomicUsize::new(0), OnceLock::new());
        let machine = Machine::real();
        let promises = Promises::new(&machine);
        let keeping = OnceLock::new();
        Ok(Self { homes, next_core, waker, budget, promises, ways, cores, machine, keeping })
    }

    /// Has the threads look for requests for so long before they sleep: see [`Handle::set_busy_poll_ns`].
    ///
    /// [`Handle::set_busy_poll_ns`]: voltier_ring::Handle::set_busy_poll_ns
    #[must_use]
    pub fn with_busy_poll(self, time: Duration) -> Self {
        for core in &self.cores {
            core.remote().run(move |handle| handle.set_busy_poll_ns(time.as_nanos() as Nanos));
        }
        self
    }

    /// Lets files outlive a daemon that is killed: the keeper of the state folder has them meanwhile, and waits for
    /// the next daemon so many seconds. The folder must be locked by this process.
    #[must_use]
    pub fn with_keeper(self, state: &Path, patience_s: u16) -> Self {
        self.keeping.get_or_init(|| Keeping::begin(state, patience_s));
        self
    }

    /// The memory that is left, after a look whether so many of these devices can be opened.
    pub(crate) fn room_for<'a>(
        &self,
        devices: impl Iterator<Item = &'a DeviceSpec>,
    ) -> ControlResult<Memory> {
        let room = Room::now(&self.machine);
        room.has_descriptors(devices.filter(|device| device.is_external()).count())?;
        Ok(Memory::new(&self.promises, room))
    }

    /// The core that is next.
    pub(crate) fn deal(&self) -> usize {
        self.next_core.fetch_add(1, Ordering::Relaxed) % self.cores.len()
    }

    /// The core of an array, if the device is one.
    pub(crate) fn core_of(&self, device: Option<&DeviceSpec>) -> Option<usize> {
        let name = device.and_then(DeviceSpec::array)?;
        self.homes.find_array(name).map(|home| home.core)
    }

    /// The way to a core for tasks of a new failure domain, and whoever is told when the domain fails.
    pub(crate) fn new_home(&self, core: usize) -> (Way, Arc<Fault>) {
        (self.ways[core].within(Domain::fresh()), Fault::new(self.waker()))
    }

    pub(crate) fn waker(&self) -> Option<Waker> {
        self.waker.get().cloned()
    }

    /// Runs a task with an open volume on its core, and waits for it as long as a device may take.
    pub(crate) fn call_volume<T: Send + 'static, F: Future<Output = ControlResult<T>> + 'static>(
        &self,
        name: &VolumeName,
        task: impl FnOnce(Handle, Rc<Resident>, DeviceNames) -> F + Send + 'static,
    ) -> ControlResult<T> {
        let (volume, home) = (name.clone(), self.homes.volume(name)?);
        let devices = home.devices.get().clone();
        home.way.call(move |handle| async move { task(handle, resident(&volume)?, devices).await })
    }

    /// Asks an open volume for what it knows by itself.
    pub(crate) fn ask_volume<T: Send + 'static>(
        &self,
        name: &VolumeName,
        ask: impl FnOnce(&Resident) -> ControlResult<T> + Send + 'static,
    ) -> ControlResult<T> {
        let volume = name.clone();
        self.homes.volume(name)?.way.ask(move |_| async move { ask(&*resident(&volume)?) })
    }

    /// Runs a task with an open array on its core, and waits for it as long as a device may take.
    pub(crate) fn call_array<T: Send + 'static, F: Future<Output = ControlResult<T>> + 'static>(
        &self,
        name: &ArrayName,
        task: impl FnOnce(Handle, Rc<OpenArray>) -> F + Send + 'static,
    ) -> ControlResult<T> {
        let array = name.clone();
        let task = move |handle| async move { task(handle, table::find(&array)?).await };
        self.homes.array(name)?.way.call(task)
    }

    /// The same of a task that waits for no device: the answer comes soon.
    pub(crate) fn ask_array<T: Send + 'static, F: Future<Output = ControlResult<T>> + 'static>(
        &self,
        name: &ArrayName,
        task: impl FnOnce(Handle, Rc<OpenArray>) -> F + Send + 'static,
    ) -> ControlResult<T> {
        let array = name.clone();
        let task = move |handle| async move { task(handle, table::find(&array)?).await };
        self.homes.array(name)?.way.ask(task)
    }
}
