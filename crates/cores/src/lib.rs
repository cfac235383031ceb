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
//! Read this file first, then `call`, `homes` and `table` (on which core everything is). `volumes`,
//! `assemble`, `exports` and `opening` open and close things; `members` and `journals` change arrays in
//! service. `loss`, `fault` and `silence` tell the control plane of failures.

mod access;
mod array_failure;
mod array_news;
mod array_status;
mod assemble;
mod cache_label;
mod call;
mod drives;
mod exports;
mod fault;
mod homes;
mod journals;
mod loss;
mod members;
mod opening;
mod silence;
mod table;
mod volume_status;
mod volumes;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use voltier_array::MemberIndex;
use voltier_control::engine::{
    ArrayDevices, ArrayEngine, CacheHealth, CacheLabel, CacheStart, Drain, Engine,
    JournalDeviceLabel, MemberLabel, OpenedArray, OpenedVolume, Passing, Replaced, SpareOwner,
    Waker,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::safety::{Machine, Promises, Room};
use voltier_control::{
    ArrayDetail, ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, ExportAccess,
    ExportSpec, Memory, RegisteredArray, Settings, VolumeName, VolumeRecord, VolumeStatus,
};
use voltier_export::nbd::{Budget, NbdLimits};
use voltier_ring::{Core, Domain};

use call::Way;
use fault::{CORE_THREAD, Fault};
use homes::{ArrayHome, Held, Home, Homes};
use loss::{EventGate, KnownEvents, LossGate, SsdLoss};
use volumes::DeviceNames;

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
        let machine = rustix::system::sysinfo();
        let memory_bytes = machine.totalram as u64 * u64::from(machine.mem_unit);
        let budget = Budget::new(NbdLimits::for_machine(memory_bytes));
        let ways = cores.iter().map(|core| Way::to(core.remote())).collect();
        let (homes, next_core, waker) = (Homes::new(), AtomicUsize::new(0), OnceLock::new());
        let promises = Promises::new(&Machine::real());
        Ok(Self { homes, next_core, waker, budget, promises, ways, cores })
    }

    /// The memory that is left, after a look whether so many of these devices can be opened.
    fn room_for<'a>(&self, devices: impl Iterator<Item = &'a DeviceSpec>) -> ControlResult<Memory> {
        let room = Room::now(&Machine::real());
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

    /// Brings an array to the core of the volume that is to use it. Nobody uses it yet.
    fn bring(&self, device: Option<&DeviceSpec>, core: usize) -> ControlResult<()> {
        let Some(name) = device.and_then(DeviceSpec::array) else { return Ok(()) };
        let Some(home) = self.homes.find_array(name).filter(|home| home.core != core) else {
            return Ok(());
        };
        let record = home.record.get().clone();
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
        &self,
        core: usize,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let memory = self.room_for(devices.iter())?;
        let (plan, present) = (record.clone(), devices.to_vec());
        let (way, fault) = self.new_home(core);
        let told = fault.clone();
        let opened =
            way.call(move |handle| assemble::assemble(handle, plan, present, force, told, memory))?;
        let mut record = record.clone();
        if opened.journal.is_some() {
            record.journal.clone_from(&opened.journal);
        }
        self.take_home(core, way, fault, record);
        Ok(opened)
    }

    /// The way to a core for tasks of a new failure domain, and whoever is told when the domain fails.
    fn new_home(&self, core: usize) -> (Way, Arc<Fault>) {
        (self.ways[core].within(Domain::fresh()), Fault::new(self.waker()))
    }

    fn waker(&self) -> Option<Waker> {
        self.waker.get().cloned()
    }

    /// An array is open from now on.
    fn take_home(&self, core: usize, way: Way, fault: Arc<Fault>, record: RegisteredArray) {
        let name = record.name.clone();
        let (known, record) = (Arc::new(KnownEvents::default()), Held::new(record));
        let home = ArrayHome { core, way, fault, record, known_events: known.clone() };
        self.homes.add_array(&name, home);
        if let Some(waker) = self.waker() {
            let (array, gate) = (name.clone(), EventGate { known, waker });
            let listen = move |handle| async move { members::listen(handle, &array, gate) };
            // The array was opened a moment ago.
            let _ = self.homes.array(&name).and_then(|home| home.way.ask(listen));
        }
    }
}

impl Engine for CoreEngine {
    fn set_waker(&self, waker: Waker) {
        // The daemon has one.
        let _ = self.waker.set(waker);
    }

    fn size_of(&self, device: &DeviceSpec) -> ControlResult<u64> {
        opening::size_of(device)
    }

    fn is_letting_go(&self, machine: &Machine, path: &Path) -> bool {
        let own = path.to_owned();
        machine.ask(path, move || voltier_drive::is_undrained(&own)).unwrap_or(true)
    }

    fn cache_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>> {
        let (core, device) = (self.core_of(Some(device)).unwrap_or(0), device.clone());
        self.ways[core].call(move |handle| cache_label::cache_label_of(handle, device))
    }

    fn erase_cache_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        let (core, device) = (self.core_of(Some(device)).unwrap_or(0), device.clone());
        self.ways[core].call(move |handle| cache_label::erase_cache_label(handle, device))
    }

    fn open(&self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume> {
        let cache = record.cache.as_ref().filter(|cache| cache.failed.is_none());
        let ssd = cache.map(|cache| &cache.device);
        let core = self.core_of(Some(&record.origin)).or_else(|| self.core_of(ssd));
        let core = core.unwrap_or_else(|| self.deal());
        let memory = self.room_for(record.devices())?;
        self.bring(ssd, core)?;
        let (way, fault) = self.new_home(core);
        let loss = Arc::new(SsdLoss::default());
        let gate = LossGate { loss: loss.clone(), waker: self.waker() };
        let (plan, told) = (record.clone(), fault.clone());
        let opened =
            way.call(move |handle| volumes::open(handle, plan, start, gate, told, memory))?;
        let drain = Arc::new(Held::new(Drain::Done));
        let ssd = record.cache.as_ref().map(|cache| cache.device.to_string());
        let devices =
            DeviceNames { origin: record.origin.to_string(), ssd: ssd.unwrap_or_default() };
        let (exports, loss, devices) = (Held::new(Vec::new()), Held::new(loss), Held::new(devices));
        self.homes.add(&record.name, Home { core, way, fault, exports, drain, loss, devices });
        Ok(opened)
    }

    fn take_fault(&self, name: &VolumeName) -> Option<String> {
        let why = self.homes.find(name)?.fault.words()?;
        let home = self.homes.remove(name)?;
        home.loss.get().end();
        // The users of a FUSE file are cut off here; the core has cut off those of the network.
        home.exports.get().clear();
        Some(why)
    }

    fn begin_evacuation(&self, name: &VolumeName) -> ControlResult<()> {
        let volume = name.clone();
        self.homes.volume(name)?.way.ask(move |_| async move { volumes::begin_evacuation(&volume) })
    }

    fn passing(&self, name: &VolumeName) -> Option<Passing> {
        self.homes.find(name)?.loss.get().passing_to_record()
    }

    fn passing_is_recorded(&self, name: &VolumeName, number: u64) {
        if let Some(home) = self.homes.find(name) {
            home.loss.get().passing_is_recorded(number);
        }
    }

    fn close(&self, name: &VolumeName) -> ControlResult<()> {
        let Some(home) = self.homes.remove(name) else { return Ok(()) };
        // The users of a FUSE file are cut off here.
        home.exports.get().clear();
        let (name, devices) = (name.clone(), home.devices.get().clone());
        let closed = home.way.call(move |_| volumes::close(name, devices));
        home.loss.get().end();
        closed
    }

    fn attach(&self, record: &VolumeRecord) -> ControlResult<u64> {
        let (name, ssd) = (&record.name, record.cache.as_ref().map(|cache| &cache.device));
        let memory = self.room_for(ssd.into_iter())?;
        self.bring(ssd, self.homes.volume(name)?.core)?;
        let loss = Arc::new(SsdLoss::default());
        let gate = LossGate { loss: loss.clone(), waker: self.waker() };
        let (ssd, plan) = (ssd.map(ToString::to_string).unwrap_or_default(), record.clone());
        let home = self.homes.volume(name)?;
        // Before: what is still told of the SSD from before is not put on record of the new one.
        *home.loss.get() = loss;
        let attached = home.way.call(move |handle| volumes::attach(handle, plan, gate, memory));
        let generation = attached?;
        if let Some(home) = self.homes.find(name) {
            home.devices.get().ssd = ssd;
        }
        Ok(generation)
    }

    fn quiesce(&self, name: &VolumeName) -> ControlResult<()> {
        let (volume, home) = (name.clone(), self.homes.volume(name)?);
        let devices = home.devices.get().clone();
        home.way.call(move |_| volumes::quiesce(volume, devices))
    }

    fn resume(&self, name: &VolumeName) {
        let volume = name.clone();
        // A volume that is not open has nobody waiting.
        let resume = move |_| async move { volumes::resume(&volume) };
        let _ = self.homes.volume(name).and_then(|home| home.way.ask(resume));
    }

    fn detach(&self, name: &VolumeName, write_back: bool) -> ControlResult<()> {
        let (volume, home) = (name.clone(), self.homes.volume(name)?);
        let devices = home.devices.get().clone();
        let detached = home.way.call(move |_| volumes::detach(volume, devices, write_back));
        // The registry has the volume without this SSD.
        self.failure_is_recorded(name);
        detached
    }

    fn configure(&self, name: &VolumeName, settings: &Settings) -> ControlResult<()> {
        let (volume, settings) = (name.clone(), settings.clone());
        let memory = self.room_for(std::iter::empty())?;
        self.homes.volume(name)?.way.call(move |_| volumes::configure(volume, settings, memory))
    }

    fn start_drain(&self, name: &VolumeName) -> ControlResult<()> {
        let home = self.homes.volume(name)?;
        let drain = home.drain.clone();
        if std::mem::replace(&mut *drain.get(), Drain::Running) == Drain::Running {
            return Ok(());
        }
        let (volume, waker) = (name.clone(), self.waker());
        let devices = home.devices.get().clone();
        let sent = home.way.run(move |handle| {
            drop(handle.spawn(async move {
                let outcome = match volumes::drain(volume, devices).await {
                    Ok(()) => Drain::Done,
                    Err(error) => Drain::Failed(error.message),
                };
                *drain.get() = outcome;
                waker.iter().for_each(|wake| wake());
            }));
        });
        if sent { Ok(()) } else { Err(ControlError::failed("a core has ended; see daemon.log")) }
    }

    fn end_drain(&self, name: &VolumeName) {
        let volume = name.clone();
        // A volume that is not open has no drain.
        let end = move |_| async move { volumes::end_drain(&volume) };
        let _ = self.homes.volume(name).and_then(|home| home.way.ask(end));
    }

    fn drain(&self, name: &VolumeName) -> Drain {
        match self.homes.find(name) {
            Some(home) => home.drain.get().clone(),
            None => Drain::Failed(format!("{name} was closed")),
        }
    }

    fn health(&self, name: &VolumeName) -> CacheHealth {
        let volume = name.clone();
        let asked = move |_| async move { Ok(volumes::dirty_lines(&volume)) };
        let failed = |home: Arc<Home>| home.loss.get().happened.load(Ordering::Acquire);
        let said = self.homes.volume(name).and_then(|home| home.way.ask(asked));
        let (dirty_lines, is_gone) = said.ok().unzip();
        CacheHealth {
            dirty_lines,
            ssd_failed: self.homes.find(name).is_some_and(failed),
            ssd_is_gone: is_gone.unwrap_or_default(),
        }
    }

    fn failure_is_recorded(&self, name: &VolumeName) {
        if let Some(home) = self.homes.find(name) {
            home.loss.get().end();
        }
    }

    fn fill_status(&self, name: &VolumeName, status: &mut VolumeStatus) {
        let volume = name.clone();
        let facts = move |_| async move { volumes::facts(&volume) };
        let facts = self.homes.volume(name).and_then(|home| home.way.ask(facts));
        match facts {
            Ok(facts) => volume_status::fill(status, &facts),
            Err(error) => status.error = error.message,
        }
    }

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

impl ArrayEngine for CoreEngine {
    fn has_array(&self, name: &ArrayName) -> bool {
        self.homes.find_array(name).is_some()
    }

    fn label_of(&self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        let device = device.clone();
        self.ways[0].call(move |handle| drives::label_of(handle, device))
    }

    fn journal_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<JournalDeviceLabel>> {
        let device = device.clone();
        self.ways[0].call(move |handle| drives::journal_label_of(handle, device))
    }

    fn spare_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<SpareOwner>> {
        let device = device.clone();
        self.ways[0].call(move |handle| drives::spare_label_of(handle, device))
    }

    fn label_spare(
        &self,
        device: &DeviceSpec,
        label: &SpareOwner,
        wipe: bool,
    ) -> ControlResult<()> {
        let (device, label) = (device.clone(), label.clone());
        self.ways[0].call(move |handle| drives::label_spare(handle, device, label, wipe))
    }

    fn set_journal(&self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()> {
        let (array, new) = (name.clone(), device.cloned());
        self.homes.array(name)?.way.call(move |handle| journals::set(handle, array, new))?;
        if let Some(home) = self.homes.find_array(name) {
            home.record.get().journal = device.cloned();
        }
        Ok(())
    }

    fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray> {
        let core = self.deal();
        let memory = self.room_for(record.devices())?;
        let (way, fault) = self.new_home(core);
        let (plan, told) = (record.clone(), fault.clone());
        let opened = way.call(move |handle| assemble::create(handle, plan, told, memory))?;
        self.take_home(core, way, fault, record.clone());
        Ok(opened)
    }

    fn open_array(
        &self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let core = self.deal();
        self.assemble_on(core, record, devices, force)
    }

    fn close_array(&self, name: &ArrayName) -> ControlResult<u64> {
        let Some(home) = self.homes.remove_array(name) else { return Ok(0) };
        let name = name.clone();
        home.way.call(move |_| assemble::stop(name))
    }

    fn take_array_fault(&self, name: &ArrayName) -> Option<String> {
        let why = self.homes.find_array(name)?.fault.words()?;
        self.homes.remove_array(name);
        Some(why)
    }

    fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        let device = device.clone();
        self.ways[0].call(move |handle| drives::erase_label(handle, device))
    }

    fn array_head(&self, name: &ArrayName) -> ControlResult<Vec<u8>> {
        let array = name.clone();
        self.homes.array(name)?.way.call(move |_| members::head(array))
    }

    fn fail_member(&self, name: &ArrayName, place: u32) -> ControlResult<bool> {
        let array = name.clone();
        self.homes
            .array(name)?
            .way
            .ask(move |handle| members::fail(handle, array, MemberIndex(place as usize)))
    }

    fn replace_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        let (array, device) = (name.clone(), device.clone());
        self.homes.array(name)?.way.call(move |handle| {
            members::replace(handle, array, MemberIndex(place as usize), device)
        })
    }

    fn restore_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool> {
        let (array, device) = (name.clone(), device.clone());
        self.homes.array(name)?.way.call(move |handle| {
            members::restore_member(handle, array, MemberIndex(place as usize), device)
        })
    }

    fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let (array, device) = (name.clone(), device.clone());
        self.homes.array(name)?.way.call(move |handle| members::add_spare(handle, array, device))
    }

    fn grow_array(
        &self,
        name: &ArrayName,
        by: Growth,
        devices: &[DeviceSpec],
    ) -> ControlResult<()> {
        let memory = self.room_for(devices.iter())?;
        let (array, devices) = (name.clone(), devices.to_vec());
        let home = self.homes.array(name)?;
        home.way.call(move |handle| members::grow(handle, array, by, devices, memory))
    }

    fn start_rebuild(&self, name: &ArrayName) -> ControlResult<()> {
        let array = name.clone();
        self.homes.array(name)?.way.ask(move |_| async move { members::start_rebuild(&array) })
    }

    fn start_scrub(&self, name: &ArrayName, repair: Repair) -> ControlResult<()> {
        let array = name.clone();
        self.homes
            .array(name)?
            .way
            .ask(move |_| async move { members::start_scrub(&array, repair) })
    }

    fn check_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let (array, device) = (name.clone(), device.clone());
        self.homes.array(name)?.way.call(move |handle| members::check_spare(handle, array, device))
    }

    fn configure_array(&self, name: &ArrayName, settings: &ArraySettings) {
        let (array, settings) = (name.clone(), settings.clone());
        if let Some(home) = self.homes.find_array(name) {
            home.record.get().settings = settings.clone();
        }
        // An array that is not open has nothing to set.
        let configure = move |_| async move { members::configure(&array, &settings) };
        let _ = self.homes.array(name).and_then(|home| home.way.ask(configure));
    }

    fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices> {
        let array = name.clone();
        let devices = move |_| async move { members::devices(&array) };
        self.homes.array(name).and_then(|home| home.way.ask(devices)).ok()
    }

    fn array_recorded(&self, name: &ArrayName, events: u64) {
        if let Some(home) = self.homes.find_array(name) {
            home.known_events.note(events);
        }
    }

    fn fill_array_status(&self, name: &ArrayName, status: &mut ArrayDetail) {
        let (array, plain) = (name.clone(), status.clone());
        let fill = move |_| async move { array_status::fill(&array, plain) };
        let filled = self.homes.array(name).and_then(|home| home.way.ask(fill));
        match filled {
            Ok(filled) => *status = filled,
            Err(error) => status.error = error.message,
        }
    }
}
