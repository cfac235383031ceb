//! An engine that only keeps books, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use voltier_array::{MemberState, ScrubFound};
use voltier_control::engine::{
    ArrayDevices, ArrayNews, CacheHealth, CacheLabel, CacheStart, Drain, LabelledPlace,
    MemberLabel, OpenedArray, OpenedVolume, Passing, Replaced, SpareOwner,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::safety::{self, DriveIdentity, Examined, Role};
use voltier_control::{
    ArrayDetail, ArrayLevel, ArrayName, ArraySettings, ArrayState, ByteRange, ControlError,
    ControlResult, DeviceSpec, DeviceState, ExportAccess, ExportSpec, Identity, REGISTRY_FILE,
    RegisteredArray, VolumeName, VolumeRecord, VolumeStatus,
};
use voltier_sim::FakeEngine;

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
    pub(super) is_scrubbed: bool,
    /// A scrub has ended, and found so many blocks that did not match.
    pub(super) scrubbed: Option<u64>,
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
}

pub(super) fn inode_of(device: &DeviceSpec) -> u64 {
    device.path().unwrap().metadata().map_or(0, |meta| meta.ino())
}

impl FakeEngine for BookEngine {
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

    fn examine(&self, path: &Path, role: Role) -> ControlResult<Examined> {
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
        safety::examine(self.machine(), path, role)
    }

    fn is_letting_go(&self, path: &Path) -> bool {
        let books = self.books_after_hang(&format!("letting go {}", path.display()));
        books.let_go.iter().any(|own| own == path)
    }

    fn own_devices(&self) -> Vec<PathBuf> {
        self.books().own_devices.clone()
    }

    fn own_files(&self, folder: &Path) -> Vec<PathBuf> {
        let is_in = |path: &&PathBuf| path.parent() == Some(folder) && path.is_file();
        let mut files: Vec<PathBuf> = self.books().labels.keys().filter(is_in).cloned().collect();
        let inodes: Vec<u64> = self.books().spare_labels.keys().copied().collect();
        let all = safety::around(self.machine(), &BTreeSet::from([folder.to_owned()]));
        files.extend(all.into_iter().filter(|(_, inode)| inodes.contains(inode)).map(|it| it.0));
        files
    }

    fn around(&self, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
        let mut around = safety::around(self.machine(), folders);
        around.extend(self.books().own_devices.iter().map(|path| (path.clone(), 0)));
        around
    }

    fn is_block_device(&self, _path: &Path) -> bool {
        self.books().are_unmarked
    }

    fn drive_identity(&self, path: &Path) -> Option<DriveIdentity> {
        if self.books().are_unmarked { None } else { DriveIdentity::of_path(self.machine(), path) }
    }

    fn cache_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<CacheLabel>> {
        self.refuse_newer(device)?;
        Ok(self.books().cache_labels.get(&device.to_string()).cloned())
    }

    fn erase_cache_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        self.books().cache_labels.remove(&device.to_string());
        self.call("erase", "cache label")
    }

    fn label_of(&self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        self.refuse_newer(device)?;
        let (books, Some(path)) = (self.books(), device.path()) else { return Ok(None) };
        match books.unlabelled.iter().any(|own| own == path) {
            true => Err(ControlError::failed(format!("reading {device}: input/output error"))),
            false => Ok(books.labels.get(path).cloned()),
        }
    }

    fn spare_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<SpareOwner>> {
        Ok(self.books().spare_labels.get(&inode_of(device)).cloned())
    }

    fn label_spare(
        &self,
        device: &DeviceSpec,
        label: &SpareOwner,
        wipe: bool,
    ) -> ControlResult<()> {
        self.call("label", &label.name)?;
        if let Some(state) = self.books().blocks_at_label.take() {
            fs::create_dir(state.join(format!("{REGISTRY_FILE}.new"))).unwrap();
        }
        if wipe {
            let file = File::options().write(true).open(device.path().unwrap()).unwrap();
            file.write_all_at(&[0; 128 << 10], 0).unwrap();
        }
        self.books().spare_labels.insert(inode_of(device), label.clone());
        Ok(())
    }

    fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        self.books().labels.remove(device.path().unwrap());
        self.books().spare_labels.remove(&inode_of(device));
        self.call("erase", "label")
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

    fn close(&self, name: &VolumeName) -> ControlResult<()> {
        self.books().open.remove(name);
        self.call("close", name.as_str())
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

    fn passing(&self, _: &VolumeName) -> Option<Passing> {
        self.books().passing.clone()
    }

    fn passing_is_recorded(&self, name: &VolumeName, number: u64) {
        self.books().passing = None;
        self.books().calls.push(format!("passes {name} {number}"));
    }

    fn attach(&self, record: &VolumeRecord) -> ControlResult<u64> {
        let mode = record.cache.as_ref().unwrap().settings.mode;
        self.call("attach", mode.to_string().as_str())?;
        self.books().open.insert(record.name.clone(), true);
        Ok(1)
    }

    fn resume(&self, name: &VolumeName) {
        self.books().calls.push(format!("resume {name}"));
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

    fn export_trouble(&self, _: &VolumeName, _: &ExportSpec) -> Option<String> {
        self.books().exports_fail.then(|| "its socket is gone".to_owned())
    }

    fn clients(&self, _: &VolumeName, _: &ExportSpec) -> u64 {
        self.books().clients
    }

    fn has_array(&self, name: &ArrayName) -> bool {
        self.books().arrays.contains_key(name)
    }

    fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray> {
        self.call("make", record.name.as_str())?;
        let in_service = |place: usize| LabelledPlace {
            group: 0,
            state: MemberState::InService,
            member: Identity([place as u8; 16]),
        };
        let label = MemberLabel {
            array: record.uuid,
            name: record.name.to_string(),
            level: record.level,
            chunk_bytes: record.chunk_bytes,
            consistency: record.consistency,
            integrity: voltier_array::Integrity::None,
            member: Identity([0; 16]),
            place: 0,
            event: 1,
            redundancy: 1,
            places: (0..record.members.len()).map(in_service).collect(),
            has_journal_device: record.journal.is_some(),
        };
        let mut books = self.books();
        for (place, device) in record.devices().enumerate() {
            let member = Identity([place as u8; 16]);
            let label = MemberLabel { member, place: place as u32, ..label.clone() };
            books.labels.extend(device.path().map(|path| (path.to_owned(), label)));
        }
        let members = record.members.clone();
        let level = Some(record.level);
        let array = BookArray { level, members: members.clone(), ..BookArray::default() };
        books.arrays.insert(record.name.clone(), array);
        Ok(opened(record, members))
    }

    fn open_array(
        &self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let how = if force { " by force" } else { "" };
        self.call("assemble", &format!("{} of {}{how}", record.name, devices.len()))?;
        for device in devices {
            match self.refuse_newer(device) {
                Err(error) if error.is_unsupported_label(record.uuid) => return Err(error),
                _ => {}
            }
        }
        // A replaced member has no label any more: it is left out.
        let labels = self.books().labels.clone();
        let is_member = |device: &&DeviceSpec| match device.path() {
            _ if record.journal.as_ref() == Some(*device) => false,
            Some(path) => labels.get(path).is_some_and(|label| label.array == record.uuid),
            None => true,
        };
        let devices: Vec<DeviceSpec> = devices.iter().filter(is_member).cloned().collect();
        let label_of = |device: &DeviceSpec| labels.get(device.path()?);
        let labelled = devices.iter().filter_map(label_of).map(|label| label.places.len()).max();
        let count = record.members.len().max(3).max(labelled.unwrap_or(0));
        let missing = count.saturating_sub(devices.len());
        let redundancy = devices.iter().find_map(label_of).map_or(1, |label| label.redundancy);
        if missing > redundancy as usize {
            return Err(ControlError::failed(format!("{missing} members are missing")));
        }
        // Devices go where their labels say; those without one where they were, others where there is room.
        let is_at = |at: usize, it: &DeviceSpec| match label_of(it) {
            Some(label) => label.place as usize == at,
            None => record.members.get(at).and_then(Option::as_ref) == Some(it),
        };
        let event_of = |it: &&DeviceSpec| label_of(it).map(|label| label.event);
        let here = |at| devices.iter().filter(|it| is_at(at, it)).max_by_key(event_of).cloned();
        let mut places: Vec<Option<DeviceSpec>> = (0..count).map(here).collect();
        for device in &devices {
            if label_of(device).is_none() && !places.contains(&Some(device.clone())) {
                *places.iter_mut().find(|place| place.is_none()).unwrap() = Some(device.clone());
            }
        }
        let level = Some(record.level);
        let empty = places.iter().enumerate().filter(|(_, place)| place.is_none());
        let lost = empty.map(|(place, _)| place as u32).collect();
        let array = BookArray { level, members: places.clone(), lost, ..BookArray::default() };
        self.books().arrays.insert(record.name.clone(), array);
        Ok(opened(record, places))
    }

    fn close_array(&self, name: &ArrayName) -> ControlResult<u64> {
        let was_open = self.books().arrays.remove(name).is_some();
        assert!(was_open, "{name} is closed and was not open");
        self.call("stop", name.as_str()).map(|()| 0)
    }

    fn take_array_fault(&self, name: &ArrayName) -> Option<String> {
        let mut books = self.books();
        let why = if books.arrays.contains_key(name) { books.array_fault.take() } else { None };
        if why.is_some() {
            books.arrays.remove(name);
        }
        why
    }

    fn array_head(&self, _: &ArrayName) -> ControlResult<Vec<u8>> {
        Ok(self.books().head.clone())
    }

    fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices> {
        let mut books = self.books();
        let scrubbed = books.arrays.get_mut(name).and_then(|array| array.scrubbed.take());
        let array = books.arrays.get(name).filter(|_| !books.are_arrays_late)?;
        let (members, spares) = (array.members.clone(), array.spares.clone());
        let found = |mismatched_blocks| ScrubFound { mismatched_blocks, ..ScrubFound::default() };
        let news = scrubbed.map(|blocks| ArrayNews {
            line: "a scrub has ended".to_owned(),
            is_warning: false,
            event: None,
            scrubbed: Some(found(blocks)),
        });
        Some(ArrayDevices {
            news: news.into_iter().collect(),
            spares_wanted: array.lost.len().saturating_sub(spares.len()),
            spares,
            incoming: array.incoming.clone(),
            events: 1 + books.array_changes,
            ..ArrayDevices::whole(array.level?, ARRAY_BYTES, members)
        })
    }

    fn array_recorded(&self, name: &ArrayName, events: u64) {
        self.books().recorded_events.insert(name.clone(), events);
    }

    fn fill_array_status(&self, name: &ArrayName, status: &mut ArrayDetail) {
        if !self.books().arrays[name].lost.is_empty() {
            status.state = ArrayState::Degraded;
        }
        status.scrub.running = self.books().arrays[name].is_scrubbed;
    }

    fn start_scrub(&self, name: &ArrayName, repair: Repair) -> ControlResult<()> {
        self.call("scrub", &format!("{name} {repair:?}"))?;
        self.books().arrays.get_mut(name).unwrap().is_scrubbed = true;
        Ok(())
    }

    fn fail_member(&self, name: &ArrayName, place: u32) -> ControlResult<bool> {
        self.call("fail", &format!("{name} {place}"))?;
        self.books().arrays.get_mut(name).unwrap().lost.push(place);
        Ok(true)
    }

    fn replace_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        self.call("replace", &format!("{name} {place}"))?;
        let mut books = self.books();
        let Books { arrays, labels, .. } = &mut *books;
        let array = arrays.get_mut(name).unwrap();
        if !array.lost.contains(&place) {
            array.incoming.push(device.clone());
            return Ok(Replaced::Copy);
        }
        array.lost.retain(|lost| *lost != place);
        let old = array.members[place as usize].replace(device.clone());
        let label = old.and_then(|old| labels.remove(old.path()?));
        labels.extend(device.path().map(Path::to_owned).zip(label));
        Ok(Replaced::Rebuild)
    }

    fn restore_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool> {
        self.call("take back", &format!("{name} {place}"))?;
        let mut books = self.books();
        let is_used = books.used_elsewhere;
        let array = books.arrays.get_mut(name).unwrap();
        if is_used || !array.lost.contains(&place) {
            return Ok(false);
        }
        array.lost.retain(|lost| *lost != place);
        array.members[place as usize] = Some(device.clone());
        Ok(true)
    }

    fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        self.call("spare", name.as_str())?;
        let mut books = self.books();
        let Books { arrays, labels, spare_labels, .. } = &mut *books;
        let array = arrays.get_mut(name).unwrap();
        match array.lost.pop() {
            None => array.spares.push(device.clone()),
            Some(place) => {
                spare_labels.remove(&inode_of(device));
                let place = &mut array.members[place as usize];
                let label = place.as_ref().and_then(|old| labels.remove(old.path()?));
                *place = Some(device.clone());
                labels.extend(device.path().map(Path::to_owned).zip(label));
            }
        }
        drop(books);
        self.call("spare is taken by", name.as_str())
    }

    fn remove_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<bool> {
        self.call("take spare", name.as_str())?;
        let mut books = self.books();
        let array = books.arrays.get_mut(name).unwrap();
        let before = array.spares.len();
        array.spares.retain(|spare| spare != device);
        Ok(array.spares.len() < before)
    }

    fn check_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        let books = self.books();
        let is_small = device.path().is_some_and(|path| books.small.iter().any(|it| it == path));
        match is_small {
            false => Ok(()),
            true => Err(ControlError::failed(format!("{device} is too small for {name}"))),
        }
    }

    fn grow_array(
        &self,
        name: &ArrayName,
        by: Growth,
        devices: &[DeviceSpec],
    ) -> ControlResult<()> {
        self.call("grow", &format!("{name} by {}", devices.len()))?;
        let mut books = self.0.lock().unwrap();
        let array = books.arrays.get_mut(name).unwrap();
        array.members.extend(devices.iter().cloned().map(Some));
        if by != Growth::Capacity {
            array.level = Some("6".parse().unwrap());
        }
        Ok(())
    }

    fn set_journal(&self, name: &ArrayName, device: Option<&DeviceSpec>) -> ControlResult<()> {
        let on = device.map_or_else(|| "members".to_owned(), |_| "a device".to_owned());
        self.call("journal", &format!("{name} on {on}"))
    }

    fn configure_array(&self, name: &ArrayName, settings: &ArraySettings) {
        let priority = settings.rebuild.priority.name();
        self.books().calls.push(format!("pace {name} {priority}"));
    }
}

fn opened(record: &RegisteredArray, members: Vec<Option<DeviceSpec>>) -> OpenedArray {
    OpenedArray {
        size_bytes: ARRAY_BYTES,
        level: record.level,
        integrity: record.integrity,
        events: 1,
        members,
        journal: record.journal.clone(),
        is_journal_lost: false,
        left_out: Vec::new(),
    }
}
