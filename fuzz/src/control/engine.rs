//! A data path that only keeps books, and fails when it is told to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use voltier_control::engine::{
    ArrayDevices, CacheHealth, CacheStart, Drain, MemberLabel, OpenedArray, OpenedVolume, Replaced,
    SpareOwner,
};
use voltier_control::protocol::{Growth, Repair};
use voltier_control::{
    ArrayName, ArraySettings, ControlError, ControlResult, DeviceSpec, ExportAccess, ExportSpec,
    Identity, RegisteredArray, Settings, VolumeName, VolumeRecord, VolumeStatus,
};
use voltier_sim::FakeEngine;

/// Size of every array, in bytes.
const ARRAY_BYTES: u64 = 1 << 20;

/// Orders to the engine from outside.
#[derive(Default)]
pub(crate) struct Orders {
    /// Number of the call that fails next, counted down; `None` for none.
    pub(crate) fails_in: Option<u8>,
    pub(crate) dirty: u64,
    pub(crate) ssd_failed: bool,
    pub(crate) clients: u64,
    pub(crate) drain_fails: bool,
}

#[derive(Default)]
struct Open {
    has_cache: bool,
    exports: BTreeSet<String>,
}

/// The engine; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct BookEngine {
    orders: Arc<Mutex<Orders>>,
    open: Arc<Mutex<BTreeMap<VolumeName, Open>>>,
    arrays: Arc<Mutex<BTreeMap<ArrayName, ArrayDevices>>>,
    /// The labels that are written on devices, by the devices' names.
    labels: Arc<Mutex<BTreeMap<String, MemberLabel>>>,
    spare_labels: Arc<Mutex<BTreeMap<String, SpareOwner>>>,
}

fn place(export: &ExportSpec) -> String {
    export.uri(&"export".parse().expect("a name"))
}

impl BookEngine {
    pub(crate) fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().expect("no call panics")
    }

    fn volume<T>(&self, name: &VolumeName, does: impl FnOnce(&mut Open) -> T) -> T {
        let mut open = self.open.lock().expect("no call panics");
        does(open.get_mut(name).unwrap_or_else(|| panic!("{name} is not open")))
    }

    fn array(&self, name: &ArrayName) {
        let is_open = self.arrays.lock().expect("no call panics").contains_key(name);
        assert!(is_open, "{name} is not open");
    }

    fn opened(&self, record: &RegisteredArray, members: Vec<Option<DeviceSpec>>) -> OpenedArray {
        let (name, level) = (&record.name, record.level);
        let devices = ArrayDevices::whole(level, ARRAY_BYTES, members.clone());
        let before = self.arrays.lock().expect("no call panics").insert(name.clone(), devices);
        assert!(before.is_none(), "{name} is opened twice");
        OpenedArray {
            size_bytes: ARRAY_BYTES,
            level,
            integrity: record.integrity,
            events: 1,
            members,
            journal: None,
            is_journal_lost: false,
            left_out: Vec::new(),
        }
    }

    pub(crate) fn open_arrays(&self) -> BTreeSet<ArrayName> {
        self.arrays.lock().expect("no call panics").keys().cloned().collect()
    }

    fn stand(&self, name: &ArrayName, changes: impl FnOnce(&mut ArrayDevices)) {
        let mut arrays = self.arrays.lock().expect("no call panics");
        changes(arrays.get_mut(name).expect("it is open"));
    }

    /// Nothing is open after a stop.
    pub(crate) fn is_at_rest(&self) {
        assert_eq!(self.open_names(), BTreeSet::new(), "open after a stop");
        assert_eq!(self.open_arrays(), BTreeSet::new(), "open after a stop");
    }

    pub(crate) fn open_names(&self) -> BTreeSet<VolumeName> {
        self.open.lock().expect("no call panics").keys().cloned().collect()
    }
}

impl FakeEngine for BookEngine {
    fn call(&self, _: &str, _: &str) -> ControlResult<()> {
        let mut orders = self.orders();
        match orders.fails_in {
            Some(0) => {
                orders.fails_in = None;
                Err(ControlError::failed("the engine was told to fail"))
            }
            Some(left) => {
                orders.fails_in = Some(left - 1);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn size_of(&self, device: &DeviceSpec) -> ControlResult<u64> {
        self.call("", "")?;
        Ok(match device {
            DeviceSpec::Memory(bytes) => *bytes,
            _ => u64::MAX,
        })
    }

    fn own_devices(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn label_of(&self, device: &DeviceSpec) -> ControlResult<Option<MemberLabel>> {
        self.call("", "")?;
        Ok(self.labels.lock().expect("no call panics").get(&device.to_string()).cloned())
    }

    fn spare_label_of(&self, device: &DeviceSpec) -> ControlResult<Option<SpareOwner>> {
        self.call("", "")?;
        Ok(self.spare_labels.lock().expect("no call panics").get(&device.to_string()).cloned())
    }

    fn label_spare(&self, device: &DeviceSpec, label: &SpareOwner, _: bool) -> ControlResult<()> {
        self.call("", "")?;
        let mut labels = self.spare_labels.lock().expect("no call panics");
        labels.insert(device.to_string(), label.clone());
        Ok(())
    }

    fn erase_label(&self, device: &DeviceSpec) -> ControlResult<()> {
        self.call("", "")?;
        self.labels.lock().expect("no call panics").remove(&device.to_string());
        self.spare_labels.lock().expect("no call panics").remove(&device.to_string());
        Ok(())
    }

    fn open(&self, record: &VolumeRecord, _: CacheStart) -> ControlResult<OpenedVolume> {
        self.call("", "")?;
        let cache = record.cache.as_ref().filter(|cache| cache.failed.is_none());
        let ssd = cache.map(|cache| &cache.device);
        [Some(&record.origin), ssd]
            .into_iter()
            .flatten()
            .filter_map(DeviceSpec::array)
            .for_each(|array| self.array(array));
        let open = Open { has_cache: cache.is_some(), exports: BTreeSet::new() };
        let before = self.open.lock().expect("no call panics").insert(record.name.clone(), open);
        assert!(before.is_none(), "{} is opened twice", record.name);
        let generation = cache.map_or(0, |cache| cache.generation.saturating_add(1));
        let size_bytes = record.size_bytes;
        Ok(OpenedVolume { size_bytes, generation, dirty_lines: 0, evacuates: false })
    }

    fn close(&self, name: &VolumeName) -> ControlResult<()> {
        let closed = self.open.lock().expect("no call panics").remove(name);
        assert!(closed.is_some(), "{name} is closed and was not open");
        self.call("", "")
    }

    fn fill_status(&self, name: &VolumeName, status: &mut VolumeStatus) {
        self.volume(name, |_| ());
        status.lines.dirty = self.orders().dirty;
    }

    fn attach(&self, record: &VolumeRecord) -> ControlResult<u64> {
        self.call("", "")?;
        self.volume(&record.name, |open| {
            assert!(!open.has_cache, "{} has a cache", record.name);
            open.has_cache = true;
        });
        Ok(1)
    }

    fn quiesce(&self, name: &VolumeName) -> ControlResult<()> {
        let has_cache = self.volume(name, |open| open.has_cache);
        if !has_cache {
            return Err(ControlError::failed(format!("{name} has no cache")));
        }
        self.call("", "")
    }

    fn resume(&self, name: &VolumeName) {
        self.volume(name, |_| ());
    }

    fn detach(&self, name: &VolumeName, _: bool) -> ControlResult<()> {
        let has_cache = self.volume(name, |open| open.has_cache);
        if !has_cache {
            return Err(ControlError::failed(format!("{name} has no cache")));
        }
        self.call("", "")?;
        self.volume(name, |open| open.has_cache = false);
        Ok(())
    }

    fn configure(&self, name: &VolumeName, settings: &Settings) -> ControlResult<()> {
        self.volume(name, |_| ());
        settings.for_cache().check().expect("checked before");
        self.call("", "")
    }

    fn start_drain(&self, name: &VolumeName) -> ControlResult<()> {
        self.volume(name, |_| ());
        self.call("", "")
    }

    fn drain(&self, name: &VolumeName) -> Drain {
        self.volume(name, |_| ());
        let orders = self.orders();
        if orders.drain_fails {
            return Drain::Failed("the origin fails".to_owned());
        }
        if orders.dirty == 0 { Drain::Done } else { Drain::Running }
    }

    fn health(&self, _: &VolumeName) -> CacheHealth {
        let orders = self.orders();
        CacheHealth {
            dirty_lines: Some(orders.dirty),
            ssd_failed: orders.ssd_failed,
            ssd_is_gone: false,
        }
    }

    fn export(
        &self,
        name: &VolumeName,
        export: &ExportSpec,
        _: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec> {
        self.call("", "")?;
        let fresh = self.volume(name, |open| open.exports.insert(place(export)));
        assert!(fresh, "{name}: {} is opened twice", place(export));
        Ok(export.clone())
    }

    fn unexport(&self, name: &VolumeName, export: &ExportSpec, _: bool) -> ControlResult<()> {
        self.call("", "")?;
        let was_open = self.volume(name, |open| open.exports.remove(&place(export)));
        assert!(was_open, "{name}: {} is closed and was not open", place(export));
        Ok(())
    }

    fn clients(&self, _: &VolumeName, _: &ExportSpec) -> u64 {
        self.orders().clients
    }

    fn create_array(&self, record: &RegisteredArray) -> ControlResult<OpenedArray> {
        self.call("", "")?;
        let label = MemberLabel {
            array: record.uuid,
            name: record.name.to_string(),
            level: record.level,
            chunk_bytes: record.chunk_bytes,
            consistency: record.consistency,
            integrity: record.integrity,
            member: Identity([0; 16]),
            place: 0,
            event: 1,
            redundancy: 0,
            places: Vec::new(),
            has_journal_device: record.journal.is_some(),
        };
        let mut labels = self.labels.lock().expect("no call panics");
        for (place, member) in (0..).zip(record.devices()) {
            let own = Identity(u128::from(place).to_le_bytes());
            let label = MemberLabel { member: own, place, ..label.clone() };
            labels.insert(member.to_string(), label);
        }
        Ok(self.opened(record, record.members.clone()))
    }

    fn open_array(
        &self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        self.call("", "")?;
        let known = record.members.len();
        if devices.len() < known.max(1) && !force {
            return Err(ControlError::failed("members are missing"));
        }
        // A level of that many members, as it was made.
        let members = devices.iter().cloned().map(Some).collect::<Vec<_>>();
        record.level.check(members.len(), record.chunk_bytes)?;
        Ok(self.opened(record, members))
    }

    fn close_array(&self, name: &ArrayName) -> ControlResult<u64> {
        self.array(name);
        self.arrays.lock().expect("no call panics").remove(name);
        self.call("", "").map(|()| 0)
    }

    fn array_head(&self, name: &ArrayName) -> ControlResult<Vec<u8>> {
        self.array(name);
        self.call("", "").map(|()| vec![0; 4096])
    }

    fn array_devices(&self, name: &ArrayName) -> Option<ArrayDevices> {
        self.arrays.lock().expect("no call panics").get(name).cloned()
    }

    fn fail_member(&self, name: &ArrayName, _: u32) -> ControlResult<bool> {
        self.array(name);
        self.call("", "").map(|()| true)
    }

    fn replace_member(
        &self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        self.array(name);
        self.call("", "")?;
        self.stand(name, |devices| devices.members[place as usize] = Some(device.clone()));
        Ok(Replaced::Rebuild)
    }

    fn restore_member(&self, name: &ArrayName, _: u32, _: &DeviceSpec) -> ControlResult<bool> {
        self.array(name);
        self.call("", "").map(|()| false)
    }

    fn add_spare(&self, name: &ArrayName, device: &DeviceSpec) -> ControlResult<()> {
        self.array(name);
        self.call("", "")?;
        self.stand(name, |devices| devices.spares.push(device.clone()));
        Ok(())
    }

    fn grow_array(
        &self,
        name: &ArrayName,
        by: Growth,
        devices: &[DeviceSpec],
    ) -> ControlResult<()> {
        self.array(name);
        self.call("", "")?;
        let is_row = by != Growth::Capacity;
        let five = self.array_devices(name).filter(|now| is_row && now.level.to_string() == "5");
        let ([device], Some(_)) = (devices, five) else {
            return Err(ControlError::failed("it does not grow"));
        };
        let six = "6".parse().expect("a level");
        self.stand(name, |now| {
            now.level = six;
            now.members.push(Some(device.clone()));
        });
        Ok(())
    }

    fn start_rebuild(&self, name: &ArrayName) -> ControlResult<()> {
        self.array(name);
        self.call("", "")
    }

    fn start_scrub(&self, name: &ArrayName, _: Repair) -> ControlResult<()> {
        self.array(name);
        self.call("", "")
    }

    fn configure_array(&self, name: &ArrayName, _: &ArraySettings) {
        self.array(name);
    }

    fn check_spare(&self, _: &ArrayName, _: &DeviceSpec) -> ControlResult<()> {
        Err(ControlError::failed("this engine checks no spares"))
    }

    fn set_journal(&self, _: &ArrayName, _: Option<&DeviceSpec>) -> ControlResult<()> {
        Err(ControlError::failed("this engine has no journals"))
    }
}
