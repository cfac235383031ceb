//! The engine over the data path: one thread per core, every volume at home on one of them.
//!
//! ```text
//! control thread                    core thread
//! CoreEngine  -- Remote::call -->   volumes: the volumes of this core, their caches and NBD servers
//!     ^------------- answer --------'
//! ```
//!
//! The daemon's data path is generic code that the compiler puts together in this crate and in no other.
//!
//! # Threads
//!
//! | thread | what runs on it |
//! | --- | --- |
//! | `core-0` ... | one executor each: volumes, arrays, caches and NBD servers of this core |
//! | main, `leave` | signals; at the end, clients that still use volumes |
//! | `accept`, `control` | the control socket, one thread a client |
//! | `watch`, `errand` | background jobs: drains, losses put on record, devices that come late |
//! | `look`, `open` | looks at devices, and openings of drives, which may hang |
//! | `log` | writes the lines of the log; nobody waits for it |
//! | fuser's | one for each FUSE file: carries the kernel's requests to the core and back |
//!
//! A panic on a core fails a volume with its arrays, or one array ([domains](voltier_ring::Domain)). A panic
//! outside all domains ends the process.
//!
//! Read this file first, then `call`, `homes` and `table` (on which core everything is). What the control plane
//! asks for is in the files of its subjects: `drives`, `labels`, `volumes`, `caches`, `exports`, `arrays` and
//! `members`. `assemble` and `opening` open arrays and drives. `loss`, `fault` and `silence` tell the control
//! plane of failures.

mod access;
mod array_failure;
mod array_news;
mod array_status;
mod arrays;
mod assemble;
mod caches;
mod call;
mod drives;
mod exports;
mod fault;
mod homes;
mod journals;
mod labels;
mod loss;
mod members;
mod opening;
mod silence;
mod table;
mod volume_status;
mod volumes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use voltier_control::engine::{Exports, Log, Waker};
use voltier_control::safety::{Machine, Promises, Room};
use voltier_control::{
    ControlError, ControlResult, DeviceSpec, ExportAccess, ExportSpec, Memory, VolumeName,
};
use voltier_export::nbd::{Budget, NbdLimits};
use voltier_ring::{Core, Domain};

use call::Way;
use fault::{CORE_THREAD, Fault};
use homes::Homes;

/// The cores of this process, and the volumes and arrays on them.
pub struct CoreEngine {
    homes: Homes,
    /// The home of the next volume or array: they are dealt out in turn.
    next_core: AtomicUsize,
    waker: OnceLock<Waker>,
    /// The memory and connections that all NBD clients share.
    budget: Arc<Budget>,
    /// The memory that volumes and arrays were promised.
    promises: Arc<Promises>,
    /// The ways to the cores, by number.
    ways: Vec<Way>,
    cores: Vec<Core>,
    machine: Machine,
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
        Ok(Self { homes, next_core, waker, budget, promises, ways, cores, machine })
    }

    /// The memory that is left, after a look whether so many of these devices can be opened.
    fn room_for<'a>(&self, devices: impl Iterator<Item = &'a DeviceSpec>) -> ControlResult<Memory> {
        let room = Room::now(&self.machine);
        room.has_descriptors(devices.filter(|device| device.is_external()).count())?;
        Ok(Memory::new(&self.promises, room))
    }

    /// The core that is next.
    fn deal(&self) -> usize {
        self.next_core.fetch_add(1, Ordering::Relaxed) % self.cores.len()
    }

    /// The core of an array, if the device is one.
    fn core_of(&self, device: Option<&DeviceSpec>) -> Option<usize> {
        let name = device.and_then(DeviceSpec::array)?;
        self.homes.find_array(name).map(|home| home.core)
    }

    /// The way to a core for tasks of a new failure domain, and whoever is told when the domain fails.
    fn new_home(&self, core: usize) -> (Way, Arc<Fault>) {
        (self.ways[core].within(Domain::fresh()), Fault::new(self.waker()))
    }

    fn waker(&self) -> Option<Waker> {
        self.waker.get().cloned()
    }
}

impl Log for CoreEngine {
    fn set_waker(&self, waker: Waker) {
        // The daemon has one.
        let _ = self.waker.set(waker);
    }

    fn log(&self, line: &str) {
        tracing::info!("{line}");
    }

    fn warn(&self, line: &str) {
        tracing::warn!("{line}");
    }
}

impl Exports for CoreEngine {
    fn export(
        &self,
        name: &VolumeName,
        export: &ExportSpec,
        access: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec> {
        let home = self.homes.volume(name)?;
        let opened = exports::open(&home.way, name, export, access, &self.budget)?;
        let real = opened.spec.clone();
        home.exports.get().push(opened);
        Ok(real)
    }

    fn unexport(&self, name: &VolumeName, export: &ExportSpec, cut_off: bool) -> ControlResult<()> {
        let Some(home) = self.homes.find(name) else { return Ok(()) };
        let taken = {
            let mut exports = home.exports.get();
            let at = exports.iter().position(|open| open.spec == *export);
            at.map(|at| exports.swap_remove(at))
        };
        let Some(mut open) = taken else { return Ok(()) };
        let closed = open.export.close(cut_off);
        if closed.is_err() {
            home.exports.get().push(open);
        }
        closed
    }

    fn clear_dead(&self, export: &ExportSpec) {
        exports::clear_dead(export);
    }

    fn export_trouble(&self, name: &VolumeName, export: &ExportSpec) -> Option<String> {
        let home = self.homes.find(name)?;
        let exports = home.exports.get();
        exports.iter().find(|open| open.spec == *export)?.export.trouble()
    }

    fn clients(&self, name: &VolumeName, export: &ExportSpec) -> u64 {
        let Some(home) = self.homes.find(name) else { return 0 };
        let exports = home.exports.get();
        let open = exports.iter().find(|open| open.spec == *export);
        open.map_or(0, |open| open.export.clients())
    }
}
