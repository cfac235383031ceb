//! The volumes and arrays that a request is about, and those that stand on each other.

use std::collections::BTreeSet;

use crate::name::{ArrayName, VolumeName};
use crate::protocol::{ArrayRequest, NewCache, Request};
use crate::records::VolumeRecord;
use crate::registry::Registry;
use crate::service::state::claims::Subject;
use crate::spec::DeviceSpec;

/// The subjects that a request names. `None` of one that waits for no other, because it only looks, or is
/// carried out in the data path at once.
pub(crate) fn of_request(request: &Request) -> Option<BTreeSet<Subject>> {
    let volume = |name: &VolumeName| Subject::Volume(name.clone());
    let (named, devices): (Vec<Subject>, Vec<&DeviceSpec>) = match request {
        Request::Ping
        | Request::Show { .. }
        | Request::Job { .. }
        | Request::EndJob { .. }
        | Request::Events { .. }
        | Request::Acknowledge { .. }
        | Request::Metrics
        | Request::StopDaemon { .. }
        | Request::Upgrade { .. } => return None,
        Request::Create { name, origin, cache, .. } => {
            (vec![volume(name)], std::iter::once(origin).chain(device_of(cache.as_ref())).collect())
        }
        Request::TakeOver { name, origin, cache, .. } => {
            (vec![volume(name)], origin.iter().chain(device_of(cache.as_ref())).collect())
        }
        Request::Attach { name, cache } => (vec![volume(name)], vec![&cache.device]),
        Request::Delete { name, .. }
        | Request::Start { name }
        | Request::Stop { name, .. }
        | Request::Set { name, .. }
        | Request::Flush { name }
        | Request::Detach { name, .. }
        | Request::Export { name, .. }
        | Request::Unexport { name, .. } => (vec![volume(name)], Vec::new()),
        Request::Import { order } => (vec![Subject::Imports], order.devices.iter().collect()),
        Request::Array { ask } => (of_array_request(ask)?, Vec::new()),
    };
    let arrays = devices.into_iter().filter_map(DeviceSpec::array).cloned().map(Subject::Array);
    let mut subjects: BTreeSet<Subject> = arrays.collect();
    subjects.extend(named);
    if let Request::Set { changes, .. } = request {
        // A new origin may be an array.
        let devices = changes.iter().filter_map(|(_, value)| value.parse::<DeviceSpec>().ok());
        let arrays = devices.filter_map(|device| device.array().cloned());
        subjects.extend(arrays.map(Subject::Array));
    }
    Some(subjects)
}

fn device_of(cache: Option<&NewCache>) -> Option<&DeviceSpec> {
    cache.map(|cache| &cache.device)
}

fn of_array_request(ask: &ArrayRequest) -> Option<Vec<Subject>> {
    let array = |name: &ArrayName| Some(vec![Subject::Array(name.clone())]);
    match ask {
        ArrayRequest::Show { .. }
        | ArrayRequest::PoolShow { .. }
        | ArrayRequest::Fail { .. }
        | ArrayRequest::Rebuild { .. }
        | ArrayRequest::Scrub { .. } => None,
        ArrayRequest::Create { array: new, export: None, .. } => array(&new.name),
        ArrayRequest::Create { array: new, .. } => {
            let volume = Subject::Volume(new.name.of_its_volume());
            Some(vec![Subject::Array(new.name.clone()), volume])
        }
        // The members say which array it is.
        ArrayRequest::Assemble { .. } => Some(Vec::new()),
        ArrayRequest::PoolAdd { pool, .. } | ArrayRequest::PoolRemove { pool, .. } => {
            Some(vec![Subject::Pool(pool.clone())])
        }
        ArrayRequest::Start { name }
        | ArrayRequest::Stop { name }
        | ArrayRequest::Replace { name, .. }
        | ArrayRequest::AddSpare { name, .. }
        | ArrayRequest::RemoveSpare { name, .. }
        | ArrayRequest::Grow { name, .. }
        | ArrayRequest::Set { name, .. }
        | ArrayRequest::SetJournal { name, .. }
        | ArrayRequest::Delete { name, .. } => array(name),
    }
}

/// The array of a request that waits for no other command, and is carried out in the data path at once.
pub(crate) fn array_of_request_at_once(request: &Request) -> Option<&ArrayName> {
    match request {
        Request::Array {
            ask:
                ArrayRequest::Fail { name, .. }
                | ArrayRequest::Rebuild { name, .. }
                | ArrayRequest::Scrub { name, .. },
        } => Some(name),
        _ => None,
    }
}

/// The subjects with all volumes and arrays that stand on each other with them.
pub(crate) fn with_neighbours(registry: &Registry, named: &BTreeSet<Subject>) -> BTreeSet<Subject> {
    let mut all = named.clone();
    loop {
        let before = all.len();
        for volume in registry.volumes() {
            let beside = neighbours(volume);
            if beside.iter().any(|subject| all.contains(subject)) {
                all.extend(beside);
            }
        }
        if all.len() == before {
            return all;
        }
    }
}

/// A volume and the arrays that it stands on.
fn neighbours(volume: &VolumeRecord) -> Vec<Subject> {
    let arrays = volume.devices().filter_map(DeviceSpec::array).cloned().map(Subject::Array);
    arrays.chain([Subject::Volume(volume.name.clone())]).collect()
}

/// An array with its neighbours.
pub(crate) fn of_array(registry: &Registry, name: &ArrayName) -> BTreeSet<Subject> {
    with_neighbours(registry, &BTreeSet::from([Subject::Array(name.clone())]))
}

/// A volume with its neighbours.
pub(crate) fn of_volume(registry: &Registry, name: &VolumeName) -> BTreeSet<Subject> {
    with_neighbours(registry, &BTreeSet::from([Subject::Volume(name.clone())]))
}

/// Whether a request is refused while the state folder takes no records. Requests that save data go on: the
/// records that follow them are tried again.
pub(crate) fn needs_a_record(request: &Request) -> bool {
    use ArrayRequest as Ask;
    match request {
        Request::Ping
        | Request::Metrics
        | Request::Show { .. }
        | Request::Job { .. }
        | Request::EndJob { .. }
        | Request::Events { .. }
        | Request::Start { .. }
        | Request::Flush { .. } => false,
        Request::Import { order } => !order.dry_run,
        Request::Array { ask } => !matches!(
            ask,
            Ask::Show { .. }
                | Ask::PoolShow { .. }
                | Ask::Start { .. }
                | Ask::Fail { .. }
                | Ask::Rebuild { .. }
                | Ask::Scrub { .. }
        ),
        _ => true,
    }
}
