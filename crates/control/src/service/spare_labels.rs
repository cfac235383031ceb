//! Labels of spares: a device is taken only while it says whose spare it is.
//!
//! A spare may wait for years. Until then its path may lead to another drive, and its user may have made
//! something else of it. So consent to overwrite a device is used when the device becomes a spare: its ends are
//! cleared and it gets a label. Whatever is found there later came after the consent.

use super::Service;
use crate::engine::{Engine, SpareLabel};
use crate::error::{ControlError, ControlResult};
use crate::records::{Identity, RegisteredArray};
use crate::safety::{self, Role};
use crate::spec::DeviceSpec;

impl<E: Engine> Service<E> {
    /// Makes a spare of a device that was admitted; `wipe` clears what it held.
    pub(super) fn label_spare(
        &mut self,
        device: &DeviceSpec,
        label: &SpareLabel,
        wipe: bool,
    ) -> ControlResult<()> {
        match device.path() {
            Some(_) => self.engine.label_spare(device, label, wipe),
            // Its content ends with the daemon, and so does the spare.
            None => Ok(()),
        }
    }

    /// Whether a device waits as the spare of this owner.
    pub(super) fn is_spare_of(&mut self, device: &DeviceSpec, owner: Identity) -> bool {
        let label = device.path().map(|_| self.engine.spare_label_of(device));
        matches!(label, Some(Ok(Some(label))) if label.owner == owner)
    }

    /// Refuses a device that is not the spare of this owner any more.
    pub(super) fn check_is_spare(
        &mut self,
        device: &DeviceSpec,
        owner: Option<Identity>,
    ) -> ControlResult<()> {
        let Some(path) = device.path() else { return Ok(()) };
        let examined = self.engine.examine(&self.machine, path, Role::Spare)?;
        safety::judge(path, &examined, false)?;
        match (self.engine.spare_label_of(device)?, owner) {
            (Some(label), Some(owner)) if label.owner == owner => Ok(()),
            (Some(label), _) => Err(ControlError::failed(format!(
                "{device} says that it is a spare of another owner, {}",
                label.name
            ))),
            (None, _) => Err(ControlError::failed(format!(
                "{device} has no whole label of a spare: it is another drive, or was used for something \
                 else; take it away and add it again if it is to be a spare"
            ))),
        }
    }

    /// Makes a plain device of a spare that is not needed any more, if it is one still.
    pub(super) fn unlabel_spare(&mut self, device: &DeviceSpec, owner: Option<Identity>) {
        let is_it = owner.is_some_and(|owner| self.is_spare_of(device, owner));
        if is_it && let Err(error) = self.engine.erase_label(device) {
            self.engine.log(&format!("the spare {device}: {}", error.message));
        }
    }
}

/// The label of a spare of an array.
pub(super) fn label_of(array: &RegisteredArray) -> SpareLabel {
    SpareLabel { owner: array.uuid, name: array.name.to_string() }
}
