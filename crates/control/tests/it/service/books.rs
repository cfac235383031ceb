//! An engine that only keeps books, for tests.

mod arrays;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use voltier_array::MemberState;

use voltier_control::engine::{
    ArrayDevices, ArrayEngine, CacheHealth, CacheLabel, CacheStart, Drain, Engine,
    JournalDeviceLabel, LabelledPlace, MemberLabel, OpenedArray, OpenedVolume, Passing, Replaced,
    SpareOwner, Waker,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::safety::{self, DriveIdentity, Examined, Machine, Role};
use voltier_control::{
    ArrayDetail, ArrayLevel, ArrayName, ArraySettings, ArrayState, ByteRange, ControlError,
    ControlResult, DeviceSpec, DeviceState, ExportAccess, ExportSpec, Identity, REGISTRY_FILE,
    RegisteredArray, Settings, VolumeName, VolumeRecord, VolumeStatus,
};

/// The books of one test engine; shared, so that a test looks into them and steers them.
#[derive(Default)]
pub(super) struct Books {
    /// Calls in order, as words.
    pub(super) calls: Vec<String>,
    /// Open volumes: whether they have a cache.
    open: BTreeMap<VolumeName, bool>,
    pub(super) dirty: u64,
    /// The volumes have failed, and cannot say what is dirty.
    pub(super) health_is_unknown: bool,
    /// The cores of arrays do not answer in time.
    pub(super) are_arrays_late: bool,
    /// Changes of membership of every array since it was made.
    pub(super) array_changes: u64,
    /// The event counts that the service said are on record.
    pub(super) recorded_events: BTreeMap<ArrayName, u64>,
    /// Dirty lines that every cache has when it is opened: they outlive a daemon.
    pub(super) comes_back_dirty: u64,
    pub(super) ssd_failed: bool,
    pub(super) ssd_is_gone: bool,
    /// For how many seconds SSD and HDD have answered nothing.
    pub(super) silent_s: (u64, u64),
    /// Every SSD takes no writes when a cache on it is opened.
    pub(super) takes_no_writes: bool,
    /// Where clients are to pass the SSD of every volume.
    pub(super) passing: Option<Passing>,
    /// All drives are block devices without a mark.
    pub(super) are_unmarked: bool,
    pub(super) clients: u64,
    /// Exports cannot be opened, by later daemons neither, and those that are open take no clients.
    pub(super) exports_fail: bool,
    /// Superblocks of caches, by the paths of their SSDs or the names of arrays.
    pub(super) cache_labels: BTreeMap<String, CacheLabel>,
    /// Block devices of the machine with a mark.
    pub(super) own_devices: Vec<PathBuf>,
    /// Calls that are to fail, by their first word.
    pub(super) failing: Option<&'static str>,
    pub(super) lost: Vec<ByteRange>,
    /// Labels of devices, by their paths: they outlive a daemon.
    pub(super) labels: BTreeMap<PathBuf, MemberLabel>,
    /// Whether members that were lost have been used since.
    pub(super) used_elsewhere: bool,
    /// Labels of spares, by the inodes of their devices.
    pub(super) spare_labels: BTreeMap<u64, SpareOwner>,
    /// Open arrays.
    pub(super) arrays: BTreeMap<ArrayName, BookArray>,
    /// The state folder whose registry cannot be written from the next label of a spare on.
    pub(super) blocks_at_label: Option<PathBuf>,
    /// Looks at devices so far.
    pub(super) looks: usize,
    /// Drives that still have requests of a volume which was stopped.
    pub(super) let_go: Vec<PathBuf>,
    /// An array that an open moves to another core is closed, and not opened there.
    pub(super) moves_fail: bool,
    /// Such a drive ends its requests while somebody looks at the drive.
    pub(super) let_go_ends: bool,
    /// Devices with labels of these arrays or caches that only a newer program can read.
    pub(super) newer: BTreeMap<PathBuf, Identity>,
    /// Devices whose labels cannot be read.
    pub(super) unlabelled: Vec<PathBuf>,
    /// Devices that are there and cannot be read.
    pub(super) silent: Vec<PathBuf>,
    /// Devices that are too small for every array.
    pub(super) small: Vec<PathBuf>,
    /// The call that the daemon does not survive, counted from now.
    pub(super) dies_in: Option<usize>,
    /// Why the code of the open volume fails, until that is told.
    pub(super) fault: Option<String>,
    /// The same of an open array.
    pub(super) array_fault: Option<String>,
    /// The beginning of a call that does not end before the test says so.
    pub(super) hangs: Option<String>,
    /// Such a call is under way.
    pub(super) is_hung: bool,
    /// The first bytes of every array.
    pub(super) head: Vec<u8>,
}

/// An open array.
#[derive(Default)]
pub(super) struct BookArray {
    pub(super) level: Option<ArrayLevel>,
    pub(super) members: Vec<Option<DeviceSpec>>,
    pub(super) lost: Vec<u32>,
    pub(super) spares: Vec<DeviceSpec>,
    pub(super) incoming: Vec<DeviceSpec>,
}

/// The size of every array, in bytes.
pub(super) const ARRAY_BYTES: u64 = 3 << 20;

#[derive(Clone, Default)]
pub(super) struct BookEngine(Arc<Mutex<Books>>);

impl BookEngine {
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        // A daemon that died was not in the middle of the books.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The books when a call hangs no more.
    fn books_after_hang(&self, call: &str) -> MutexGuard<'_, Books> {
        let mut books = self.books();
        while books.hangs.as_ref().is_some_and(|hangs| call.starts_with(hangs)) {
            books.is_hung = true;
            drop(books);
            std::thread::yield_now();
            books = self.books();
        }
        books
    }

    /// Refuses a device whose label only a newer program can read.
    fn refuse_newer(&self, device: &DeviceSpec) -> ControlResult<()> {
        let newer = device.path().and_then(|path| self.books().newer.get(path).copied());
        newer.map_or(Ok(()), |of| {
            Err(ControlError::unsupported_label(of, format!("{device}: of a newer Voltier")))
        })
    }

    fn call(&self, what: &str, detail: &str) -> ControlResult<()> {
        let mut books = self.books();
        let dies = books.dies_in == Some(0);
        books.dies_in = books.dies_in.and_then(|calls| calls.checked_sub(1));
        if dies {
            drop(books);
            panic!("the daemon dies");
        }
        drop(books);
        let call = format!("{what} {detail}");
        let mut books = self.books_after_hang(&call);
        books.calls.push(call);
        if books.failing == Some(what) {
            return Err(ControlError::failed(format!("{what} was to fail")));
        }
        Ok(())
    }
}

pub(super) fn inode_of(device: &DeviceSpec) -> u64 {
    device.path().unwrap().metadata().map_or(0, |meta| meta.ino())
}

impl Engine for BookEngine {
    fn examine(&self, machine: &Machine, path: &Path, role: Role) -> ControlResult<Examined> {
        let shown = path.display();
        if self.books().silent.iter().any(|silent| silent == path) {
            return Err(ControlError::failed(format!("reading {shown}: input/output error")));
        }
        drop(self.books_after_hang(&format!("examine {shown}")));
        let mut books = self.books();
        books.looks += 1;
        if books.let_go_ends {
            books.let_go.retain(|own| own != path);
        }
        drop(books);
        safety::examine(machine, path, role)
    }

    fn is_letting_go(&self, _: &Machine, path: &Path) -> bool {
        let books = self.books_after_hang(&format!("letting go {}", path.display()));
        books.let_go.iter().any(|own| own == path)
    }

    fn size_of(&self, device: &DeviceSpec) -> ControlResult<u64> {
        Ok(if let DeviceSpec::Memory(bytes) = device { *bytes } else { u64::MAX })
    }

    fn own_devices(&self, _: &Machine) -> Vec<PathBuf> {
        self.books().own_devices.clone()
    }

    fn own_files(&self, machine: &Machine, folder: &Path) -> Vec<PathBuf> {
        let is_in = |path: &&PathBuf| path.parent() == Some(folder) && path.is_file();
        let mut files: Vec<PathBuf> = self.books().labels.keys().filter(is_in).cloned().collect();
        let inodes: Vec<u64> = self.books().spare_labels.keys().copied().collect();
        let all = safety::around(machine, &BTreeSet::from([folder.to_owned()]));
        files.extend(all.into_iter().filter(|(_, inode)| inodes.contains(inode)).map(|it| it.0));
        files
    }

    fn around(&self, machine: &Machine, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
        let mut around = safety::around(machine, folders);
        around.extend(self.books().own_devices.iter().map(|path| (path.clone(), 0)));
        around
    }

    fn cache_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>> {
        self.refuse_newer(device)?;
        Ok(self.books().cache_labels.get(&device.to_string()).cloned())
    }

    fn erase_cache_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        self.books().cache_labels.remove(&device.to_string());
        self.call("erase", "cache label")
    }

    fn is_block_device(&self, _path: &Path) -> bool {
        self.books().are_unmarked
    }

    fn drive_identity(&self, machine: &Machine, path: &Path) -> Option<DriveIdentity> {
        if self.books().are_unmarked { None } else { DriveIdentity::of_path(machine, path) }
    }

    fn open(&self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume> {
        if self.books().moves_fail {
            self.books().arrays.clear();
            return Err(ControlError::failed("the array does not stop"));
        }
        let cache = record.cache.as_ref().filter(|cache| cache.failed.is_none());
        if cache.is_some() {
            self.call("open", &format!("{start:?}"))?;
        } else {
            self.call("plain", record.name.as_str())?;
        }
        self.books().open.insert(record.name.clone(), cache.is_some());
        let size_bytes = record.size_bytes;
        let generation = cache.map_or(0, |cache| cache.generation + 1);
        let evacuates = cache.is_some() && self.books().takes_no_writes;
        let dirty_lines = if cache.is_some() { self.books().comes_back_dirty } else { 0 };
        Ok(OpenedVolume { size_bytes, generation, dirty_lines, evacuates })
    }

    fn take_fault(&self, name: &VolumeName) -> Option<String> {
        let mut books = self.books();
        let why = if books.open.contains_key(name) { books.fault.take() } else { None };
        if why.is_some() {
            books.open.remove(name);
        }
        why
    }

    fn begin_evacuation(&self, name: &VolumeName) -> ControlResult<()> {
        self.call("begin_evacuation", name.as_str())
    }

    fn passing(&self, _: &VolumeName) -> Option<Passing> {
        self.books().passing.clone()
    }

    fn passing_is_recorded(&self, name: &VolumeName, number: u64) {
        self.books().passing = None;
        self.books().calls.push(format!("passes {name} {number}"));
    }

    fn close(&self, name: &VolumeName) -> ControlResult<()> {
        self.books().open.remove(name);
        self.call("close", name.as_str())
    }

    fn attach(&self, record: &VolumeRecord) -> ControlResult<u64> {
        let mode = record.cache.as_ref().unwrap().settings.mode;
        self.call("attach", mode.to_string().as_str())?;
        self.books().open.insert(record.name.clone(), true);
        Ok(1)
    }

    fn quiesce(&self, name: &VolumeName) -> ControlResult<()> {
        self.call("quiesce", name.as_str())
    }

    fn resume(&self, name: &VolumeName) {
        self.books().calls.push(format!("resume {name}"));
    }

    fn detach(&self, _: &VolumeName, write_back: bool) -> ControlResult<()> {
        self.call("detach", if write_back { "clean" } else { "anyhow" })?;
        Ok(())
    }

    fn configure(&self, _: &VolumeName, settings: &Settings) -> ControlResult<()> {
        self.call("configure", settings.mode.to_string().as_str())
    }

    fn start_drain(&self, name: &VolumeName) -> ControlResult<()> {
        self.call("drain", name.as_str())
    }

    fn drain(&self, _: &VolumeName) -> Drain {
        let books = self.books();
        match books.dirty {
            0 => Drain::Done,
            u64::MAX => Drain::Failed("the origin fails".into()),
            _ => Drain::Running,
        }
    }

    fn health(&self, _: &VolumeName) -> CacheHealth {
        let books = self.books();
        CacheHealth {
            dirty_lines: (!books.health_is_unknown).then_some(books.dirty),
            ssd_failed: books.ssd_failed,
            ssd_is_gone: books.ssd_is_gone,
        }
    }

    fn fill_status(&self, _: &VolumeName, status: &mut VolumeStatus) {
        let books = self.books();
        status.lines.dirty = books.dirty;
        status.lost.clone_from(&books.lost);
        status.lost_ranges = books.lost.len() as u64;
        (status.ssd.silent_seconds, status.hdd.silent_seconds) = books.silent_s;
        for drive in [&mut status.ssd, &mut status.hdd] {
            if drive.silent_seconds > 0 && drive.state == DeviceState::Online {
                drive.state = DeviceState::Silent;
            }
        }
    }

    fn set_waker(&self, _: Waker) {}

    fn failure_is_recorded(&self, name: &VolumeName) {
        self.books().calls.push(format!("recorded {name}"));
    }

    fn export(
        &self,
        _: &VolumeName,
        export: &ExportSpec,
        _: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec> {
        self.call("export", export.kind().word)?;
        let failed = self.books().exports_fail.then(|| ControlError::failed("cannot listen there"));
        failed.map_or_else(|| Ok(export.clone()), Err)
    }

    fn unexport(&self, _: &VolumeName, export: &ExportSpec, _: bool) -> ControlResult<()> {
        self.call("unexport", export.kind().word)
    }

    fn clear_dead(&self, _: &ExportSpec) {}

    fn export_trouble(&self, _: &VolumeName, _: &ExportSpec) -> Option<String> {
        self.books().exports_fail.then(|| "its socket is gone".to_owned())
    }

    fn clients(&self, _: &VolumeName, _: &ExportSpec) -> u64 {
        self.books().clients
    }
}
