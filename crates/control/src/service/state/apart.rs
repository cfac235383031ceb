//! Questions to the data path and the machine that a device may delay: asked while other turns go on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::engine::{
    CacheLabel, CacheStart, Engine, JournalDeviceLabel, MemberLabel, OpenedArray, OpenedVolume,
    Replaced, SpareOwner,
};
use crate::error::ControlResult;
use crate::export_access::ExportAccess;
use crate::export_spec::ExportSpec;
use crate::name::{ArrayName, VolumeName};
use crate::protocol::Growth;
use crate::records::{RegisteredArray, VolumeRecord};
use crate::safety::{DriveIdentity, Examined, Role};
use crate::service::presence::stopped;
use crate::service::state::turn::Turn;
use crate::settings::Settings;
use crate::spec::DeviceSpec;

/// The engine, asked apart from the state of the service. Each answer is the one of the engine's method.
pub(in crate::service) struct Apart<'a, E>(&'a mut Turn<E>);

/// The engine of a turn, asked apart from the state of the service.
pub(in crate::service) fn apart<E: Engine>(turn: &mut Turn<E>) -> Apart<'_, E> {
    Apart(turn)
}

fn reading(device: &DeviceSpec) -> String {
    format!("reading {device}")
}

fn of_all<'a>(devices: impl Iterator<Item = &'a DeviceSpec>) -> String {
    devices.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl<E: Engine> Apart<'_, E> {
    pub(in crate::service) fn examine(self, path: &Path, role: Role) -> ControlResult<Examined> {
        let step = format!("opening and reading {}", path.display());
        self.0.wait_for(step, |engine, machine| engine.examine(machine, path, role))
    }

    pub(in crate::service) fn drive_identity(self, path: &Path) -> Option<DriveIdentity> {
        let step = format!("reading the identity of {}", path.display());
        self.0.wait_for(step, |engine, machine| engine.drive_identity(machine, path))
    }

    pub(in crate::service) fn find_drive(
        self,
        identity: &DriveIdentity,
        hint: &Path,
    ) -> Option<PathBuf> {
        let step = format!("looking for the drive {identity}");
        self.0.wait_for(step, |engine, machine| engine.find_drive(machine, identity, hint))
    }

    pub(in crate::service) fn drives_with(
        self,
        identity: &DriveIdentity,
        hint: &Path,
    ) -> Vec<PathBuf> {
        let step = format!("looking for the drive {identity}");
        self.0.wait_for(step, |engine, machine| engine.drives_with(machine, identity, hint))
    }

    pub(in crate::service) fn own_devices(self) -> Vec<PathBuf> {
        self.0.wait_for("reading all drives".to_owned(), |engine, machine| {
            engine.own_devices(machine)
        })
    }

    pub(in crate::service) fn own_files(self, folder: &Path) -> Vec<PathBuf> {
        let step = format!("reading the files of {}", folder.display());
        self.0.wait_for(step, |engine, machine| engine.own_files(machine, folder))
    }

    pub(in crate::service) fn around(self, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
        let step = "listing all drives".to_owned();
        self.0.wait_for(step, |engine, machine| engine.around(machine, folders))
    }

    pub(in crate::service) fn label_of(
        self,
        device: &DeviceSpec,
    ) -> ControlResult<Option<MemberLabel>> {
        self.0.wait_for(reading(device), |engine, _| engine.label_of(device))
    }

    pub(in crate::service) fn journal_label_of(
        self,
        device: &DeviceSpec,
    ) -> ControlResult<Option<JournalDeviceLabel>> {
        self.0.wait_for(reading(device), |engine, _| engine.journal_label_of(device))
    }

    pub(in crate::service) fn spare_label_of(
        self,
        device: &DeviceSpec,
    ) -> ControlResult<Option<SpareOwner>> {
        self.0.wait_for(reading(device), |engine, _| engine.spare_label_of(device))
    }

    pub(in crate::service) fn cache_label_of(
        self,
        device: &DeviceSpec,
    ) -> ControlResult<Option<CacheLabel>> {
        self.0.wait_for(reading(device), |engine, _| engine.cache_label_of(device))
    }

    pub(in crate::service) fn erase_cache_label(self, device: &DeviceSpec) -> ControlResult<()> {
        let step = format!("erasing the superblock of the cache on {device}");
        self.0.wait_for(step, |engine, _| engine.erase_cache_label(device))
    }

    pub(in crate::service) fn erase_label(self, device: &DeviceSpec) -> ControlResult<()> {
        let step = format!("erasing the label of {device}");
        self.0.wait_for(step, |engine, _| engine.erase_label(device))
    }

    /// Notes that the engine may move the arrays that a volume stands on, or that it has ended to. An array
    /// that a failed move has closed is not open any more.
    fn move_arrays(&mut self, record: &VolumeRecord, is_moving: bool) {
        for name in record.devices().filter_map(DeviceSpec::array) {
            let has_array = self.0.engine.has_array(name);
            let Some(live) = self.0.live_arrays.get_mut(name) else { continue };
            live.is_moving = is_moving;
            if !is_moving && !has_array && live.size_bytes.take().is_some() {
                live.error = format!(
                    "it could not be moved to the core of the volume {}; `voltier array start {name}` \
                     opens it again",
                    record.name
                );
            }
        }
    }

    pub(in crate::service) fn open(
        mut self,
        record: &VolumeRecord,
        start: CacheStart,
    ) -> ControlResult<OpenedVolume> {
        let step = format!("opening {}", of_all(record.devices()));
        self.move_arrays(record, true);
        let opened = self.0.wait_for(step, |engine, _| engine.open(record, start));
        self.move_arrays(record, false);
        opened
    }

    pub(in crate::service) fn close(self, name: &VolumeName) -> ControlResult<()> {
        let devices = self.0.registry.find(name).map(|record| of_all(record.devices()));
        let step = format!("closing {}", devices.unwrap_or_else(|| name.to_string()));
        let closed = self.0.wait_for(step, |engine, _| engine.close(name));
        match closed {
            Ok(()) => stopped::record_sequence(self.0, name),
            // The drives may have requests still: the next start is patient.
            Err(_) => self.0.crashed.add_volume(name),
        }
        closed
    }

    pub(in crate::service) fn attach(mut self, record: &VolumeRecord) -> ControlResult<u64> {
        let device = record.cache.as_ref().map(|cache| &cache.device);
        let step = format!("making a cache on {}", of_all(device.into_iter()));
        self.move_arrays(record, true);
        let attached = self.0.wait_for(step, |engine, _| engine.attach(record));
        self.move_arrays(record, false);
        attached
    }

    pub(in crate::service) fn quiesce(self, name: &VolumeName) -> ControlResult<()> {
        let step = format!("writing the last dirty lines of {name} back");
        self.0.wait_for(step, |engine, _| engine.quiesce(name))
    }

    pub(in crate::service) fn detach(
        self,
        name: &VolumeName,
        write_back: bool,
    ) -> ControlResult<()> {
        let step = format!("taking the cache of {name} away");
        self.0.wait_for(step, |engine, _| engine.detach(name, write_back))
    }

    pub(in crate::service) fn configure(
        self,
        name: &VolumeName,
        settings: &Settings,
    ) -> ControlResult<()> {
        let step = format!("changing the settings of {name}");
        self.0.wait_for(step, |engine, _| engine.configure(name, settings))
    }

    pub(in crate::service) fn export(
        self,
        name: &VolumeName,
        export: &ExportSpec,
        access: Option<&ExportAccess>,
    ) -> ControlResult<ExportSpec> {
        let step = format!("opening {}", export.uri(name));
        self.0.wait_for(step, |engine, _| engine.export(name, export, access))
    }

    pub(in crate::service) fn unexport(
        self,
        name: &VolumeName,
        export: &ExportSpec,
        cut_off: bool,
    ) -> ControlResult<()> {
        let step = format!("closing {}", export.uri(name));
        self.0.wait_for(step, |engine, _| engine.unexport(name, export, cut_off))
    }

    pub(in crate::service) fn clear_dead(self, export: &ExportSpec) {
        self.0.wait_for(String::new(), |engine, _| engine.clear_dead(export));
    }

    pub(in crate::service) fn create_array(
        self,
        record: &RegisteredArray,
    ) -> ControlResult<OpenedArray> {
        let step = format!("writing to {}", of_all(record.devices()));
        self.0.wait_for(step, |engine, _| engine.create_array(record))
    }

    pub(in crate::service) fn open_array(
        self,
        record: &RegisteredArray,
        devices: &[DeviceSpec],
        force: bool,
    ) -> ControlResult<OpenedArray> {
        let step = format!("opening {}", of_all(devices.iter()));
        self.0.wait_for(step, |engine, _| engine.open_array(record, devices, force))
    }

    pub(in crate::service) fn close_array(self, name: &ArrayName) -> ControlResult<()> {
        let devices = self.0.registry.find_array(name).map(|record| of_all(record.devices()));
        let step = format!("closing {}", devices.unwrap_or_else(|| name.to_string()));
        let closed = self.0.wait_for(step, |engine, _| engine.close_array(name));
        match &closed {
            Ok(events) => stopped::record_events(self.0, name, *events),
            Err(_) => self.0.crashed.add_array(name),
        }
        closed.map(drop)
    }

    pub(in crate::service) fn array_head(self, name: &ArrayName) -> ControlResult<Vec<u8>> {
        let step = format!("reading array:{name}");
        self.0.wait_for(step, |engine, _| engine.array_head(name))
    }

    pub(in crate::service) fn fail_member(
        self,
        name: &ArrayName,
        place: u32,
    ) -> ControlResult<bool> {
        let step = format!("taking member {place} out of service");
        self.0.wait_for(step, |engine, _| engine.fail_member(name, place))
    }

    pub(in crate::service) fn replace_member(
        self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<Replaced> {
        let step = format!("writing to {device}");
        self.0.wait_for(step, |engine, _| engine.replace_member(name, place, device))
    }

    pub(in crate::service) fn restore_member(
        self,
        name: &ArrayName,
        place: u32,
        device: &DeviceSpec,
    ) -> ControlResult<bool> {
        let step = format!("writing to {device}");
        self.0.wait_for(step, |engine, _| engine.restore_member(name, place, device))
    }

    pub(in crate::service) fn add_spare(
        self,
        name: &ArrayName,
        device: &DeviceSpec,
    ) -> ControlResult<()> {
        let step = format!("opening {device}");
        self.0.wait_for(step, |engine, _| engine.add_spare(name, device))
    }

    pub(in crate::service) fn check_spare(
        self,
        name: &ArrayName,
        device: &DeviceSpec,
    ) -> ControlResult<()> {
        let step = format!("opening {device}");
        self.0.wait_for(step, |engine, _| engine.check_spare(name, device))
    }

    pub(in crate::service) fn grow_array(
        self,
        name: &ArrayName,
        by: Growth,
        devices: &[DeviceSpec],
    ) -> ControlResult<()> {
        let step = format!("writing to {}", of_all(devices.iter()));
        self.0.wait_for(step, |engine, _| engine.grow_array(name, by, devices))
    }

    pub(in crate::service) fn set_journal(
        self,
        name: &ArrayName,
        device: Option<&DeviceSpec>,
    ) -> ControlResult<()> {
        let to = device.map_or_else(|| "the members".to_owned(), ToString::to_string);
        let step = format!("moving the journal to {to}");
        self.0.wait_for(step, |engine, _| engine.set_journal(name, device))
    }
}
