//! The question of the host's device manager: whether a drive is Voltier's. The rules in `packaging/udev`
//! then keep auto-mount, LVM, md and others off the drive.

use std::path::Path;

use crate::name::VolumeName;
use crate::records::VolumeRecord;
use crate::registry::Registry;
use crate::safety::{self, DeviceId, DriveIdentity, Machine, users};
use crate::spec::DeviceSpec;
use crate::state_dir::StateDir;

/// The part that a block device has. `origin` and `ssd` are drives of recorded volumes and their partitions;
/// `labelled` is a device that says by itself that it is ours. No daemon is asked.
///
/// A state folder that cannot be read has no volumes: it may be mounted later.
pub fn part_of(state: &StateDir, device: &Path) -> Option<&'static str> {
    part_on(&Machine::real(), state, device)
}

/// The volume whose block device this is, or a partition of it. No daemon is asked.
pub fn volume_at(state: &StateDir, device: &Path) -> Option<VolumeName> {
    let behind = users::file_behind(&Machine::real(), device);
    let name: VolumeName = behind.file_stem()?.to_str()?.parse().ok()?;
    let file = state.device_file(&name);
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    (behind.parent() == folder.as_deref() && behind.file_name() == file.file_name()).then_some(name)
}

fn part_on(machine: &Machine, state: &StateDir, device: &Path) -> Option<&'static str> {
    let registry = Registry::load(state.path()).ok();
    let volumes = registry.iter().flat_map(|registry| registry.volumes());
    let drive = Drive {
        id: DeviceId::of_path(machine, device)?,
        identity: DriveIdentity::of_path(machine, device),
    };
    let part = |volume: &VolumeRecord| {
        let ssd = volume.cache.as_ref();
        if drive.is_on(machine, &volume.origin, volume.origin_identity.as_ref()) {
            return Some("origin");
        }
        ssd.is_some_and(|ssd| drive.is_on(machine, &ssd.device, ssd.identity.as_ref()))
            .then_some("ssd")
    };
    let labelled = || safety::says_it_is_ours(device).then_some("labelled");
    volumes.into_iter().find_map(part).or_else(labelled)
}

struct Drive {
    id: DeviceId,
    identity: Option<DriveIdentity>,
}

impl Drive {
    /// Whether the drive is a recorded device, or a partition of it.
    fn is_on(&self, machine: &Machine, spec: &DeviceSpec, known: Option<&DriveIdentity>) -> bool {
        match known.filter(|known| known.is_known()) {
            Some(known) => self.identity.as_ref().is_some_and(|own| own.is_on(known)),
            None => {
                let recorded = spec.path().and_then(|path| DeviceId::of_path(machine, path));
                recorded.is_some_and(|recorded| self.id.lies_on(&recorded))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use crate::records::{Desired, Identity};

    #[test]
    fn an_origin_is_known_by_its_mark_and_by_its_path_and_a_copy_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(&dir.path().join("state")).unwrap();
        fs::create_dir(state.path()).unwrap();
        let machine = Machine::real();
        let [disk, other] = ["disk", "other"].map(|name| {
            let path = dir.path().join(name);
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            path
        });
        assert_eq!(part_on(&machine, &state, &disk), None, "no registry yet");
        let mark = DriveIdentity::of_path(&machine, &disk);
        for origin_identity in [mark, None] {
            let mut registry = Registry::load(state.path()).unwrap();
            let record = VolumeRecord {
                name: "v".parse().unwrap(),
                uuid: Identity([1; 16]),
                size_bytes: 1 << 20,
                origin: disk.to_str().unwrap().parse().unwrap(),
                origin_identity,
                cache: None,
                exports: Vec::new(),
                export_access: std::collections::BTreeMap::new(),
                desired: Desired::Serving,
            };
            registry.put(record).unwrap();
            assert_eq!(part_on(&machine, &state, &disk), Some("origin"));
            assert_eq!(part_on(&machine, &state, &other), None);
        }
        fs::write(&other, voltier_array::SUPERBLOCK_MAGIC).unwrap();
        assert_eq!(part_on(&machine, &state, &other), Some("labelled"));
    }
}
