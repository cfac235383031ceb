//! The backing disks of caches. A drive that the user names wins over any other. The search for identities
//! on the machine is for caches whose backing disk nobody has named.

use std::path::Path;

use super::find::{Found, FoundCache, OtherDevice, holds_nothing_of_ours};
use crate::engine::CacheLabel;
use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::records::{Identity, newest_data};
use crate::safety::DriveIdentity;
use crate::service::presence::{admit, look};
use crate::service::state::turn::Turn;
use crate::service::volumes::given_up;
use crate::spec::DeviceSpec;

/// The origin of a cache.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) device: DeviceSpec,
    /// The user gave it: no mark says that the cache belongs to it.
    pub(super) is_given: bool,
    /// A line for the user.
    pub(super) note: Option<String>,
}

impl Origin {
    fn marked(device: DeviceSpec) -> Self {
        Self { device, is_given: false, note: None }
    }
}

/// What an import knows when it looks for origins.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    /// The devices of the order.
    pub(super) given: &'a [DeviceSpec],
    /// The arrays that the order names, by their members.
    pub(super) arrays: &'a [(Identity, ArrayName)],
    /// More caches may be found, on arrays that are not open yet: a drive that is left over may be the origin
    /// of one of these.
    pub(super) expects_caches: bool,
    /// A larger drive may be the copy of an origin.
    pub(super) takes_larger: bool,
}

/// The origins of all caches that were found, in their order. First those among the drives of the order:
/// the one with the mark that the cache has for its origin, then the only one that fits.
///
/// # Errors
/// When there is no origin for a cache, or several drives could be that.
pub(super) fn assign(
    service: &mut Turn,
    found: &Found,
    known: Known<'_>,
) -> ControlResult<Vec<Origin>> {
    let mut origins: Vec<Option<Origin>> = Vec::new();
    for cache in &found.caches {
        origins.push(named_by_mark(service, cache, found, known)?);
    }
    for at in 0..origins.len() {
        if origins[at].is_none() {
            origins[at] = as_given(service, found, at, &origins, known)?;
        }
    }
    let mut all = Vec::new();
    for (cache, origin) in found.caches.iter().zip(&origins) {
        let left = free_of(service, found, origins.iter().flatten().map(|it| &it.device));
        all.push(match origin {
            Some(origin) => origin.clone(),
            None => elsewhere(service, cache, found, &left, known)?,
        });
    }
    Ok(all)
}

/// The mark that a cache has for its origin.
fn mark_of(cache: &FoundCache) -> Option<DriveIdentity> {
    DriveIdentity::recorded(&cache.label.owner.origin_identity)
}

/// The drive or array of the order that has the mark of the origin.
fn named_by_mark(
    service: &mut Turn,
    cache: &FoundCache,
    found: &Found,
    known: Known<'_>,
) -> ControlResult<Option<Origin>> {
    let Some(mark) = mark_of(cache) else { return Ok(None) };
    if let Some(uuid) = mark.array() {
        let planned = known.arrays.iter().find(|(array, _)| *array == uuid);
        let planned = planned.map(|(_, name)| DeviceSpec::Array(name.clone()));
        let named = found.others.iter().map(|other| &other.device);
        let mut named = named.filter(|it| is_array(service, it, uuid)).cloned();
        return Ok(planned.or_else(|| named.next()).map(Origin::marked));
    }
    let mut marked: Vec<&DeviceSpec> = Vec::new();
    for other in &found.others {
        let Some(path) = other.device.path() else { continue };
        if service.reading_identity_of(path.display()).drive_identity(path).as_ref() == Some(&mark)
        {
            marked.push(&other.device);
        }
    }
    match marked[..] {
        [] => Ok(None),
        [one] => Ok(Some(Origin::marked(one.clone()))),
        [one, other, ..] => Err(ControlError::failed(format!(
            "{one} and {other} have the same identity, {mark}, which is that of the backing disk of the \
             cache on {}; give only the one that is that disk",
            cache.device
        ))),
    }
}

fn is_array(service: &Turn, device: &DeviceSpec, uuid: Identity) -> bool {
    let record = device.array().and_then(|name| service.registry.find_array(name));
    record.is_some_and(|array| array.uuid == uuid)
}

/// The only drive of the order that fits a cache and is nobody's origin yet; `None` when none fits. The origin
/// of another cache does not count.
fn as_given(
    service: &mut Turn,
    found: &Found,
    at: usize,
    origins: &[Option<Origin>],
    known: Known<'_>,
) -> ControlResult<Option<Origin>> {
    let cache = &found.caches[at];
    let free = free_of(service, found, origins.iter().flatten().map(|it| &it.device));
    let fits = |other: &&OtherDevice, cache: &FoundCache| {
        let bytes = cache.label.origin_bytes;
        other.size_bytes == bytes || (known.takes_larger && other.size_bytes > bytes)
    };
    let fitting: Vec<&OtherDevice> = free.iter().filter(|it| fits(it, cache)).collect();
    let is_rival = |(other, origin): &(&FoundCache, &Option<Origin>)| {
        origin.is_none() && fitting.iter().any(|it| fits(it, other))
    };
    let rivals = found.caches.iter().zip(origins).filter(is_rival).count();
    match (&fitting[..], rivals) {
        ([], _) => Ok(None),
        ([origin], 1) => {
            let device = origin.device.clone();
            let note = other_mark(service, cache, &device);
            Ok(Some(Origin { device, is_given: true, note }))
        }
        _ => Err(ControlError::failed(format!(
            "several drives could be the backing disk of the cache on {}; import one volume at a \
             time: its SSD and its backing disk",
            cache.device
        ))),
    }
}

/// Devices that hold nothing of Voltier, and are nobody's origin yet.
pub(super) fn free_of<'a>(
    service: &mut Turn,
    found: &Found,
    taken: impl Iterator<Item = &'a DeviceSpec>,
) -> Vec<OtherDevice> {
    let mut free = found.others.clone();
    for origin in taken {
        free.retain(|other| !admit::is_same(service, origin, &other.device));
    }
    free
}

/// Says that an origin has not the mark that was recorded: a copy, or the same drive at another controller.
fn other_mark(service: &mut Turn, cache: &FoundCache, origin: &DeviceSpec) -> Option<String> {
    let recorded = mark_of(cache)?;
    let now = admit::mark_of(service, origin).filter(DriveIdentity::is_known);
    let now = now.map_or_else(|| "no mark".to_owned(), |mark| mark.to_string());
    let others = with_mark(service, cache);
    let others = match others.is_empty() {
        true => String::new(),
        false => format!("; {}, which has that one, is left alone", names_of(&others, " and ")),
    };
    Some(format!(
        "{origin} was taken as the backing disk because it was given: it has {now}, not {recorded}{others}"
    ))
}

/// The drives or the array of this machine that have the mark of the origin of a cache, named or not.
fn with_mark(service: &mut Turn, cache: &FoundCache) -> Vec<DeviceSpec> {
    let Some(mark) = mark_of(cache) else { return Vec::new() };
    if let Some(uuid) = mark.array() {
        let array = service.registry.array_with(uuid);
        return array.map(|array| DeviceSpec::Array(array.name.clone())).into_iter().collect();
    }
    let owner = &cache.label.owner;
    let hint = owner.origin_path.parse().unwrap_or_else(|_| DeviceSpec::Path("/".into()));
    let place = hint.path().unwrap_or(Path::new("/"));
    let found = service.looking_for(&mark).drives_with(&mark, place);
    let device = |path| match hint.path() {
        Some(_) => hint.moved_to(path),
        None => DeviceSpec::Path(path),
    };
    found.into_iter().map(device).collect()
}

/// The origin of a cache of whose origin the order says nothing: the only drive of the machine with its mark.
/// A drive of the order that is left over and does not fit is refused: what the user meant by it is not known,
/// and another drive is not what the user meant.
fn elsewhere(
    service: &mut Turn,
    cache: &FoundCache,
    found: &Found,
    left: &[OtherDevice],
    known: Known<'_>,
) -> ControlResult<Origin> {
    let candidates = with_mark(service, cache);
    let origin = match &candidates[..] {
        [] => return Err(not_found(cache, left)),
        _ if !left.is_empty() && !known.expects_caches => {
            return Err(unfit(cache, left, &candidates));
        }
        [one] => one.clone(),
        several => return Err(shared(known, cache, several)),
    };
    if origin.array().is_none() && !holds_nothing_of_ours(service, &origin)? {
        return Err(ControlError::failed(format!(
            "the backing disk of the cache on {} is {origin} by its identity, but that drive is \
             now a member, spare or cache of Voltier; give the drive that holds the data of the \
             backing disk",
            cache.device
        )));
    }
    no_other_ssd(service, found, cache, &origin, known)?;
    if given_up::may_hold_newer_data(&cache.label) {
        return Err(must_be_named(cache, &origin, known));
    }
    Ok(Origin::marked(origin))
}

/// Refuses to find the origin by its mark for an SSD of which the machine has another copy: nobody knows which
/// of them was in use last, and so has the data that belong to that origin.
fn no_other_ssd(
    service: &mut Turn,
    found: &Found,
    cache: &FoundCache,
    origin: &DeviceSpec,
    known: Known<'_>,
) -> ControlResult<()> {
    let beside = cache.device.path().and_then(Path::parent).map(Path::to_owned);
    let mut paths = service.reading("all drives").own_devices();
    if let Some(folder) = beside {
        paths.extend(
            service.reading(format_args!("the files of {}", folder.display())).own_files(&folder),
        );
    }
    for path in paths {
        let device = DeviceSpec::Path(path);
        let is_given = |given: &FoundCache| admit::is_same(service, &given.device, &device);
        if found.caches.iter().any(is_given) || look::look_once(service, &device).is_err() {
            continue;
        }
        let Ok(Some(label)) = service.reading(&device).cache_label_of(&device) else { continue };
        let state = |label: &CacheLabel| (label.generation, label.sequence);
        if label.uuid == cache.label.uuid && state(&label) >= state(&cache.label) {
            return Err(ControlError::failed(format!(
                "{} and {device} hold the same cache, so one is a copy, and \
                 dirty lines of an old copy would be written over newer data; import the SSD that was in use \
                 last, and name its backing disk: `{}`",
                cache.device,
                command(known, origin)
            )));
        }
    }
    Ok(())
}

/// The command with a drive more than the order has.
fn command(known: Known<'_>, with: &DeviceSpec) -> String {
    let named: Vec<_> = known.given.iter().chain([with]).map(ToString::to_string).collect();
    format!("voltier import {}", named.join(" "))
}

fn names_of(devices: &[DeviceSpec], between: &str) -> String {
    devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

fn shared(known: Known<'_>, cache: &FoundCache, candidates: &[DeviceSpec]) -> ControlError {
    let commands = candidates.iter().map(|it| format!("`{}`", command(known, it)));
    ControlError::failed(format!(
        "{} have the same identity, {}, which is that of the backing disk of the cache on {}; name the right \
         one: {}",
        names_of(candidates, " and "),
        cache.label.owner.origin_identity,
        cache.device,
        commands.collect::<Vec<_>>().join(" or ")
    ))
}

/// Dirty lines go to no drive that the user has not named: the SSD may be an old snapshot, and the drive may
/// have newer data than any line of it. Nothing on the drive says so.
fn must_be_named(cache: &FoundCache, origin: &DeviceSpec, known: Known<'_>) -> ControlError {
    ControlError::failed(format!(
        "the cache on {} may hold {}, to be written to {origin}, which is its backing disk by its identity and \
         was not named; if it is the right one, name it too: `{}`",
        cache.device,
        newest_data(cache.label.dirty_lines),
        command(known, origin)
    ))
}

fn sizes_of(free: &[OtherDevice]) -> String {
    let sizes = free.iter().map(|it| format!("{} has {} bytes", it.device, it.size_bytes));
    sizes.collect::<Vec<_>>().join(", ")
}

/// Refuses drives of the order that are not the origin, although another drive has its mark.
fn unfit(cache: &FoundCache, left: &[OtherDevice], candidates: &[DeviceSpec]) -> ControlError {
    ControlError::failed(format!(
        "{}, and the backing disk of the cache on {} has {}: give the drive that holds the data of that disk \
         (a larger copy with --changed-origin); {}, by its identity the backing disk when the SSD was last \
         used, is not taken instead of a drive that was given",
        sizes_of(left),
        cache.device,
        cache.label.origin_bytes,
        names_of(candidates, " and ")
    ))
}

fn not_found(cache: &FoundCache, free: &[OtherDevice]) -> ControlError {
    let (device, label) = (&cache.device, &cache.label);
    let recorded = |text: &str, what: &str| match text {
        "" => format!("no {what} is recorded"),
        text => format!("its {what} is {text}"),
    };
    let owner = &label.owner;
    let given = match sizes_of(free) {
        none if none.is_empty() => String::new(),
        sizes => format!(" ({sizes})"),
    };
    let what = match mark_of(cache).and_then(|mark| mark.array()) {
        Some(_) => "give the members of that array as well",
        None => "connect it, or give the drive that holds its data after the SSD",
    };
    ControlError::failed(format!(
        "the backing disk of the cache on {device}, of {} bytes, was not found{given}: {}, {}; {what}",
        label.origin_bytes,
        recorded(&owner.origin_identity, "identity"),
        recorded(&owner.origin_path, "last path")
    ))
}
