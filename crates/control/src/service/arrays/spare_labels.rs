//! Labels of spares: a device is taken only while it says whose spare it is.
//!
//! A spare may wait for years. Until then its path may lead to another drive, and its user may have made
//! something else of it. So consent to overwrite a device is used when the device becomes a spare: its ends
//! are cleared, and the device gets a label. All that is found there later came after the consent.

use crate::engine::{Engine, SpareOwner};
use crate::error::{ControlError, ControlResult};
use crate::name::PoolName;
use crate::records::{Identity, RegisteredArray};
use crate::safety::{self, Role};
use crate::service::state::turn::Turn;
use crate::spec::{DeviceSpec, Storage};

/// The label of a spare of an array.
pub(crate) fn of_array(array: &RegisteredArray) -> SpareOwner {
    SpareOwner { owner: array.uuid, name: array.name.to_string() }
}

/// The label of a spare of a pool, with the owner that the pool's record has for the spare.
pub(crate) fn of_pool(pool: &PoolName, owner: Identity) -> SpareOwner {
    SpareOwner { owner, name: pool.to_string() }
}

/// Whether a device waits as the spare of this owner.
fn names(engine: &dyn Engine, device: &DeviceSpec, owner: Identity) -> bool {
    let label = device.is_external().then(|| engine.spare_label_of(device));
    matches!(label, Some(Ok(Some(label))) if label.owner == owner)
}

/// Refuses a device that is not the spare of this owner any more.
///
/// # Errors
/// The reason why the device is none: somebody uses the device, something else is on it, or the label is
/// another one or gone.
pub(crate) fn check(
    engine: &dyn Engine,
    device: &DeviceSpec,
    owner: Option<Identity>,
) -> ControlResult<()> {
    let examined = match device.storage() {
        Storage::Path(path) => engine.examine(path, Role::Spare)?,
        Storage::Remote(remote) => engine.examine_remote(remote, Role::Spare)?,
        Storage::Own | Storage::Array(_) => return Ok(()),
    };
    safety::judge_findings(device, &examined.findings, false)?;
    match (engine.spare_label_of(device)?, owner) {
        (Some(label), Some(owner)) if label.owner == owner => Ok(()),
        (Some(label), _) => Err(ControlError::failed(format!(
            "{device} is labelled as a spare of another owner, {}",
            label.name
        ))),
        (None, _) => Err(ControlError::failed(format!(
            "{device} has no valid spare label: it is another drive, or was used for something \
             else; if it is to be a spare, remove it and add it again"
        ))),
    }
}

/// Makes a spare of a device that was admitted; `wipe` clears both of its ends.
pub(crate) fn write_label(
    turn: &mut Turn,
    device: &DeviceSpec,
    label: &SpareOwner,
    wipe: bool,
) -> ControlResult<()> {
    let engine = turn.apart(format!("writing the label of a spare to {device}"));
    // Another device ends with the daemon, and so does the spare.
    if device.is_external() { engine.label_spare(device, label, wipe) } else { Ok(()) }
}

/// [`names`] apart from the state of the service.
pub(crate) fn is_spare_of(turn: &mut Turn, device: &DeviceSpec, owner: Identity) -> bool {
    names(&*turn.reading(device), device, owner)
}

/// Makes a plain device of a spare that is not needed any more, if the device is one still.
pub(crate) fn erase_spare(turn: &mut Turn, device: &DeviceSpec, owner: Option<Identity>) {
    let engine = turn.apart(format!("erasing the label of {device}"));
    let is_it = owner.is_some_and(|owner| names(&*engine, device, owner));
    if is_it && let Err(error) = engine.erase_label(device) {
        engine.log(&format!("the spare {device}: {}", error.message));
    }
}
