//! The engine over the data path: one thread per core, every volume at home on one of them.
//!
//! ```text
//! control thread                    core thread
//! CoreEngine  -- Remote::call -->   volumes: the volumes of this core, their caches and NBD servers
//!     ^------------- answer --------'
//! ```
//!
//! The daemon's data path is generic code that the compiler puts together in this crate and in no other.

mod access;
mod array_news;
mod array_status;
mod assemble;
mod cache_label;
mod call;
mod drives;
mod exports;
mod fault;
mod journals;
mod loss;
mod members;
mod silence;
mod table;
mod volume_status;
mod volumes;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use voltier_control::engine::{
    ArrayDevices, ArrayEngine, CacheHealth, CacheLabel, CacheStart, Drain, Engine,
    JournalDeviceLabel, MemberLabel, OpenedArray, OpenedVolume, Replaced, SpareLabel, Waker,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::{
    ArrayDetail, ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, ExportAccess,
    ExportSpec, ModelBacking, RegisteredArray, Settings, VolumeName, VolumeRecord, VolumeStatus,
};
use voltier_export::nbd::{Budget, NbdLimits};
use voltier_ring::{Core, Domain, Handle, Remote};

use call::call;
use exports::OpenExport;
use fault::{CORE_THREAD, Fault};
use loss::{LossGate, SsdLoss};
use volumes::DeviceNames;

/// The cores of this process, and the volumes and arrays on them.
pub struct CoreEngine {
    homes: BTreeMap<VolumeName, Home>,
    arrays: BTreeMap<ArrayName, ArrayHome>,
    /// The home of the next volume or array: they are dealt out in turn.
    next_core: usize,
    waker: Option<Waker>,
    /// The memory and connections that all NBD clients share.
    budget: Arc<Budget>,
    cores: Vec<Core>,
}

/// The control thread's view of an open array.
struct ArrayHome {
    core: usize,
    /// The way to the core for tasks of the array's own failure domain.
    remote: Remote,
    fault: Arc<Fault>,
    /// The record by which any core can assemble the array.
    record: RegisteredArray,
}

/// The control thread's view of an open volume.
struct Home {
    core: usize,
    /// The way to the core for tasks of the volume's own failure domain.
    remote: Remote,
    fault: Arc<Fault>,
    exports: Vec<OpenExport>,
    drain: Arc<Mutex<Drain>>,
    loss: Arc<SsdLoss>,
    devices: DeviceNames,
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
        let (homes, arrays) = (BTreeMap::new(), BTreeMap::new());
        // In units of as many bytes; a kernel that does not say gets the smallest pool.
        let machine = rustix::system::sysinfo();
        let memory_bytes = machine.totalram as u64 * u64::from(machine.mem_unit);
        let budget = Budget::new(NbdLimits::for_machine(memory_bytes));
        Ok(Self { homes, arrays, next_core: 0, waker: None, budget, cores })
    }

    /// The core that is next.
    fn deal(&mut self) -> usize {
        let core = self.next_core % self.cores.len();
        self.next_core += 1;
        core
    }

    /// The core of an array, if the device is one.
    fn core_of(&self, device: Option<&DeviceSpec>) -> Option<usize> {
        let name = device.and_then(DeviceSpec::array)?;
        self.arrays.get(name).map(|home| home.core)
    }

    /// Brings an array to the core of the volume that is to use it. Nobody uses it yet.
    fn bring(&mut self, device: Option<&DeviceSpec>, core: usize) -> ControlResult<()> {
        let Some(name) = device.and_then(DeviceSpec::array) else { return Ok(()) };
        let Some(home) = self.arrays.get(name).filter(|home| home.core != core) else {
            return Ok(());
        };
        let record = home.record.clone();
        let now = self.array_devices(name).ok_or_else(|| table::not_open(name))?;
        if let Some(device) = now.incoming.first() {
            return Err(ControlError::failed(format!(
                "the array {name} is filling {device}; try again when that is done"
            )));
        }
        let members = now.members.into_iter().flatten();
        let devices: Vec<DeviceSpec> = members.chain(record.journal.clone()).collect();
        let settings = record.settings.clone();
        self.close_array(name)?;
        self.assemble_on(core, &record, &devices, false)?;
        self.configure_array(name, &settings);
        now.spares.iter().try_for_each(|spare| self.add_spare(name, spare))
    }

    fn assemble_on(
        &mut self,
        core: usize,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let (plan, present) = (record.clone(), devices.to_vec());
        let (remote, fault) = self.new_home(core);
        let told = fault.clone();
        let opened =
            call(&remote, move |handle| assemble::assemble(handle, plan, present, force, told))?;
        let mut record = record.clone();
        if opened.journal.is_some() {
            record.journal.clone_from(&opened.journal);
        }
        self.take_home(ArrayHome { core, remote, fault, record });
        Ok(opened)
    }

    /// The way to a core for tasks of a new failure domain, and whoever is told when the domain fails.
    fn new_home(&self, core: usize) -> (Remote, Arc<Fault>) {
        (self.cores[core].remote().within(Domain::fresh()), Fault::new(self.waker.clone()))
    }

    /// An array is open from now on.
    fn take_home(&mut self, home: ArrayHome) {
        let name = home.record.name.clone();
        self.arrays.insert(name.clone(), home);
        if let Some(waker) = self.waker.clone() {
            let array = name.clone();
            let listen = move |_| async move { members::listen(&array, waker) };
            // The array was opened a moment ago.
            let _ = self.on_array(&name, listen);
        }
    }

    /// Runs a task for an open array on its core and waits for the answer.
    fn on_array<T, F>(
        &self,
        name: &ArrayName,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> ControlResult<T>
    where
        T: Send + 'static,
        F: Future<Output = ControlResult<T>> + 'static,
    {
        let home = self.arrays.get(name).ok_or_else(|| table::not_open(name))?;
        call(&home.remote, task)
    }

    fn home(&self, name: &VolumeName) -> ControlResult<&Home> {
        self.homes
            .get(name)
            .ok_or_else(|| ControlError::failed(format!("{name} is not open; see daemon.log")))
    }

    /// Runs a task for an open volume on its core and waits for the answer.
    fn on_core<T, F>(
        &self,
        name: &VolumeName,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> ControlResult<T>
    where
        T: Send + 'static,
        F: Future<Output = ControlResult<T>> + 'static,
    {
        call(&self.home(name)?.remote, task)
    }
}

impl Engine for CoreEngine {
    fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    fn size_of(&mut self, device: &DeviceSpec) -> ControlResult<u64> {
        let profile = match device {
            DeviceSpec::Model { profile, .. } => Some(drives::profile(profile)?),
            DeviceSpec::Path(_) | DeviceSpec::Memory(_) | DeviceSpec::Array(_) => None,
        };
        match (device, profile) {
            (DeviceSpec::Memory(bytes), _)
            | (DeviceSpec::Model { over: ModelBacking::Memory(bytes), .. }, _) => Ok(*bytes),
            (DeviceSpec::Model { over: ModelBacking::ProfileSize, .. }, Some(profile)) => {
                Ok(profile.bytes)
            }
            // The examination of a path tells its size.
            _ => Ok(u64::MAX),
        }
    }

    fn cache_label_of(&mut self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>> {
        let (core, device) = (self.core_of(Some(device)).unwrap_or(0), device.clone());
        call(&self.cores[core].remote(), move |handle| cache_label::cache_label_of(handle, device))
    }

    fn open(&mut self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume> {
        let cache = record.cache.as_ref().filter(|cache| cache.failed.is_none());
        let ssd = cache.map(|cache| &cache.device);
        let core = self.core_of(Some(&record.origin)).or_else(|| self.core_of(ssd));
        let core = core.unwrap_or_else(|| self.deal());
        self.bring(ssd, core)?;
        let remote = self.cores[core].remote().within(Domain::fresh());
        let fault = Fault::new(self.waker.clone());
        let loss = Arc::new(SsdLoss::default());
        let gate = LossGate { loss: loss.clone(), waker: self.waker.clone() };
        let (plan, told) = (record.clone(), fault.clone());
        let opened = call(&remote, move |handle| volumes::open(handle, plan, start, gate, told))?;
        let drain = Arc::new(Mutex::new(Drain::Done));
        let ssd = record.cache.as_ref().map(|cache| cache.device.to_string());
        let devices =
            DeviceNames { origin: record.origin.to_string(), ssd: ssd.unwrap_or_default() };
        let home = Home { core, remote, fault, exports: Vec::new(), drain, loss, devices };
        self.homes.insert(record.name.clone(), home);
        Ok(opened)
    }

    fn take_fault(&mut self, name: &VolumeName) -> Option<String> {
        let why = self.homes.get(name)?.fault.words()?;
        let home = self.homes.remove(name)?;
        home.loss.end();
        // The users of a FUSE file are cut off here; the core has cut off those of the network.
        drop(home);
        Some(why)
    }

    fn begin_evacuation(&mut self, name: &VolumeName) -> ControlResult<()> {
        let volume = name.clone();
        self.on_core(name, move |_| async move { volumes::begin_evacuation(&volume) })
    }

    fn close(&mut self, name: &VolumeName) -> ControlResult<()> {
        let Some(home) = self.homes.remove(name) else { return Ok(()) };
        // The users of a FUSE file are cut off here.
        drop(home.exports);
        let (name, devices) = (name.clone(), home.devices);
        let closed = call(&home.remote, move |_| volumes::close(name, devices));
        home.loss.end();
        closed
    }

    fn attach(&mut self, record: &VolumeRecord) -> ControlResult<u64> {
        let (name, ssd) = (&record.name, record.cache.as_ref().map(|cache| &cache.device));
        self.bring(ssd, self.home(name)?.core)?;
        let loss = Arc::new(SsdLoss::default());
        let gate = LossGate { loss: loss.clone(), waker: self.waker.clone() };
        let (ssd, plan) = (ssd.map(ToString::to_string).unwrap_or_default(), record.clone());
        let generation = self.on_core(name, move |handle| volumes::attach(handle, plan, gate))?;
        if let Some(home) = self.homes.get_mut(name) {
            home.loss = loss;
            home.devices.ssd = ssd;
        }
        Ok(generation)
    }

    fn quiesce(&mut self, name: &VolumeName) -> ControlResult<()> {
        let (volume, devices) = (name.clone(), self.home(name)?.devices.clone());
        self.on_core(name, move |_| volumes::quiesce(volume, devices))
    }

    fn resume(&mut self, name: &VolumeName) {
        let volume = name.clone();
        // A volume that is not open has nobody waiting.
        let _ = self.on_core(name, move |_| async move { volumes::resume(&volume) });
    }

    fn detach(&mut self, name: &VolumeName, write_back: bool) -> ControlResult<()> {
        let (volume, devices) = (name.clone(), self.home(name)?.devices.clone());
        let detached = self.on_core(name, move |_| volumes::detach(volume, devices, write_back));
        // The registry has the volume without this SSD.
        self.failure_is_recorded(name);
        detached
    }

    fn configure(&mut self, name: &VolumeName, settings: &Settings) -> ControlResult<()> {
        let (volume, settings) = (name.clone(), settings.clone());
        self.on_core(name, move |_| volumes::configure(volume, settings))
    }

    fn start_drain(&mut self, name: &VolumeName) -> ControlResult<()> {
        let home = self.home(name)?;
        let drain = home.drain.clone();
        let is_running = {
            let mut state = drain.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *state, Drain::Running) == Drain::Running
        };
        if is_running {
            return Ok(());
        }
        let (volume, waker) = (name.clone(), self.waker.clone());
        let devices = home.devices.clone();
        let sent = home.remote.run(move |handle| {
            drop(handle.spawn(async move {
                let outcome = match volumes::drain(volume, devices).await {
                    Ok(()) => Drain::Done,
                    Err(error) => Drain::Failed(error.message),
                };
                *drain.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
                waker.iter().for_each(|wake| wake());
            }));
        });
        if sent { Ok(()) } else { Err(ControlError::failed("a core has ended; see daemon.log")) }
    }

    fn drain(&mut self, name: &VolumeName) -> Drain {
        match self.homes.get(name) {
            Some(home) => home.drain.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            None => Drain::Failed(format!("{name} was closed")),
        }
    }

    fn health(&mut self, name: &VolumeName) -> CacheHealth {
        let volume = name.clone();
        let failed = |home: &Home| home.loss.happened.load(Ordering::Acquire);
        let ssd_failed = self.homes.get(name).is_some_and(failed);
        let asked = self.on_core(name, move |_| async move { Ok(volumes::dirty_lines(&volume)) });
        let (dirty_lines, is_gone) = asked.ok().unzip();
        CacheHealth { dirty_lines, ssd_failed, ssd_is_gone: is_gone.unwrap_or_default() }
    }

    fn failure_is_recorded(&mut self, name: &VolumeName) {
        if let Some(home) = self.homes.get(name) {
            home.loss.end();
        }
    }

    fn fill_status(&mut self, name: &VolumeName, status: &mut VolumeStatus) {
        let volume = name.clone();
        let facts = self.on_core(name, move |_| async move { volumes::facts(&volume) });
        match facts {
            Ok(facts) => volume_status::fill(status, &facts),
            Err(error) => status.error = error.message,
        }
    }

    fn export(
        &mut self,
        name: &VolumeName,
        export: &ExportSpec,
        access: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec> {
        let opened = exports::open(&self.home(name)?.remote, name, export, access, &self.budget)?;
        let real = opened.spec().clone();
        if let Some(home) = self.homes.get_mut(name) {
            home.exports.push(opened);
        }
        Ok(real)
    }

    fn unexport(
        &mut self,
        name: &VolumeName,
        export: &ExportSpec,
        cut_off: bool,
    ) -> ControlResult<()> {
        let Some(home) = self.homes.get_mut(name) else { return Ok(()) };
        let Some(at) = home.exports.iter().position(|open| open.spec() == export) else {
            return Ok(());
        };
        let mut open = home.exports.swap_remove(at);
        let closed = open.close(&home.remote, name, cut_off);
        if closed.is_err() {
            home.exports.push(open);
        }
        closed
    }

    fn clear_dead(&mut self, export: &ExportSpec) {
        if let ExportSpec::Fuse(path) = export {
            voltier_export::fuse::clear_dead(path);
        }
    }

    fn export_trouble(&mut self, name: &VolumeName, export: &ExportSpec) -> Option<String> {
        let home = self.homes.get(name)?;
        let open = home.exports.iter().find(|open| open.spec() == export)?;
        open.trouble(&home.remote, name)
    }

    fn clients(&mut self, name: &VolumeName, export: &ExportSpec) -> u64 {
        let Some(home) = self.homes.get(name) else { return 0 };
        let open = home.exports.iter().find(|open| open.spec() == export);
        open.map_or(0, |open| open.clients(&home.remote, name))
    }
}

impl ArrayEngine for CoreEngine {
    fn label_of(&mut self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        let device = device.clone();
        call(&self.cores[0].remote(), move |handle| drives::label_of(handle, device))
    }

    fn journal_label_of(
        &mut self,
        device: &DeviceSpec,
    ) -> ControlResult<Option<JournalDeviceLabel>> {
        let device = device.clone();
        call(&self.cores[0].remote(), move |handle| drives::journal_label_of(handle, device))
    }

    fn spare_label_of(&mut self, device: &DeviceSpec) -> ControlResult<Option<SpareLabel>> {
        let device = device.clone();
        call(&self.cores[0].remote(), move |handle| drives::spare_label_of(handle, device))
    }

    fn label_spare(
        &mut self,
        device: &DeviceSpec,
        label: &SpareLabel,
        wipe: bool,
    ) -> ControlResult<()> {
        let (device, label) = (device.clone(), label.clone());
        call(&self.cores[0].remote(), move |handle| {
            drives::label_spare(handle, device, label, wipe)
        })
    }

    fn set_journal(&mut self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()> {
        let (array, new) = (name.clone(), device.cloned());
        self.on_array(name, move |handle| journals::set(handle, array, new))?;
        if let Some(home) = self.arrays.get_mut(name) {
            home.record.journal = device.cloned();
        }
        Ok(())
    }

    fn create_array(&mut self, record: &RegisteredArray) -> ControlResult<OpenedArray> {
        let core = self.deal();
        let (remote, fault) = self.new_home(core);
        let (plan, told) = (record.clone(), fault.clone());
        let opened = call(&remote, move |handle| assemble::create(handle, plan, told))?;
        self.take_home(ArrayHome { core, remote, fault, record: record.clone() });
        Ok(opened)
    }

    fn open_array(
        &mut self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let core = self.deal();
        self.assemble_on(core, record, devices, force)
    }

    fn close_array(&mut self, name: &ArrayName) -> ControlResult<()> {
        let Some(home) = self.arrays.remove(name) else { return Ok(()) };
        let name = name.clone();
        call(&home.remote, move |_| assemble::stop(name))
    }

    fn take_array_fault(&mut self, name: &ArrayName) -> Option<String> {
        let why = self.arrays.get(name)?.fault.words()?;
        self.arrays.remove(name);
        Some(why)
    }

    fn erase_label(&mut self, device: &DeviceSpec) -> ControlResult<()> {
        let device = device.clone();
        call(&self.cores[0].remote(), move |handle| drives::erase_label(handle, device))
    }

    fn array_head(&mut self, name: &ArrayName) -> ControlResult<Vec<u8>> {
        let array = name.clone();
        self.on_array(name, move |_| members::head(array))
    }

    fn fail_member(&mut self, name: &ArrayName, place: u32) -> ControlResult<()> {
        let array = name.clone();
        self.on_array(name, move |handle| members::fail(handle, array, place as usize))
    }

    fn replace_member(
        &mut self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        let (array, device) = (name.clone(), device.clone());
        self.on_array(name, move |handle| members::replace(handle, array, place as usize, device))
    }

    fn take_back(
        &mut self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool> {
        let (array, device) = (name.clone(), device.clone());
        self.on_array(name, move |handle| members::take_back(handle, array, place as usize, device))
    }

    fn add_spare(&mut self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let (array, device) = (name.clone(), device.clone());
        self.on_array(
            name,
            move |handle| async move { members::add_spare(&handle, &array, &device) },
        )
    }

    fn grow_array(
        &mut self,
        name: &ArrayName,
        by: Growth,
        devices: &[DeviceSpec],
    ) -> ControlResult<()> {
        let (array, devices) = (name.clone(), devices.to_vec());
        self.on_array(name, move |handle| members::grow(handle, array, by, devices))
    }

    fn start_rebuild(&mut self, name: &ArrayName) -> ControlResult<()> {
        let array = name.clone();
        self.on_array(name, move |_| async move { members::start_rebuild(&array) })
    }

    fn start_scrub(&mut self, name: &ArrayName, repair: Repair) -> ControlResult<()> {
        let array = name.clone();
        self.on_array(name, move |_| async move { members::start_scrub(&array, repair) })
    }

    fn check_spare(&mut self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let (array, device) = (name.clone(), device.clone());
        self.on_array(
            name,
            move |handle| async move { members::check_spare(&handle, &array, &device) },
        )
    }

    fn configure_array(&mut self, name: &ArrayName, settings: &ArraySettings) {
        let (array, settings) = (name.clone(), settings.clone());
        if let Some(home) = self.arrays.get_mut(name) {
            home.record.settings = settings.clone();
        }
        // An array that is not open has nothing to set.
        let _ = self.on_array(name, move |_| async move { members::configure(&array, &settings) });
    }

    fn array_devices(&mut self, name: &ArrayName) -> Option<ArrayDevices> {
        let array = name.clone();
        self.on_array(name, move |_| async move { members::devices(&array) }).ok()
    }

    fn fill_array_status(&mut self, name: &ArrayName, status: &mut ArrayDetail) {
        let (array, plain) = (name.clone(), status.clone());
        let filled = self.on_array(name, move |_| async move { array_status::fill(&array, plain) });
        match filled {
            Ok(filled) => *status = filled,
            Err(error) => status.error = error.message,
        }
    }
}
