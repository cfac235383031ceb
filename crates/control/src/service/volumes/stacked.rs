//! Volumes whose devices are exports of other volumes of the same daemon: the file of an export, or a loop
//! device over one. The upper volume stops first: what it writes at its end goes through the lower one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::name::VolumeName;
use crate::records::VolumeRecord;
use crate::safety::{Machine, users};
use crate::service::state::State;

/// The paths of a volume's devices, also of the members of its arrays.
fn paths_of<'a>(state: &'a State, record: &'a VolumeRecord) -> impl Iterator<Item = &'a Path> {
    let arrays = record.devices().filter_map(|device| device.array());
    let members = arrays.filter_map(|name| state.registry.find_array(name));
    let members = members.flat_map(|array| array.devices());
    record.devices().chain(members).filter_map(|device| device.path())
}

/// The open volumes that stand on an exported file, and the paths of the devices with which they do.
pub(in crate::service) fn users_of(
    state: &State,
    machine: &Machine,
    file: &Path,
) -> (Vec<VolumeName>, BTreeSet<PathBuf>) {
    let (mut names, mut paths) = (Vec::new(), BTreeSet::new());
    for record in state.registry.volumes().iter().filter(|record| state.is_open(&record.name)) {
        let before = paths.len();
        let on_it =
            paths_of(state, record).filter(|path| users::file_behind(machine, path) == file);
        paths.extend(on_it.map(Path::to_owned));
        if paths.len() > before {
            names.push(record.name.clone());
        }
    }
    (names, paths)
}

/// Whether a volume stands on an export of another one.
pub(in crate::service) fn stands_on(
    state: &State,
    machine: &Machine,
    upper: &VolumeName,
    lower: &VolumeName,
) -> bool {
    let (Some(upper), Some(lower)) = (state.registry.find(upper), state.registry.find(lower))
    else {
        return false;
    };
    let is_export = |path: &Path| lower.exports.iter().any(|export| export.file() == Some(path));
    paths_of(state, upper).any(|path| is_export(&users::file_behind(machine, path)))
}
