//! Whether a device may become a part of a volume or an array.

use crate::error::{ControlError, ControlResult};
use crate::image_report::ImageReport;
use crate::name::ArrayName;
use crate::protocol::NewCache;
use crate::records::{CacheRecord, Identity, PoolSpare, VolumeRecord};
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
    Ok(CacheRecord::new(new.device, mark, turn.engine.draw_identity()?, new.settings))
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
    let mark = take_drive(turn, device, role, beside, beside.own())?;
    let Some(examined) = turn.examine(device, role) else {
        return Ok(Admitted { size_bytes: turn.engine.size_of(device)?, mark });
    };
    let examined = examined?;
    safety::judge_findings(device, &examined.findings, force)?;
    if let Some(why) = examined.report.as_ref().and_then(ImageReport::refusal) {
        return Err(ControlError::failed(format!("{device} {why}")));
    }
    if force {
        log_override(turn, &device.to_string(), &examined.findings);
    }
    let size_bytes = turn.engine.size_of(device)?.min(examined.size_bytes);
    Ok(Admitted { size_bytes, mark })
}

/// Takes a device before any other command can, until the command has ended: by then it is on record.
///
/// # Errors
/// When the device is one of those beside it, another command is about to take it, or a volume, an array or a
/// pool other than `own` has it.
pub(crate) fn take(
    turn: &mut Turn,
    device: &DeviceSpec,
    role: Role,
    beside: Beside<'_>,
    own: Option<Identity>,
) -> ControlResult<()> {
    // Whatever time its file system takes to say which storage that is.
    let id = match turn.id_of(device) {
        Some(id) => id,
        None => match turn.examine(device, role) {
            Some(examined) => examined?.id,
            None => return Ok(()),
        },
    };
    if let Some(command) = turn.claims.taker(&id, turn.own()) {
        return Err(ControlError::failed(format!(
            "{device} is being taken by another command, `{command}`; try again when that has ended"
        )));
    }
    for other in beside.devices() {
        if turn.id_of(other).is_some_and(|other| other.overlaps(&id)) {
            return Err(refusal(device, &beside.twice()));
        }
    }
    if let Beside::Members(others) = beside {
        is_a_drive_of_its_own(turn, device, others)?;
    }
    if let Some(user) = user_of(turn, &id, own) {
        return Err(refusal(device, &Finding::SameDevice(format!("already part of {user}"))));
    }
    reserve(turn, id);
    Ok(())
}

/// [`take`] of a drive that nobody else knows by its mark, either; the mark.
fn take_drive(
    turn: &mut Turn,
    device: &DeviceSpec,
    role: Role,
    beside: Beside<'_>,
    own: Option<Identity>,
) -> ControlResult<Option<DriveIdentity>> {
    take(turn, device, role, beside, own)?;
    let mark = mark_of(turn, device);
    let known = mark.as_ref().filter(|mark| mark.is_known());
    match known.and_then(|mark| user_by_mark(turn, mark, own)) {
        Some(user) => {
            let what = format!("a drive of {user}, by its WWN or serial number");
            Err(refusal(device, &Finding::SameDevice(what)))
        }
        None => Ok(mark),
    }
}

/// Refuses a device that a command names twice.
pub(crate) fn is_named_once(
    turn: &Turn,
    device: &DeviceSpec,
    before: &[DeviceSpec],
) -> ControlResult<()> {
    match before.iter().any(|other| is_same(turn, other, device)) {
        false => Ok(()),
        true => Err(ControlError::failed(format!("{device} is given twice; name it once"))),
    }
}

/// Refuses an array as a part of an array, which it cannot be or have.
pub(crate) fn is_no_array(device: &DeviceSpec, cannot: &str) -> ControlResult<()> {
    let nested = || format!("{device} cannot {cannot}: arrays cannot be nested");
    device.array().map_or(Ok(()), |_| Err(ControlError::usage(nested())))
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
        return size_of_free_array(turn, name, Beside::None, own).map(drop);
    }
    take_drive(turn, device, Role::Origin, Beside::None, own)?;
    look::look_at(turn, device, 0, "SSD")
}

/// Looks at a device that is to get a new cache of a volume whose SSD it is on record: what counts against that,
/// and the mark of its drive.
///
/// # Errors
/// When the device is not there, takes no writes, or somebody else has it.
pub(crate) fn look_at_ssd(
    turn: &mut Turn,
    device: &DeviceSpec,
    volume: &VolumeRecord,
) -> ControlResult<(Vec<Finding>, Option<DriveIdentity>)> {
    let (own, beside) = (Some(volume.uuid), Beside::Origin(&volume.origin));
    check_size_stays(turn, device)?;
    if let Some(name) = device.array() {
        size_of_free_array(turn, name, beside, own)?;
        look::takes_writes(turn, device, "array")?;
        let head = turn.reading(device).array_head(name)?;
        return Ok((safety::findings_in(&head, Role::Cache), mark_of(turn, device)));
    }
    let mark = take_drive(turn, device, Role::Cache, beside, own)?;
    let examined = turn.examine(device, Role::Cache).transpose()?;
    Ok((examined.map(|it| it.findings).unwrap_or_default(), mark))
}

fn admit_array(
    turn: &mut Turn,
    name: &ArrayName,
    role: Role,
    force: bool,
    beside: Beside<'_>,
) -> ControlResult<u64> {
    let size_bytes = size_of_free_array(turn, name, beside, beside.own())?;
    let shown = format!("array:{name}");
    let head = turn.reading(&shown).array_head(name)?;
    let findings = safety::findings_in(&head, role);
    safety::judge_findings(&shown, &findings, force)?;
    if force {
        log_override(turn, &shown, &findings);
    }
    Ok(size_bytes)
}

/// The size of an open array that no volume but `own` has.
fn size_of_free_array(
    turn: &Turn,
    name: &ArrayName,
    beside: Beside<'_>,
    own: Option<Identity>,
) -> ControlResult<u64> {
    turn.array_record(name)?;
    let is_beside = beside.devices().iter().any(|other| other.array() == Some(name));
    if is_beside {
        return Err(ControlError::failed(format!("array:{name} {}", beside.twice())));
    }
    match turn.user_of_array(name, own) {
        Some(user) => Err(ControlError::failed(format!(
            "array:{name} is already part of volume {user}; `voltier attach {user} -s SSD` gives that a cache, \
             `voltier delete {user}` frees the array"
        ))),
        None => turn.size_of_array(name),
    }
}

fn log_override(turn: &mut Turn, shown: &str, findings: &[Finding]) {
    for finding in findings {
        turn.engine.log(&format!("{shown} {finding} (overridden by -f)"));
    }
}

/// Keeps a device from other commands until the command has ended.
pub(crate) fn reserve(turn: &mut Turn, id: DeviceId) {
    if let Some(own) = turn.own() {
        turn.claims.reserve(own, id);
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
    user_where(turn, but, |device, _| turn.id_of(device).is_some_and(|used| used.overlaps(id)))
}

/// The volume or pool that knows a drive, or the disk of a partition, by this mark: other than the volume
/// `but`. The recorded path of a volume that is stopped may lead to another drive by now.
fn user_by_mark(turn: &Turn, mark: &DriveIdentity, but: Option<Identity>) -> Option<String> {
    user_where(turn, but, |_, known| {
        let known = known.filter(|known| known.is_known());
        known.is_some_and(|known| mark.is_on(known) || known.is_on(mark))
    })
}

/// The volume, pool or array on record, other than the volume or array `but`, with a drive that is the one.
fn user_where(
    turn: &Turn,
    but: Option<Identity>,
    is_it: impl Fn(&DeviceSpec, Option<&DriveIdentity>) -> bool,
) -> Option<String> {
    let registry = &turn.registry;
    let mut volumes = registry.volumes().iter().filter(|volume| Some(volume.uuid) != but);
    if let Some(volume) = volumes.find(|it| it.drives().any(|(device, mark)| is_it(device, mark))) {
        return Some(format!("volume {}", volume.name));
    }
    let is_in = |spare: &PoolSpare| is_it(&spare.device, spare.identity.as_ref());
    if let Some(pool) = registry.pools().iter().find(|pool| pool.spares.iter().any(is_in)) {
        return Some(format!("spare pool {}", pool.name));
    }
    let mut arrays = registry.arrays().iter().filter(|array| Some(array.uuid) != but);
    let array = arrays.find(|array| array.devices().any(|device| is_it(device, None)));
    array.map(|array| format!("array {}", array.name))
}

/// [`take`] of a device that says it is a member of an array.
pub(crate) fn is_nobody_elses(
    turn: &mut Turn,
    device: &DeviceSpec,
    array: Identity,
) -> ControlResult<()> {
    take(turn, device, Role::Cache, Beside::None, Some(array))
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

fn refusal(device: &DeviceSpec, what: &Finding) -> ControlError {
    ControlError::failed(format!("{device} {what}"))
}
