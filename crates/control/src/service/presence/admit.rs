//! Whether a device may become a part of a volume or an array.

use std::path::Path;

use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::protocol::NewCache;
use crate::records::{CacheRecord, Identity, PoolRecord, RegisteredArray, VolumeRecord};
use crate::safety::{self, DeviceId, DriveIdentity, Finding, Role};
use crate::service::arrays;
use crate::service::presence::{drives, look};
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;

/// The other devices of a command.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// Nothing.
    None,
    /// The other side of the volume.
    Origin(&'a DeviceSpec),
    /// Members of the same array.
    Members(&'a [DeviceSpec]),
    /// The SSD of the volume whose origin the device becomes, where it has one.
    Cache(&'a VolumeRecord),
}

impl Beside<'_> {
    fn devices(&self) -> &[DeviceSpec] {
        match self {
            Beside::None => &[],
            Beside::Origin(device) => std::slice::from_ref(device),
            Beside::Members(devices) => devices,
            Beside::Cache(volume) => {
                volume.cache.as_ref().map_or(&[], |cache| std::slice::from_ref(&cache.device))
            }
        }
    }

    /// The volume or array whose own part the device may be already.
    fn own(&self) -> Option<Identity> {
        match self {
            Beside::Cache(volume) => Some(volume.uuid),
            Beside::None | Beside::Origin(_) | Beside::Members(_) => None,
        }
    }

    /// The finding about a device that is one of them.
    fn twice(&self) -> Finding {
        let what = match self {
            Beside::Members(_) => "given twice, or lies on another member",
            Beside::None | Beside::Origin(_) | Beside::Cache(_) => {
                "the same device as the other side"
            }
        };
        Finding::SameDevice(what.into())
    }
}

/// A device that may be used.
pub(crate) struct Admitted {
    pub(crate) size_bytes: u64,
    /// The mark that its drive is known by.
    pub(crate) mark: Option<DriveIdentity>,
}

/// Checks an SSD and makes its record.
pub(crate) fn admit_cache(
    turn: &mut Turn,
    new: NewCache,
    origin: &DeviceSpec,
) -> ControlResult<CacheRecord> {
    new.settings.check()?;
    check_size_stays(turn, origin)?;
    check_size_stays(turn, &new.device)?;
    for device in [origin, &new.device].into_iter().filter(|it| it.array().is_some()) {
        look::takes_writes(turn, device, "array")?;
    }
    let beside = Beside::Origin(origin);
    let Admitted { mark, .. } = admit(turn, &new.device, Role::Cache, new.force, beside)?;
    Ok(CacheRecord {
        identity: mark,
        device: new.device,
        uuid: turn.engine.draw_identity()?,
        maybe_dirty: new.settings.mode.writes_back(),
        settings: new.settings,
        generation: 0,
        sequence: 0,
        dirty_lines: 0,
        evacuating: false,
        passed: Vec::new(),
        failed: None,
        lost: Vec::new(),
        lost_total: 0,
    })
}

/// The mark that a device of a volume is to be known by from now on: of an array the identity.
pub(crate) fn mark_of(turn: &mut Turn, device: &DeviceSpec) -> Option<DriveIdentity> {
    let Some(name) = device.array() else {
        return drives::identity_of(&*turn.reading_identity_of(device), device);
    };
    turn.registry.find_array(name).map(|array| DriveIdentity::of_array(&array.uuid))
}

/// Checks a device that is to be used.
pub(crate) fn admit(
    turn: &mut Turn,
    device: &DeviceSpec,
    role: Role,
    force: bool,
    beside: Beside<'_>,
) -> ControlResult<Admitted> {
    if let Some(name) = device.array() {
        let size_bytes = admit_array(turn, name, role, force, beside)?;
        return Ok(Admitted { size_bytes, mark: mark_of(turn, device) });
    }
    let Some(path) = device.path() else {
        let size_bytes = turn.engine.size_of(device)?;
        return Ok(Admitted { size_bytes, mark: mark_of(turn, device) });
    };
    let id = storage_at(turn, path, role)?;
    is_not_being_taken(turn, path, &id)?;
    for other in beside.devices() {
        if turn.id_of(other).is_some_and(|other| other.overlaps(&id)) {
            return Err(refusal(path, &beside.twice()));
        }
    }
    if let Beside::Members(others) = beside {
        is_a_drive_of_its_own(turn, device, others)?;
    }
    if let Some(user) = user_of(turn, &id, beside.own()) {
        let what = Finding::SameDevice(format!("already part of {user}"));
        return Err(refusal(path, &what));
    }
    reserve(turn, id);
    let mark = mark_of(turn, device);
    let known = mark.as_ref().filter(|mark| mark.is_known());
    if let Some(user) = known.and_then(|mark| user_by_mark(turn, mark, beside.own())) {
        let what = Finding::SameDevice(format!("a drive of {user}, by its WWN or serial number"));
        return Err(refusal(path, &what));
    }
    let examined = turn.looking_at(path).examine(path, role)?;
    safety::judge(path, &examined, force)?;
    if force {
        log_override(turn, &path.display().to_string(), &examined.findings);
    }
    let size_bytes = turn.engine.size_of(device)?.min(examined.size_bytes);
    Ok(Admitted { size_bytes, mark })
}

/// Refuses a device that is a part of the same disk, or of the same file, as a member of its array: one failure
/// would take both.
pub(crate) fn is_a_drive_of_its_own(
    turn: &Turn,
    device: &DeviceSpec,
    members: &[DeviceSpec],
) -> ControlResult<()> {
    let Some(id) = turn.id_of(device) else { return Ok(()) };
    let shares =
        |other: &&DeviceSpec| turn.id_of(other).is_some_and(|other| other.shares_a_drive_with(&id));
    match members.iter().find(shares) {
        None => Ok(()),
        Some(other) => Err(ControlError::failed(format!(
            "{device} and {other} are parts of one disk or one file: the array would lose both at once; \
             use another device"
        ))),
    }
}

/// Checks a device that is to be the SSD of a volume again: its cache is on it already, and nothing there is
/// overwritten. The size of the device.
///
/// # Errors
/// When somebody uses the device, or it is the other side of the volume.
pub(crate) fn admit_ssd_again(
    turn: &mut Turn,
    device: &DeviceSpec,
    volume: &VolumeRecord,
) -> ControlResult<()> {
    let own = Some(volume.uuid);
    if is_same(turn, device, &volume.origin) {
        return Err(ControlError::failed(format!(
            "{device} {}",
            Beside::Origin(&volume.origin).twice()
        )));
    }
    if let Some(name) = device.array() {
        turn.array_record(name)?;
        if let Some(user) = turn.user_of_array(name, own) {
            let what = Finding::SameDevice(format!("already part of volume {user}"));
            return Err(ControlError::failed(format!("{device} {what}")));
        }
        return turn.size_of_array(name).map(drop);
    }
    let Some(path) = device.path() else { return Ok(()) };
    let id = storage_at(turn, path, Role::Origin)?;
    is_not_being_taken(turn, path, &id)?;
    if let Some(user) = user_of(turn, &id, own) {
        return Err(refusal(path, &Finding::SameDevice(format!("already part of {user}"))));
    }
    reserve(turn, id);
    let known = mark_of(turn, device).filter(DriveIdentity::is_known);
    if let Some(user) = known.and_then(|mark| user_by_mark(turn, &mark, own)) {
        let what = Finding::SameDevice(format!("a drive of {user}, by its WWN or serial number"));
        return Err(refusal(path, &what));
    }
    look::look_at(turn, device, 0, "SSD")
}

fn admit_array(
    turn: &mut Turn,
    name: &ArrayName,
    role: Role,
    force: bool,
    beside: Beside<'_>,
) -> ControlResult<u64> {
    let shown = format!("array:{name}");
    turn.array_record(name)?;
    if beside.devices().iter().any(|other| other.array() == Some(name)) {
        return Err(ControlError::failed(format!("{shown} {}", beside.twice())));
    }
    if let Some(user) = turn.user_of_array(name, beside.own()) {
        let what = Finding::SameDevice(format!("already part of volume {user}"));
        return Err(ControlError::failed(format!("{shown} {what}")));
    }
    let size_bytes = turn.size_of_array(name)?;
    let head = turn.reading(format_args!("array:{name}")).array_head(name)?;
    let findings = safety::findings_in(&head, role);
    safety::judge_findings(&shown, &findings, force)?;
    if force {
        log_override(turn, &shown, &findings);
    }
    Ok(size_bytes)
}

fn log_override(turn: &mut Turn, shown: &str, findings: &[Finding]) {
    for finding in findings {
        turn.engine.log(&format!("{shown} {finding} (overridden by -f)"));
    }
}

/// Refuses a device that another command is about to take.
fn is_not_being_taken(turn: &Turn, path: &Path, id: &DeviceId) -> ControlResult<()> {
    match turn.claims.taker(id, turn.own()) {
        None => Ok(()),
        Some(command) => Err(ControlError::failed(format!(
            "{} is being taken by another command, `{command}`; try again when that has ended",
            path.display()
        ))),
    }
}

/// Takes a device before any other command can, until the command has ended: by then it is on record.
pub(crate) fn reserve(turn: &mut Turn, id: DeviceId) {
    if let Some(own) = turn.own() {
        turn.claims.reserve(own, id);
    }
}

/// Takes a device that an import is about to put on record.
pub(crate) fn take_for_import(turn: &mut Turn, device: &DeviceSpec) -> ControlResult<()> {
    let Some(path) = device.path() else { return Ok(()) };
    let id = storage_at(turn, path, Role::Origin)?;
    is_not_being_taken(turn, path, &id)?;
    reserve(turn, id);
    Ok(())
}

/// The storage that a path leads to, whatever time its file system takes to say.
///
/// # Errors
/// When there is none, or it does not answer.
fn storage_at(turn: &mut Turn, path: &Path, role: Role) -> ControlResult<DeviceId> {
    match turn.id_at(path) {
        Some(id) => Ok(id),
        None => turn.looking_at(path).examine(path, role).map(|examined| examined.id),
    }
}

/// Whether two devices are the same storage, whatever they are called.
pub(crate) fn is_same(turn: &Turn, one: &DeviceSpec, other: &DeviceSpec) -> bool {
    match [one, other].map(|device| turn.id_of(device)) {
        [Some(one), Some(other)] => one.overlaps(&other),
        _ => one == other,
    }
}

/// The volume, array or pool on record that has a device.
pub(crate) fn user_of_device(turn: &Turn, device: &DeviceSpec) -> Option<String> {
    user_of(turn, &turn.id_of(device)?, None)
}

/// The volume, array or pool a piece of storage already belongs to, other than the volume or array
/// `but`.
fn user_of(turn: &Turn, id: &DeviceId, but: Option<Identity>) -> Option<String> {
    let registry = &turn.registry;
    let is_it = |device: &DeviceSpec| turn.id_of(device).is_some_and(|used| used.overlaps(id));
    let mut others = registry.volumes().iter().filter(|volume| Some(volume.uuid) != but);
    let volume = others.find(|volume| volume.devices().any(is_it));
    if let Some(VolumeRecord { name, .. }) = volume {
        return Some(format!("volume {name}"));
    }
    let is_in = |pool: &&PoolRecord| pool.spares.iter().any(|spare| is_it(&spare.device));
    if let Some(pool) = registry.pools().iter().find(is_in) {
        return Some(format!("spare pool {}", pool.name));
    }
    let mut others = registry.arrays().iter().filter(|array| Some(array.uuid) != but);
    let array = others.find(|array| array.devices().any(is_it));
    array.map(|RegisteredArray { name, .. }| format!("array {name}"))
}

/// The volume or pool that knows a drive, or the disk of a partition, by this mark: other than the volume
/// `but`. The recorded path of a volume that is stopped may lead to another drive by now.
fn user_by_mark(turn: &Turn, mark: &DriveIdentity, but: Option<Identity>) -> Option<String> {
    let is_it = |known: Option<&DriveIdentity>| {
        let known = known.filter(|known| known.is_known());
        known.is_some_and(|known| mark.is_on(known) || known.is_on(mark))
    };
    let mut volumes = turn.registry.volumes().iter().filter(|it| Some(it.uuid) != but);
    let volume = volumes.find(|volume| {
        let cache = volume.cache.as_ref();
        is_it(volume.origin_identity.as_ref())
            || is_it(cache.and_then(|cache| cache.identity.as_ref()))
    });
    if let Some(VolumeRecord { name, .. }) = volume {
        return Some(format!("volume {name}"));
    }
    let has_it = |pool: &&PoolRecord| pool.spares.iter().any(|it| is_it(it.identity.as_ref()));
    let pool = turn.registry.pools().iter().find(has_it);
    pool.map(|pool| format!("spare pool {}", pool.name))
}

/// Refuses a device that another volume or array has than the array it says it is a member of.
pub(crate) fn is_nobody_elses(
    turn: &mut Turn,
    device: &DeviceSpec,
    array: Identity,
) -> ControlResult<()> {
    let Some(path) = device.path() else { return Ok(()) };
    let id = storage_at(turn, path, Role::Cache)?;
    is_not_being_taken(turn, path, &id)?;
    if let Some(user) = user_of(turn, &id, Some(array)) {
        return Err(refusal(path, &Finding::SameDevice(format!("already part of {user}"))));
    }
    reserve(turn, id);
    Ok(())
}

/// Refuses an array for a cache, before it or below it, while its size is about to change.
fn check_size_stays(turn: &mut Turn, device: &DeviceSpec) -> ControlResult<()> {
    let record = device.array().and_then(|name| turn.registry.find_array(name)).cloned();
    match record {
        Some(record) if arrays::show::status(turn, &record).reshape.is_some() => {
            Err(ControlError::failed(format!(
                "the capacity of {device} is being expanded, and a cache is made for a fixed \
                 size; wait until `voltier array show {}` says that this has ended",
                record.name
            )))
        }
        _ => Ok(()),
    }
}

fn refusal(path: &Path, what: &Finding) -> ControlError {
    ControlError::failed(format!("{} {what}", path.display()))
}
