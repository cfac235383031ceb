//! Volumes whose devices are exports of other volumes of the same daemon: the file of an export, a loop device
//! over one, or an NBD export by its address. The upper volume stops first: what it writes at its end goes
//! through the lower one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use voltier_nbd::{ExportUri, Server};

use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::records::VolumeRecord;
use crate::safety::{Machine, users};
use crate::service::state::State;
use crate::spec::DeviceSpec;

/// The paths of a volume's devices, also of the members of its arrays.
fn paths_of<'a>(state: &'a State, record: &'a VolumeRecord) -> impl Iterator<Item = &'a Path> {
    devices_of(state, record).filter_map(|device| device.path())
}

/// The devices of a volume, and the members of its arrays.
fn devices_of<'a>(
    state: &'a State,
    record: &'a VolumeRecord,
) -> impl Iterator<Item = &'a DeviceSpec> {
    let arrays = record.devices().filter_map(|device| device.array());
    let members = arrays.filter_map(|name| state.registry.find_array(name));
    let members = members.flat_map(|array| array.devices());
    record.devices().chain(members)
}

/// The file behind the block device of a volume, by its name or the kernel's; any other path as it is.
fn behind(state: &State, machine: &Machine, path: &Path) -> PathBuf {
    let exports = state.registry.volumes().iter().flat_map(|record| &record.exports);
    let mut named = exports.filter_map(|export| match export {
        ExportSpec::Loop { device, file } if is_named(device, path) => Some(file.clone()),
        _ => None,
    });
    named.next().unwrap_or_else(|| users::file_behind(machine, path))
}

/// Whether a path is the name of a block device, or of a partition of it.
fn is_named(device: &Path, path: &Path) -> bool {
    let rest =
        path.to_str().zip(device.to_str()).and_then(|(path, device)| path.strip_prefix(device));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("-part"))
}

/// The open volumes that stand on an exported file, and the paths of the devices with which they do.
pub(crate) fn users_of(
    state: &State,
    machine: &Machine,
    file: &Path,
) -> (Vec<VolumeName>, BTreeSet<PathBuf>) {
    let (mut names, mut paths) = (Vec::new(), BTreeSet::new());
    for record in state.registry.volumes().iter().filter(|record| state.is_open(&record.name)) {
        let before = paths.len();
        let on_it = paths_of(state, record).filter(|path| behind(state, machine, path) == file);
        paths.extend(on_it.map(Path::to_owned));
        if paths.len() > before {
            names.push(record.name.clone());
        }
    }
    (names, paths)
}

/// Whether a volume stands on an export of another one.
pub(crate) fn stands_on(
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
    let served = lower.exports.iter().filter_map(|export| export.uri(&lower.name).parse().ok());
    let servers: Vec<Server> = served.map(|uri: ExportUri| uri.server).collect();
    let mut remotes = devices_of(state, upper).filter_map(|device| device.remote());
    remotes.any(|remote| remote.server().is_some_and(|server| servers.contains(server)))
        || paths_of(state, upper).any(|path| is_export(&behind(state, machine, path)))
}
