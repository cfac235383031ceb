//! Looks at devices that are on record already. A look after a crash is patient with what is busy.

use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::records::Identity;
use crate::safety::{self, DriveIdentity, Finding, Role, WriteProtection};
use crate::service::presence::absence::Hindrance;
use crate::service::state::crash_wait::CRASH_STEP;
use crate::service::state::turn::Turn;
use crate::settings::ORIGIN_KEY;
use crate::spec::{DeviceSpec, Storage};

/// [`may_be_member`] of a device that may not answer: a core would wait for it.
pub(crate) fn has_label(turn: &mut Turn, device: &DeviceSpec, array: Identity) -> bool {
    look(turn, device).is_ok() && may_be_member(turn, device, array)
}

/// Whether a device says that it is a member of an array.
pub(crate) fn is_labelled(turn: &mut Turn, device: &DeviceSpec, array: Identity) -> bool {
    let label = device.is_external().then(|| turn.reading(device).label_of(device));
    matches!(label, Some(Ok(Some(label))) if label.array == array)
}

/// [`is_labelled`], also by a label that only a newer program can read.
pub(crate) fn may_be_member(turn: &mut Turn, device: &DeviceSpec, array: Identity) -> bool {
    let label = device.is_external().then(|| turn.reading(device).label_of(device));
    match label {
        Some(Ok(Some(label))) => label.array == array,
        Some(Err(error)) => error.is_unsupported_label(array),
        Some(Ok(None)) | None => false,
    }
}

/// Whether this daemon has let a device go that still has its requests.
pub(crate) fn is_letting_go(turn: &mut Turn, device: &DeviceSpec) -> bool {
    let Some(path) = device.path() else { return false };
    let step = format!("checking whether {} is free", path.display());
    turn.apart(step).is_letting_go(path)
}

/// Does something again while it fails, as often as the start allows.
pub(crate) fn again<T, F>(
    turn: &mut Turn,
    mut attempt: impl FnMut(&mut Turn) -> Result<T, F>,
) -> Result<T, F> {
    let mut outcome = attempt(turn);
    while outcome.is_err() && is_patient(turn) {
        outcome = attempt(turn);
    }
    outcome
}

/// Waits a moment for what is busy, unless the start has waited long enough.
fn is_patient(turn: &mut Turn) -> bool {
    let is_patient = turn.busy_tries > 1;
    if is_patient {
        turn.busy_tries -= 1;
        turn.pause(CRASH_STEP);
    }
    is_patient
}

/// Looks at a device that is ours already: nobody else may use it, and it may not have shrunk.
pub(crate) fn look_at(
    turn: &mut Turn,
    device: &DeviceSpec,
    size_bytes_min: u64,
    side: &str,
) -> ControlResult<()> {
    if let Some(name) = device.array() {
        let size_bytes = turn.size_of_array(name)?;
        return large_enough(device, size_bytes, size_bytes_min, side);
    }
    match look(turn, device) {
        Ok(size_bytes) => large_enough(device, size_bytes, size_bytes_min, side),
        Err((_, why)) => Err(ControlError::failed(why)),
    }
}

/// The size in bytes of a device that is ours already, or why the device cannot be used now.
pub(crate) fn look(turn: &mut Turn, device: &DeviceSpec) -> Result<u64, (Hindrance, String)> {
    let mut looked = look_once(turn, device);
    while matches!(looked, Err((Hindrance::Busy, _))) && is_patient(turn) {
        looked = look_once(turn, device);
    }
    looked
}

/// [`look`] without patience.
pub(crate) fn look_once(turn: &mut Turn, device: &DeviceSpec) -> Result<u64, (Hindrance, String)> {
    let Some(examined) = turn.examine(device, Role::Origin) else { return Ok(u64::MAX) };
    let mut examined = examined.map_err(|error| {
        // What is on this machine is seen to be there, whatever it answers.
        let is_there = device.remote().is_none() && turn.id_of(device).is_some();
        (if is_there { Hindrance::Silent } else { Hindrance::Absent }, error.message)
    })?;
    // An SSD that takes no writes can be read: its lines are written back.
    examined.findings.retain(|found| !matches!(found, Finding::WriteProtected(_)));
    // The engine judges the content of the device: it knows its own labels.
    let judged = safety::judge_findings(device, &examined.findings, true);
    judged.map_err(|error| (Hindrance::Busy, error.message))?;
    Ok(examined.size_bytes)
}

/// Why a device takes no writes, if that is so.
pub(crate) fn write_protection(turn: &mut Turn, device: &DeviceSpec) -> Option<WriteProtection> {
    let step = format!("checking whether {device} takes writes");
    match device.storage() {
        Storage::Path(path) => turn.apart(step).write_protection(path),
        Storage::Remote(remote) => {
            let examined = turn.apart(step).examine_remote(remote, Role::Origin).ok()?;
            examined.findings.into_iter().find_map(|found| match found {
                Finding::WriteProtected(how) => Some(how),
                _ => None,
            })
        }
        Storage::Own | Storage::Array(_) => None,
    }
}

/// Refuses a device that takes no writes, and an array that is only read.
pub(crate) fn takes_writes(turn: &mut Turn, device: &DeviceSpec, side: &str) -> ControlResult<()> {
    if let Some(array) = device.array().and_then(|name| turn.registry.find_array(name)) {
        return array.must_take_changes();
    }
    match write_protection(turn, device) {
        None => Ok(()),
        Some(how) => Err(ControlError::failed(format!("its {side} {device} {how}"))),
    }
}

/// Refuses a drive beyond this machine that is not the one on record: smaller, larger or made anew, it is another one
/// until the user says that it is not.
pub(crate) fn is_as_recorded(
    turn: &mut Turn,
    volume: &VolumeName,
    (side, key): (&str, &str),
    device: &DeviceSpec,
    identity: Option<&DriveIdentity>,
) -> ControlResult<()> {
    let Some(remote) = device.remote() else { return Ok(()) };
    let Some(known) = identity.filter(|known| known.remote_bytes().is_some()) else {
        return Ok(());
    };
    let step = format!("asking the server of {remote}");
    let examined = turn.apart(step).examine_remote(remote, Role::Origin)?;
    let Some(found) = examined.remote_identity.filter(|found| found != known) else {
        return Ok(());
    };
    let what = match (known.remote_bytes(), found.image_id().zip(known.image_id())) {
        (Some(bytes), _) if bytes != examined.size_bytes => {
            format!("has {} bytes now and had {bytes}", examined.size_bytes)
        }
        (_, Some((found, known))) if found != known => {
            format!("is another image of this name (its id is {found} and was {known})")
        }
        // The same image under another name, which only the user can have given.
        _ => return not_used_elsewhere(volume, (side, key), device, (&found, known)),
    };
    Err(ControlError::failed(format!(
        "its {side} {device} {what}: nothing is changed; {}, or, if this one holds the data, \
         `voltier set {volume} {key}={device}`",
        remote.way_back()
    )))
}

/// Refuses an image that another host used since the volume was served: a cache in front holds what the image had
/// before.
fn not_used_elsewhere(
    volume: &VolumeName,
    (side, key): (&str, &str),
    device: &DeviceSpec,
    (found, known): (&DriveIdentity, &DriveIdentity),
) -> ControlResult<()> {
    let Some(mark) =
        found.image_used_by().filter(|_| found.image_used_by() != known.image_used_by())
    else {
        return Ok(());
    };
    let host = mark.split_once('@').map_or("unknown", |(_, host)| host);
    let way = match key {
        ORIGIN_KEY => format!("`voltier takeover {volume}` serves the image with a new cache, or"),
        _ => format!("`voltier detach {volume} --no-flush`, or"),
    };
    Err(ControlError::failed(format!(
        "its {side} {device} was used by another host ({host}) since {volume} was served here, and a cache here may be \
         old: nothing is changed; {way}, if nothing was written there, `voltier set {volume} {key}={device}`"
    )))
}

pub(crate) fn large_enough(
    device: &DeviceSpec,
    size_bytes: u64,
    size_bytes_min: u64,
    side: &str,
) -> ControlResult<()> {
    if size_bytes >= size_bytes_min {
        return Ok(());
    }
    Err(ControlError::failed(format!(
        "its {side} {device} has {size_bytes} bytes and had {size_bytes_min} when it was last served; \
         give it its size back, then `voltier start` it"
    )))
}
